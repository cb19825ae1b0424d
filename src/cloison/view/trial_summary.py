"""What a dry run says: what would be done, how much of it, and how long it would take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group

from cloison.view.tables import counted
from cloison.view.terminal_summary import dry_run_table, planned_facts, planned_rows, source_rows

if TYPE_CHECKING:
    from cloison.packing.trial import Trial

__all__ = ["trial_facts", "trial_summary"]

_FACTS = (
    "exact",
    "num_chunks",
    "sampled_chunks",
    "source_bytes",
    "num_samples",
    "num_tokens",
    "num_blocks",
    "num_shards",
    "token_bytes",
    "block_bytes",
    "workers",
    "tokenise_s",
    "plan_s",
    "write_s",
    "seconds",
)


def trial_facts(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain data: with ``exact`` the whole plan's facts, under the manifest's names; else the estimates."""
    facts = {name: getattr(trial, name) for name in _FACTS}
    planned = planned_facts(trial.planned)
    del planned["token_key"]  # of the whole sources, which were not read for it
    if trial.exact:
        return {**planned, **facts}
    shares = ("spec", "capacity", "utilization", "padding_utilization")
    return {**{name: planned[name] for name in shares}, **facts}


def trial_summary(trial: Trial) -> Group:
    """Return what would be done."""
    about = "" if trial.exact else "about "
    capacity = trial.planned.tokens.spec.capacity
    on = counted(trial.workers, "worker")
    rows = [*source_rows(trial.planned.tokens, made=bool(trial.sampled_chunks))]
    if trial.sampled_chunks:
        rows.append(
            (
                "tokenise",
                f"{counted(trial.num_chunks, 'chunk')} on {on}: {about}{trial.num_tokens:,} tokens, {_time(trial.tokenise_s)}",
            )
        )
    rows += [
        ("plan", f"{about}{trial.num_samples:,} samples, {_time(trial.plan_s)}"),
        (
            "write",
            f"{about}{trial.num_blocks:,} blocks of {capacity:,} tokens in {counted(trial.num_shards, 'file')} on {on}, "
            f"{_time(trial.write_s)}",
        ),
        ("disk", f"about {_bytes(trial.token_bytes + trial.block_bytes)} (tokens {_bytes(trial.token_bytes)})"),
        ("in all", f"about {_time(trial.seconds)}, as timed on this machine"),
    ]
    if trial.exact:
        rows += planned_rows(trial.planned)
    else:
        part = f"{counted(trial.sampled_chunks, 'chunk')} of {trial.num_chunks:,}, evenly over the sources"
        rows += [("told from", part), ("utilization", f"{trial.planned.utilization:.2%} there")]
    return dry_run_table(rows)


def _time(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
