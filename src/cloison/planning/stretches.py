"""Stretches: a plan as some whole blocks after the other, for those who pass over it without holding it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.planning.ordering import planning_order
from cloison.planning.plans import Plan

__all__ = ["STRETCH", "Stretch", "cut_into_stretches", "stretches_of"]

STRETCH = 1 << 16
"""Segments of a stretch, at most, where no single block has more."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Some blocks of a plan, one after the other.

    Attributes:
        sizes: int64 [blocks], segments of each.
        sample_ids: integers [segments].
        starts: int32 [segments]; None: all 0.
        seq_lengths: int32 [segments], in tokens.
        begins: int64 [segments], the tokens that are before each in the planning order; None where the plan keeps no order.
    """

    sizes: npt.NDArray[np.int64]
    sample_ids: npt.NDArray[Any]
    starts: npt.NDArray[np.int32] | None
    seq_lengths: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int64] | None


def cut_into_stretches(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return ranges of whole blocks, all of ``offsets`` int64 [blocks + 1], each of at most `STRETCH` segments or one block."""
    ranges, first, blocks = [], 0, offsets.size - 1
    while first < blocks:
        fitting = int(np.searchsorted(offsets, offsets[first] + STRETCH, side="right")) - 1
        ranges.append((first, max(fitting, first + 1)))
        first = ranges[-1][1]
    return ranges


def stretches_of(plan: Plan) -> Callable[[], Iterator[Stretch]]:
    """Return a function that gives the stretches of ``plan``, as often as it is called.

    Cost: where the plan keeps an order, 8 bytes a sample.
    """
    before = _tokens_before(plan)

    def stretches() -> Iterator[Stretch]:
        for first, last in cut_into_stretches(plan.offsets):
            here = slice(int(plan.offsets[first]), int(plan.offsets[last]))
            sample_ids = plan.sample_ids[here]
            starts = None if plan.given_starts is None else plan.given_starts[here]
            begins = None if before is None else before[sample_ids]
            if begins is not None and starts is not None:
                begins += starts
            sizes, lengths = np.diff(plan.offsets[first : last + 1]), plan.lengths_of(here.start, here.stop)
            yield Stretch(sizes, sample_ids, starts, lengths, begins)

    return stretches


def _tokens_before(plan: Plan) -> npt.NDArray[np.int64] | None:
    """Return int64 [samples], the tokens in blocks that are before each sample in the planning order; None: it has no place."""
    if not plan.num_blocks or (plan.policy not in ("look_ahead", "in_order") and plan.order != "input"):
        return None
    items = plan.items
    before = np.zeros(items.samples, np.int64)
    if items.extra_samples.size or plan.policy == "wrap":
        if plan.order != "input":  # each piece has a place of its own
            return None
        np.add.at(before, plan.sample_ids, plan.seq_lengths)
        return np.asarray(np.cumsum(before) - before, np.int64)
    order = planning_order(items, plan.seed, plan.order == "shuffled")
    done = 0
    for first in range(0, items.ids, STRETCH):
        ids, _ = order(first, min(first + STRETCH, items.ids))
        lengths = items.real_lengths(ids).astype(np.int64)
        before[ids] = done + np.cumsum(lengths) - lengths
        done += int(lengths.sum())
    return before
