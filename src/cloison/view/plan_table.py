"""Policies x capacities side by side: what each plan would give, as plain rows and as a table with small pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from cloison.errors import CloisonError, OverlongError
from cloison.planning import Plan, compose, plan
from cloison.view.option_words import as_options

__all__ = ["length_summary", "plan_rows", "plan_table"]

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 64
_SHOWN_BLOCKS = 4
_ENDLESS = 1000
_WARM_SAMPLES = 1024
_HEADS = (
    "capacity",
    "policy",
    "blocks",
    "full",
    "gap",
    "proof",
    "cut",
    "lost",
    "alike",
    "at random",
    "samples/step",
    "steps",
    "s",
)
_LEGEND = (
    "full: tokens / (blocks x capacity). gap: blocks above a lower bound, proven as proof says. cut: of the samples. "
    "lost: of the tokens. alike: how much of the variance of log length lies between blocks (1: blocks of like lengths), and "
    "at random: in a random draw. samples/step: how their number varies over steps of {step} blocks. s: seconds of "
    "planning, once it is compiled."
)
_OPTIONS = ("overflow", "capacity", "align", "max_sample_tokens")
_MIXING = range(_HEADS.index("alike"), _HEADS.index("s"))
"""The columns that go into a second table where the terminal is narrow."""


def plan_rows(
    seq_lengths: npt.NDArray[Any],
    capacities: Sequence[int],
    policies: Sequence[str],
    *,
    blocks_per_step: int = 64,
    progress: Callable[[str, int, int], None] | None = None,
    placed: Callable[[OverlongError], OverlongError] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return one row of plain data for each capacity and policy, under the names of `Plan` and `Composition`.

    Args:
        blocks_per_step: the global batch, in blocks; steps per epoch and the variation from step to step are counted in it.
        placed: what adds to an error where in the sources its samples stand.
        options: further arguments of `plan`. Where ``overflow`` is "raise" and samples are too long, the row holds ``refused``.

    Cost: that of the plans, and of one of a few samples for each policy, so that ``seconds`` count no compiling.
    """
    rows = []
    warm: set[str] = set()
    for index, (capacity, policy) in enumerate((c, p) for c in capacities for p in policies):
        if progress is not None:
            progress(f"planning {policy} at {capacity:,}", index, len(capacities) * len(policies))
        row: dict[str, Any] = {"capacity": capacity, "policy": policy}
        try:
            if policy not in warm:
                _warm_up(seq_lengths, capacity, policy, options)
                warm.add(policy)
            made = plan(seq_lengths, capacity, policy=policy, **options)
        except OverlongError as error:
            error = error if placed is None else placed(error)
            rows.append(row | {"refused": f"{error.found} {error.remedy}"})
            continue
        rows.append(row | _facts(made, blocks_per_step))
    return rows


def _warm_up(seq_lengths: npt.NDArray[Any], capacity: int, policy: str, options: Mapping[str, Any]) -> None:
    """Plan a few of the samples, so that what the policy needs is compiled, or loaded."""
    head = seq_lengths[:_WARM_SAMPLES]
    with suppress(CloisonError):  # the plan itself says it
        plan(head[head <= capacity], capacity, policy=policy, **options)


