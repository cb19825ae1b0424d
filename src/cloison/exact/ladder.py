"""The ladder: the ways of each rung for one model, in the order in which adapt tries them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloison.exact import below_limit, masks, mixers, own_attention, positions, rows, singles, varlen
from cloison.exact.facts import Facts, facts_of
from cloison.exact.kernels import SDPA
from cloison.exact.pooled import POOLED, pooled
from cloison.exact.probe import Reference
from cloison.exact.signals import Signal, way_of
from cloison.exact.splitting import splits_of
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["climb", "named"]

_SIGNALS = {"a": varlen.signals, "b": positions.signals, "c": masks.signals, "d": own_attention.signals}
_BASES = "adbc"
"""The rungs that may run around wrapped mixers, the cheapest first."""


def climb(
    model: torch.nn.Module, sample: torch.Tensor, rungs: str, against: Reference, patterns: Sequence[str] | None = None
) -> Iterator[Way]:
    """Yield the ways of ``rungs``, in that order; the modules of rung e are found by experiments on ``model``, or are those
    whose names fit ``patterns``."""
    facts = facts_of(model, sample, against.floor)
    for rung in rungs:
        if rung in _SIGNALS:
            yield from map(way_of, _SIGNALS[rung](facts))
        elif rung == "e":
            yield from mixers.search(model, _signals(facts), against, patterns)
        elif rung == "f":
            yield from below_limit.ways(model, facts, _signals(facts), against)
            yield from rows.ways()
        else:
            yield from singles.ways()


def named(
    model: torch.nn.Module, sample: torch.Tensor, floor: float, choice: Mapping[str, Any], kernel: str = SDPA
) -> Way | None:
    """Return the way of ``model`` that ``choice`` names, our own attention computed by ``kernel``, or None where it has no
    such: for another kernel than SDPA also where our attention does not run."""
    if POOLED in choice:
        return _pooled(model, sample, floor, choice, kernel)
    facts = facts_of(model, sample, floor)
    try:
        choice = _by(choice, kernel)
        signals = [signal.by(kernel) for signal in _signals(facts)]
        if "below" in choice:
            return below_limit.chosen(facts, signals, choice)
        if choice.get("rung") == "e":
            return mixers.chosen(model, signals, choice)
    except (AttributeError, KeyError, TypeError):  # a choice from a file that says something else
        return None
    ways = [*map(way_of, signals), *rows.ways(), *singles.ways()]
    return next((way for way in ways if dict(way.choice) == dict(choice)), None)


def _pooled(model: torch.nn.Module, sample: torch.Tensor, floor: float, choice: Mapping[str, Any], kernel: str) -> Way | None:
    base = {name: value for name, value in choice.items() if name != POOLED}
    for split in splits_of(model):
        with split.base_alone():
            way = named(model, sample, floor, base, kernel)
        if way is not None:
            return pooled(way, split, choice[POOLED])
    return None


def _by(choice: Mapping[str, Any], kernel: str) -> dict[str, Any]:
    if "below" in choice:
        return {**choice, "below": _by(choice["below"], kernel)}
    plain = {name: value for name, value in choice.items() if name != "kernel"}
    return plain if kernel == SDPA else plain | {"kernel": kernel}


def _signals(facts: Facts) -> list[Signal]:
    return [signal for rung in _BASES for signal in _SIGNALS[rung](facts)]
