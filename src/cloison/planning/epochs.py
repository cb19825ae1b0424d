"""Epochs: new pairings and a new order from one plan, any block of any epoch found by itself.

A plan is places: a place of length l in a block is good for any sample of length l. Epoch e keeps the blocks as sets of
lengths, puts them in another order, and deals the samples of each length anew, both by keyed bijections (`bijection`). So block
b of epoch e is found without the others: its base block by one bijection, and for each of its places the rank among the places
of that length (a binary search), the image of the rank, and the sample of that place in the plan. No length is planned again,
every rank and machine finds the same, and each sample comes once an epoch.

Where lengths are rare (few samples, or a wide range), samples of one length meet again: with one sample of a length, always.
So the recurrence, the share of pairs in a block that shared a block in the plan, is measured and compared with that of a random
regrouping; where it is over `RECURRENCE` more, the epoch is planned again with a seed of its own (milliseconds to a second:
this happens where samples are few), with ``mixed`` or a look-ahead in place of policies that would find the same blocks again.
`Epoch.pairing` says which, and `Epoch.recurrence` how much recurs.

Cost: 4 bytes a segment, built once a plan (about 5 ns a segment); then O(log segments) a segment of the block that is asked
for, some ten microseconds a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import InputError
from cloison.planning.bijection import derive, permutation, permute
from cloison.planning.mixed import AHEAD as MIXED_AHEAD
from cloison.planning.planner import plan_with
from cloison.planning.plans import Plan

__all__ = ["Epoch", "Places", "epoch_of", "pairing_of", "places_of"]

RECURRENCE = 0.005
"""An epoch is dealt anew from the plan's blocks while pairs recur at most this much more often than by chance."""

_CHUNK = 1 << 20
_MEASURED = 4096

Segments = tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]


@njit(cache=True, nogil=True)
def _count_places(classes: Any, counts: Any) -> None:
    for c in classes:
        counts[c] += 1


@njit(cache=True, nogil=True)
def _sort_places(classes: Any, first: int, cursors: Any, out: Any) -> None:
    for i in range(classes.size):
        out[cursors[classes[i]]] = first + i
        cursors[classes[i]] += 1


@njit(cache=True, nogil=True)
def _dealt(first: int, classes: Any, starts: Any, places: Any, key: Any) -> Any:
    """Return int64 [classes.size], the place of the plan whose sample goes to each of the places first, first + 1, ..."""
    out = np.empty(classes.size, np.int64)
    for i in range(classes.size):
        c = classes[i]
        a, b = starts[c], starts[c + 1]
        low, high = a, b
        while low < high:
            middle = (low + high) // 2
            if places[middle] < first + i:
                low = middle + 1
            else:
                high = middle
        out[i] = places[a + permute(low - a, b - a, key + np.uint64(c) * np.uint64(0xD1342543DE82EF95))]
    return out


@dataclass(frozen=True, eq=False)
class Places:
    """The places of a plan, sorted by length: starts int64 [classes + 1] into places [segments], rising within a class."""

    starts: npt.NDArray[np.int64]
    places: npt.NDArray[Any]


def places_of(plan: Plan) -> Places:
    """Return the Places of ``plan``."""
    size = plan.num_segments
    ranges = [(a, min(a + _CHUNK, size)) for a in range(0, size, _CHUNK)]
    counts = plan.items.counts
    if plan.policy == "wrap":  # which has pieces of its own, that the items do not count
        counts = np.zeros(plan.items.units + 1, np.int64)
        for a, b in ranges:
            _count_places(_classes(plan, a, b), counts)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    cursors = starts[:-1].copy()
    places = np.empty(size, np.uint32 if size <= 2**32 else np.int64)
    for a, b in ranges:
        _sort_places(_classes(plan, a, b), a, cursors, places)
    return Places(starts, places)


