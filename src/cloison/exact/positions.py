"""Rung b: positions that restart with every segment, and no cache: transformers finds the segments by itself, if at all."""

from __future__ import annotations

from cloison.exact.facts import Facts
from cloison.exact.signals import Signal, nothing

__all__ = ["signals"]


def signals(facts: Facts) -> list[Signal]:
    """Return a signal for each fitting form of positions."""
    return [
        Signal("b", "", nothing, positions, fixed_shapes=True) for positions in facts.positions if positions.start is not None
    ]
