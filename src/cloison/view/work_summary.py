"""What each shard took, and where: the end of a run on many machines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cloison.view.pieces import visible
from cloison.view.tables import counted

if TYPE_CHECKING:
    from cloison.packing.worker import Done
    from cloison.store.packed import Packed

__all__ = ["work_summary"]

_SHOWN = 20


def work_summary(packed: Packed, done: Sequence[Done]) -> Group:
    """Return a line a step and a row a shard that was written in this run: the slowest, where there are many."""
    lines = [_step("tokenised", "chunk", [one for one in done if one.step == "tokenise"])]
    written = sorted((one for one in done if one.step == "fill"), key=lambda one: (-one.seconds, one.index))
    lines.append(_step("written", "shard", written))
    kept = len(packed.manifest.shards) - len(written)
    if kept:
        lines.append(f"{counted(kept, 'shard')} of an earlier run kept")
    if not written:
        return Group(*map(Text, lines))
    shown = sorted(written[:_SHOWN], key=lambda one: one.index)
    if len(written) > _SHOWN:
        lines.append(f"the {_SHOWN} slowest of {len(written):,} (all with --json):")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, side in zip(
        ("shard", "blocks", "segments", "tokens", "full", "MB", "s", "tries", "on"), "lrrrrrrrl", strict=True
    ):
        table.add_column(name, justify="left" if side == "l" else "right", no_wrap=True)
    capacity = packed.manifest.spec.capacity
    for one in shown:
        shard = packed.manifest.shards[one.index]
        table.add_row(
            shard.name,
            f"{shard.num_blocks:,}",
            f"{shard.num_segments:,}",
            f"{shard.num_tokens:,}",
            f"{shard.num_tokens / max(1, shard.num_blocks * capacity):.2%}",
            f"{shard.size_bytes / 1e6:.1f}",
            f"{one.seconds:.1f}",
            str(one.tries),
            visible(one.node),
        )
    return Group(*map(Text, lines), table)


def _step(did: str, what: str, done: Sequence[Done]) -> str:
    if not done:
        return f"no {what} {did}"
    seconds = [one.seconds for one in done]
    again = sum(one.tries > 1 for one in done)
    nodes = len({one.node for one in done})
    tried = f"; {again:,} tried again" if again else ""
    return (
        f"{counted(len(done), what)} {did} on {counted(nodes, 'machine')}: {median(seconds):.1f} s each (median), "
        f"{max(seconds):.1f} s the longest{tried}"
    )
