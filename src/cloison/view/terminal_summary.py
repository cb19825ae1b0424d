"""The summary that `pack` ends on: what came in, what is in the blocks, what is lost, what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cloison.ledger import Ledger
from cloison.packing.whereabouts import ledger_places
from cloison.view.pieces import visible
from cloison.view.tables import counted

if TYPE_CHECKING:
    from cloison.packing.planned import Planned
    from cloison.packing.tokens import Tokens
    from cloison.store.packed import Packed

__all__ = ["dry_run_table", "packed_summary", "planned_facts", "planned_rows", "source_rows"]

_KINDS = {
    "empty": "empty",
    "skipped": "could not be read, skipped",
    "nothing_to_train": "with nothing to train, dropped",
    "dropped": "longer than a block, dropped",
    "truncated": "longer than a block, cut",
    "split": "longer than a block, split",
    "cut_at_edges": "that fit a block, cut where one ends",
    "continuations": "further pieces of samples that are cut",
}


def packed_summary(packed: Packed, tokens: Tokens | None = None) -> Group:
    """Return the summary of a packed data set; with what it was read from, where that is at hand."""
    m = packed.manifest
    rows = [
        *(source_rows(tokens, made=bool(tokens.made)) if tokens is not None else ()),
        ("blocks", f"{m.num_blocks:,} of {m.spec.capacity:,} tokens, in {counted(len(m.shards), 'file')}"),
        *_plan_rows(m.num_segments, m.utilization, m.padding_utilization, m.lower_bound, m.gap),
        ("mixed", _mixed(m.composition)),
        *_ledger_rows(m.ledger, {} if tokens is None else ledger_places(tokens, m.ledger)),
        (
            "trained",
            f"{m.num_targets:,} tokens, {_share(m.num_targets, m.num_tokens)} of the tokens (train_on={m.spec.train_on})",
        ),
        *(("", _role(role, counts)) for role, counts in m.roles.items()),
    ]
    if m.targetless_segments:
        rows.append(("", f"{counted(m.targetless_segments, 'piece')} of split samples with nothing to train"))
    if m.straddles:
        rows.append(("", f"{counted(m.straddles, 'token')} across the edge of a trained span (trained)"))
    for name, kind in m.columns.items():
        rows.append(("carried", f"{visible(name)}, one entry a {kind}"))
    rows.append(("logical hash", m.logical_hash[:16]))
    return _table(f"packed {visible(str(packed.path))}", rows)


def planned_rows(planned: Planned) -> list[tuple[str, str]]:
    """Return what a plan that is not packed says."""
    f = planned_facts(planned)
    return [
        *_plan_rows(f["num_segments"], f["utilization"], f["padding_utilization"], f["lower_bound"], f["gap"]),
        ("mixed", _mixed(f["composition"])),
        *_ledger_rows(planned.ledger, ledger_places(planned.tokens, planned.ledger)),
    ]


def dry_run_table(rows: Iterable[tuple[str, str]]) -> Group:
    """Return the table of a run that wrote nothing."""
    return _table("dry run: nothing was written", rows)


def planned_facts(planned: Planned) -> dict[str, Any]:
    """Return the numbers of a plan that is not packed, under the manifest's names."""
    spec = planned.tokens.spec
    return {
        "spec": spec.to_dict(),
        "capacity": spec.capacity,
        "token_key": planned.tokens.key,
        "num_blocks": planned.num_blocks,
        "num_segments": planned.num_segments,
        "num_tokens": planned.num_tokens,
        "utilization": planned.utilization,
        "padding_utilization": planned.num_tokens / max(1, planned.num_segments * spec.capacity),
        "lower_bound": planned.lower_bound,
        "gap": planned.gap,
        "composition": planned.composition.to_dict(),
        "ledger": planned.ledger.to_dict(),
        "places": ledger_places(planned.tokens, planned.ledger),
    }


def source_rows(tokens: Tokens, *, made: bool) -> list[tuple[str, str]]:
    """Return what was read; ``made`` says whether tokens were made of it now."""
    rows = [("read", visible(line)) for line in tokens.described.splitlines()]
    if not made:
        rows.append(("", "tokens of an earlier run, nothing tokenised again"))
    for skip in [skip for skip in tokens.skipped if "error" in skip][:3]:
        rows.append(("skipped", visible(" ".join(skip["error"][part] for part in ("asked", "found")))))
    return rows


def _plan_rows(segments: int, full: float, padded: float, bound: int, gap: float) -> list[tuple[str, str]]:
    return [
        ("segments", f"{segments:,}"),
        ("utilization", f"{full:.2%} (one sample a row, padded: {padded:.2%})"),
        ("lower bound", f"{counted(bound, 'block')}, proven; {gap:.2%} above it"),
    ]


def _ledger_rows(ledger: Ledger, places: Mapping[str, Mapping[int, str]]) -> list[tuple[str, str]]:
    rows = [
        ("samples", f"{ledger.samples_in:,} read, {ledger.samples_kept:,} packed"),
        ("lost", f"{counted(ledger.lost_tokens, 'token')} of {ledger.tokens_in:,}, {_percent(ledger.lost_share)}"),
    ]
    for kind, entry in ledger.entries.items():
        first = ", ".join(str(index) for index in entry.indices[:5].tolist())
        more = ", ..." if entry.samples > 5 else ""
        lost = f", {counted(entry.lost_tokens, 'token')} lost" if entry.lost_tokens else ""
        rows.append(("", f"{entry.samples:,} {_KINDS.get(kind, kind)}{lost} (sample {first}{more})"))
        if kind != "skipped" and kind in places:  # of those, what was wrong is told with the place
            rows.append(("", visible("; ".join(f"sample {sample} is {where}" for sample, where in places[kind].items()))))
    return rows


def _role(role: str, counts: Mapping[str, int]) -> str:
    return f"{visible(role)}: {counted(counts['targets'], 'token')}, {counted(counts['terminators'], 'terminator')}"


def _mixed(composition: Mapping[str, Any]) -> str:
    share, chance = composition.get("length_variance_share"), composition.get("random_variance_share")
    if share is None or chance is None:
        return "too few blocks to say"
    return f"{share:.2f} of the variance of log length lies between blocks (at random: {chance:.2f})"


def _share(part: int, whole: int) -> str:
    return _percent(part / whole) if whole else "none"


def _percent(share: float) -> str:
    """Two digits, and never "0.00%" for what is not nothing."""
    return f"{share:.2%}" if share == 0 or share >= 0.0001 else "less than 0.01%"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value, style="bold yellow" if name == "lost" and not value.startswith("0 ") else ""))
    return Group(Text(title, style="bold"), table)
