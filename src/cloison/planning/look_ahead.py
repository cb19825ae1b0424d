"""look_ahead: fill in order, and finish each block by best fit from the next K samples. The default policy.

A block takes the samples in their order (shuffled by seed, or as they came) while they fit. Then, from the next ``look_ahead``
samples, the longest that still fits; or, where none fills the block, the longer of the two that fill it best together (the
`PAIRS` longest that fit are tried as the first); again and again, until none fits. A sample that did not fit begins the next
block, so none is ever late by more than one block; and none is early by more than K samples, nor is more in view than
`window_units` (K / 8 blocks of tokens): where samples are long, K of them would reach too far.

The order is cut at every `SHARD` samples, by their place in the order and never by workers, and planning starts anew there:
shards are planned side by side, with the same result.

Cost: about 60 ns a sample, O(K + capacity) memory beside the output. On heavy-tailed lengths it wastes 0.02 % (K = 1024,
capacity 8,192) and is as mixed as a random draw: the choice of pairs keeps long and short in company. What it gives up: in the
input order, where like lengths lie in long stretches, short samples travel far: 35 blocks in the mean for 99.95 % on sources by
folder, whose windows of 64 blocks hold 98.3 % at best (`benchmarks/planning_quality.py`). And on narrow distributions, where
few combinations fill a block, it wastes more than `best_fit` (1.7 % against 0.7 % on lognormal(700, 0.5) at 2,048; see
`mixed`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bijection import derive, permutation
from cloison.planning.bitset import add, at_most, discard, words
from cloison.planning.items import Items, spread
from cloison.planning.ordering import planning_order

__all__ = ["SHARD", "look_ahead_blocks", "look_ahead_sample", "window_units"]

PAIRS = 8
"""First ones of a pair that are tried where no single sample fills a block."""

SHARD = 1 << 20
"""Items from one fresh start of the policy to the next."""


@njit(cache=True, nogil=True)
def _fill_shard(classes: Any, units: int, ahead: int, window: int, limit: int) -> Any:
    """Return (sequence: int32 [placed] places in ``classes`` block after block, ends: int64 [blocks] in the sequence).

    Pending items of a class form a queue, oldest first (``following`` links them, by place modulo the ring), and a bitset
    knows the classes with pending items. The oldest item of all is the head of its class, so every removal is from a head.
    """
    n = classes.size
    following = np.empty(ahead, np.int32)
    head = np.full(units + 1, -1, np.int32)
    tail = np.full(units + 1, -1, np.int32)
    bits, summary = words(units + 1)
    done = np.zeros(n, np.bool_)
    sequence = np.empty(n, np.int32)
    ends = np.empty(n, np.int64)
    oldest = entered = at = blocks = pending = taken = span = 0
    room = units
    in_order = True
    while True:
        while oldest < entered and done[oldest]:
            span -= classes[oldest]
            oldest += 1
        while entered < n and entered - oldest < ahead and span < window:
            c = classes[entered]
            span += c
            if c == 0:
                done[entered] = True
                if oldest == entered:
                    oldest += 1
            else:
                following[entered % ahead] = -1
                if head[c] < 0:
                    head[c] = entered
                    add(bits, summary, c)
                else:
                    following[tail[c] % ahead] = entered
                tail[c] = entered
                pending += 1
            entered += 1
        c = -1
        if pending > 0 and taken < limit and room > 0:
            if in_order and classes[oldest] <= room:
                c = classes[oldest]
            else:
                in_order = False
                c = at_most(bits, summary, room)
                if c >= 0 and c < room and taken + 1 < limit:
                    c = _longer_of_best_pair(bits, summary, head, following, ahead, c, room)
        if c < 0:
            if taken == 0:
                break
            ends[blocks] = at
            blocks += 1
            room, taken, in_order = units, 0, True
            continue
        item = head[c]
        head[c] = following[item % ahead]
        if head[c] < 0:
            discard(bits, summary, c)
        done[item] = True
        sequence[at] = item
        at += 1
        taken += 1
        room -= c
        pending -= 1
    return sequence[:at].copy(), ends[:blocks].copy()


@njit(cache=True, nogil=True)
def _longer_of_best_pair(bits: Any, summary: int, head: Any, following: Any, ahead: int, longest: int, room: int) -> Any:
    """Return the longer of the two pending classes that fill ``room`` best, of the `PAIRS` longest first ones that fit."""
    best, chosen = 0, longest
    c = longest
    for _ in range(PAIRS):
        if c < 0 or 2 * c <= best:
            break
        other = at_most(bits, summary, min(c, room - c))
        if other == c and following[head[c] % ahead] < 0:
            other = at_most(bits, summary, c - 1)
        both = c + max(other, 0)
        if both > best:
            best, chosen = both, c
            if best == room:
                break
        c = at_most(bits, summary, c - 1)
    return chosen


def look_ahead_sample(
    counts: npt.NDArray[np.int64], units: int, max_segments: int, samples: int
) -> list[npt.NDArray[np.int32]]:
    """Return the lengths of each block of a look-ahead over about ``samples`` items of ``counts`` in a keyed order."""
    total = int(counts.sum())
    classes = np.repeat(np.arange(counts.size, dtype=np.int32), -(-counts * min(samples, total) // total))
    classes = classes[permutation(classes.size, derive(0, 11))]
    sequence, ends = _fill_shard(classes, units, 8192, 2**62, max_segments)
    return np.split(classes[sequence], ends[:-1])


def window_units(ahead: int, units: int) -> int:
    """Return how many units in view are enough: an eighth of ``ahead`` blocks, at least one."""
    return max(ahead // 8, 1) * units


def look_ahead_blocks(
    items: Items, seed: int, shuffled: bool, ahead: int, max_segments: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return (offsets int64 [blocks + 1], item ids [placed])."""
    limit = 2**31 - 1 if max_segments is None else max_segments
    window = window_units(ahead, items.units)
    order = planning_order(items, seed, shuffled)
    out = np.empty(items.placed, items.id_type)

    def plan_shard(start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        ids, classes = order(start, stop)
        sequence, ends = _fill_shard(classes, items.units, min(ahead, SHARD), window, limit)
        return ids[sequence], ends

    edges = range(0, items.ids, SHARD)
    offsets = [np.zeros(1, np.int64)]
    at = 0
    for group in range(0, len(edges), 4 * items.threads):
        jobs = [(start, min(start + SHARD, items.ids)) for start in edges[group : group + 4 * items.threads]]
        for ids, ends in spread(items.threads, plan_shard, jobs):
            out[at : at + ids.size] = ids
            offsets.append(ends + at)
            at += ids.size
    return np.concatenate(offsets), out