def _facts(made: Plan, blocks_per_step: int) -> dict[str, Any]:
    entries, found = made.ledger.entries, compose(made, blocks_per_step)
    return {
        "num_blocks": made.num_blocks,
        "utilization": made.utilization,
        "padded_utilization": made.padded_utilization,
        "lower_bound": made.lower_bound,
        "bound_name": made.bound_name,
        "gap": made.gap,
        "samples_in": made.ledger.samples_in,
        "samples_cut": sum(entries[kind].samples for kind in ("split", "cut_at_edges", "truncated") if kind in entries),
        "samples_dropped": entries["dropped"].samples if "dropped" in entries else 0,
        "lost_tokens": made.ledger.lost_tokens,
        "lost_share": made.ledger.lost_share,
        "steps_per_epoch": -(-made.num_blocks // blocks_per_step),
        "seconds": made.seconds,
        **found.to_dict(),
        "first_blocks": [lengths.tolist() for _, _, lengths in (made[b] for b in range(min(_SHOWN_BLOCKS, len(made))))],
    }


def length_summary(seq_lengths: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what the lengths are: how many, tokens, quantiles, and 48 bins (log-spaced where they span much)."""
    size = int(seq_lengths.size)
    if not size:
        return {"samples": 0, "tokens": 0, "quantiles": {}, "edges": [], "counts": []}
    low, high = max(int(seq_lengths.min()), 1), int(seq_lengths.max())
    edges = np.geomspace(low, high + 1, 49) if high > 64 * low else np.linspace(low, high + 1, 49)
    edges = np.unique(np.ceil(edges).astype(np.int64))
    counts = np.histogram(seq_lengths, edges)[0] if edges.size > 1 else np.array([size])
    points = (0, 25, 50, 75, 95, 99, 100)
    quantiles = np.percentile(seq_lengths, points, method="nearest")
    return {
        "samples": size,
        "tokens": int(seq_lengths.sum(dtype=np.int64)),
        "quantiles": {f"p{point}": int(value) for point, value in zip(points, quantiles, strict=True)},
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


def plan_table(lengths: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Group:
    """Return the pictures and the table for the terminal."""
    kept = [row for row in rows if "refused" not in row]
    parts: list[Any] = [*_pictures(lengths, rows)]
    if kept:
        step = kept[0]["blocks_per_step"]
        parts += [_Columns([_cells(row) for row in kept]), Text(_LEGEND.format(step=step), style="dim")]
    return Group(*parts, *_refusals(rows))


class _Columns:
    """The table, or where it is wider than the terminal its columns in two tables, so that no number is cut."""

    def __init__(self, cells: Sequence[Sequence[str]]) -> None:
        self.cells = cells

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(range(len(_HEADS)))
        if Measurement.get(console, options.update(width=_ENDLESS), whole).maximum <= options.max_width:
            yield whole
            return
        yield self._table([*range(_MIXING.start), len(_HEADS) - 1])
        yield Text("")
        yield self._table([0, 1, *_MIXING])

    def _table(self, columns: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in (_HEADS[column] for column in columns):
            table.add_column(head, justify="left" if head in ("policy", "proof") else "right", no_wrap=True)
        for row in self.cells:
            table.add_row(*(row[column] for column in columns))
        return table


def _refusals(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """One line a capacity and reason, with the policies that it holds for."""
    policies: dict[tuple[int, str], list[str]] = {}
    for row in rows:
        if "refused" in row:
            policies.setdefault((row["capacity"], row["refused"]), []).append(row["policy"])
    return [
        Text(f"{', '.join(names)} at {capacity:,} {'is' if len(names) == 1 else 'are'} refused: {as_options(why, _OPTIONS)}")
        for (capacity, why), names in policies.items()
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    cut, share, chance, spread = (
        row[name] for name in ("samples_cut", "length_variance_share", "random_variance_share", "samples_per_step_variation")
    )
    return [
        f"{row['capacity']:,}",
        row["policy"],
        f"{row['num_blocks']:,}",
        f"{row['utilization']:.2%}",
        f"{row['gap']:.3%}",
        row["bound_name"],
        f"{cut / row['samples_in']:.1%}" if cut else "-",
        f"{row['lost_share']:.2%}" if row["lost_tokens"] else "-",
        "-" if share is None else f"{share:.2f}",
        "-" if chance is None else f"{chance:.2f}",
        "-" if spread is None else f"±{spread:.1%}",
        f"{row['steps_per_epoch']:,}",
        f"{row['seconds']:.3f}",
    ]


def _pictures(lengths: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    lines = [Text(f"{lengths['samples']:,} samples, {lengths['tokens']:,} tokens", style="bold")]
    if lengths["samples"]:
        top = max(lengths["counts"])
        bars = "".join(_BARS[-(-8 * count // top)] for count in lengths["counts"])
        q = lengths["quantiles"]
        lines.append(Text(f"{q['p0']:,} {bars} {q['p100']:,}"))
        lines.append(Text(f"half have {q['p25']:,} to {q['p75']:,}, 1 in 100 more than {q['p99']:,}", style="dim"))
    legend = ": the first blocks, sample by sample in two shades; a dot is empty"
    row = next((row for row in rows if row.get("first_blocks")), None)
    if row is not None:  # of one plan: those of all would push the table off the screen, and --html shows them
        lines.append(Text(f"{row['policy']} at {row['capacity']:,}{legend}", style="dim"))
        lines += [Text(_strip(block, row["capacity"])) for block in row["first_blocks"]]
    return [*lines, Text("")]


def _strip(segments: Sequence[int], capacity: int) -> str:
    """A block as characters: segments in two shades by turns, dots for what is empty."""
    ends = [round(_WIDTH * end / capacity) for end in np.cumsum(segments).tolist()]
    out = ""
    for index, end in enumerate(ends):
        out += "█▒"[index % 2] * (end - len(out))
    return out + "·" * (_WIDTH - len(out))