def _classes(plan: Plan, start: int, stop: int) -> npt.NDArray[np.int32]:
    lengths = plan.lengths_of(start, stop)
    return -(-lengths // plan.align) if plan.align > 1 else np.ascontiguousarray(lengths)


@dataclass(frozen=True, eq=False)
class Epoch:
    """One epoch of a plan: as many samples, in other company and another order.

    Attributes:
        plan: the plan whose epoch it is.
        number: 0 is the plan itself.
        pairing: "plan" (number 0), "dealt" (the plan's blocks as sets of lengths, samples dealt anew) or "planned" (again).
        replanned: the plan of this epoch, where it was planned again.
    """

    plan: Plan
    number: int
    pairing: str
    replanned: Plan | None = None

    def __len__(self) -> int:
        """Blocks."""
        return len(self.plan if self.replanned is None else self.replanned)

    def __getitem__(self, block: int) -> Segments:
        """Return (sample_ids, starts, seq_lengths) of one block of the epoch."""
        if self.replanned is not None:
            return self.replanned[block]
        index = range(len(self))[block]
        if self.pairing == "plan":
            return self.plan[index]
        base = int(permute(index, len(self.plan), derive(self.plan.seed, 3, self.number)))
        return self.plan.segments_at(self._places(base))

    def _places(self, base: int) -> npt.NDArray[np.int64]:
        a, b = int(self.plan.offsets[base]), int(self.plan.offsets[base + 1])
        sorted_places = self.plan.places
        key = derive(self.plan.seed, 4, self.number)
        return np.asarray(_dealt(a, _classes(self.plan, a, b), sorted_places.starts, sorted_places.places, key))

    def __iter__(self) -> Iterator[Segments]:
        return (self[block] for block in range(len(self)))

    def to_plan(self) -> Plan:
        """Return the epoch as a Plan with arrays of its own; its bound, items and ledger are the same."""
        if self.pairing == "plan":
            return self.plan
        if self.replanned is not None:
            return self.replanned
        plan, blocks = self.plan, len(self.plan)
        base = permutation(blocks, derive(plan.seed, 3, self.number)).astype(np.int64)
        sizes = np.diff(plan.offsets)[base]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        key = derive(plan.seed, 4, self.number)
        dealt = np.empty(plan.num_segments, np.int64)
        for a in range(0, plan.num_segments, _CHUNK):
            b = min(a + _CHUNK, plan.num_segments)
            dealt[a:b] = _dealt(a, _classes(plan, a, b), plan.places.starts, plan.places.places, key)
        at = np.repeat(plan.offsets[base] - offsets[:-1], sizes) + np.arange(plan.num_segments)
        ids, starts, lengths = plan.segments_at(dealt[at])
        given = plan.given_starts is not None
        return replace(
            plan,
            settings=replace(plan.settings, order="shuffled"),
            offsets=offsets,
            sample_ids=ids,
            given_starts=starts if given else None,
            given_lengths=lengths if given else None,
        )

    @cached_property
    def recurrence(self) -> float:
        """Share of the pairs of segments in a block that shared a block in the plan (on 4,096 blocks, evenly spaced)."""
        if self.pairing == "plan":
            return 1.0
        blocks = np.unique(np.linspace(0, max(len(self) - 1, 0), min(_MEASURED, len(self))).astype(np.int64))
        again = pairs = 0
        if self.replanned is None:
            found = (np.searchsorted(self.plan.offsets, self._places(int(base)), side="right") for base in blocks)
        else:
            home = np.zeros(self.plan.items.ids, np.int64)
            home[self.plan.sample_ids] = np.repeat(np.arange(len(self.plan)), np.diff(self.plan.offsets))
            found = (home[self.replanned[int(block)][0]] for block in blocks)
        for homes in found:
            _, times = np.unique(homes, return_counts=True)
            again += int((times * (times - 1) // 2).sum())
            pairs += homes.size * (homes.size - 1) // 2
        return again / pairs if pairs else 0.0

    @cached_property
    def random_recurrence(self) -> float:
        """The same for segments dealt to the plan's blocks at random: pairs in blocks / all pairs."""
        sizes = np.diff(self.plan.offsets)
        segments = self.plan.num_segments
        return float((sizes * (sizes - 1)).sum()) / (segments * (segments - 1)) if segments > 1 else 0.0


def pairing_of(plan: Plan) -> str:
    """Return what "auto" means for the epochs of ``plan``: decided on epoch 1, for all."""
    dealt = Epoch(plan, 1, "dealt")
    return "dealt" if dealt.recurrence <= dealt.random_recurrence + RECURRENCE else "planned"


def epoch_of(plan: Plan, number: int, pairing: str = "auto") -> Epoch:
    """Return epoch ``number`` of ``plan``; see `Plan.epoch`."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
        raise InputError("an epoch is a number from 0.", f"It is {number!r}.", "Pass 0, 1, 2, ...")
    if pairing not in ("auto", "dealt", "planned"):
        raise InputError("pairing is 'auto', 'dealt' or 'planned'.", f"It is {pairing!r}.", "Pick one.")
    if number == 0:
        return Epoch(plan, 0, "plan")
    if pairing == "auto":
        pairing = plan.epoch_pairing
    if pairing == "dealt":
        return Epoch(plan, int(number), "dealt")
    ordered = plan.policy in ("look_ahead", "in_order", "wrap", "mixed")
    settings = replace(plan.settings, seed=int(derive(plan.seed, 5, int(number))), order="shuffled")
    ways = [settings] if ordered else [replace(settings, policy="mixed")]
    if ways[0].policy == "mixed":  # which may find patterns of rare lengths again, as a look-ahead never does
        ways.append(replace(settings, policy="look_ahead", look_ahead=max(settings.look_ahead, MIXED_AHEAD)))
    for way in ways:
        epoch = Epoch(plan, int(number), "planned", plan_with(way, plan.items.lengths, plan.items.threads))
        if epoch.recurrence <= epoch.random_recurrence + RECURRENCE:
            break
    return epoch
