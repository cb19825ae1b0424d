"""Rung f for rotary tables that look at the longest position of the batch (dynamic NTK, LongRoPE): unpacked only where it
matters.

While no sample of a batch passes the limit, every position is below it and the scaling rests: a packed row is as good as any
other. Only a batch with a longer sample runs in groups of equal length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.exact import rows
from cloison.exact.batches import PackedBatch
from cloison.exact.calling import forget
from cloison.exact.facts import Facts
from cloison.exact.probe import Reference, measure, reference
from cloison.exact.signals import Signal, way_of
from cloison.exact.ways import Way
from cloison.forms.joining import join
from cloison.proof.blocks import alone

if TYPE_CHECKING:
    import torch

__all__ = ["chosen", "short_blocks", "ways"]

_DETAIL = "equal lengths together"


def ways(model: torch.nn.Module, facts: Facts, signals: Sequence[Signal], against: Reference) -> Iterator[Way]:
    """Yield the first of ``signals`` that is exact below the limit, with rung f's groups of equal length above it."""
    if facts.scaling_limit is None:
        return
    short = reference(model, short_blocks(against.blocks, facts.scaling_limit), against.ids, 0)
    for signal in signals:
        found = measure(model, way_of(signal), short)
        if max(found.leak, found.equality) <= short.floor:
            yield _way(signal, facts.scaling_limit)
            return


def chosen(facts: Facts, signals: Sequence[Signal], choice: Mapping[str, Any]) -> Way | None:
    """Return the way that ``choice`` names, or None where this model has no such."""
    signal = next((signal for signal in signals if signal.choice == dict(choice["below"])), None)
    return None if signal is None or facts.scaling_limit is None else _way(signal, facts.scaling_limit)


def short_blocks(blocks: Sequence[Block], limit: int) -> list[Block]:
    """Return the samples of ``blocks`` that do not pass ``limit`` tokens, as one block."""
    return [join([block for block in alone(blocks) if block.num_tokens <= limit])]


def _run(model: torch.nn.Module, batch: PackedBatch, *, below: Way, above: Way, limit: int) -> Any:
    forget(model)
    return (below if batch.segments.max_seqlen <= limit else above).run(model, batch)


def _way(signal: Signal, limit: int) -> Way:
    below = way_of(signal)
    above = next(way for way in rows.ways() if way.detail == _DETAIL)
    run = partial(_run, below=below, above=above, limit=limit)
    detail = f"{_DETAIL} where a sample passes the scaling limit; else {below.name}"
    return Way("f", detail, run, below.layout, choice={"rung": "f", "below": signal.choice})
