"""look_ahead: each block begins with the oldest sample and is filled up with what lies near. The default policy.

The samples have an order: shuffled by seed, or as they came. A block takes the oldest that are left, while more than
`CHOICE` mean lengths stay free; then the sets of samples near by are searched for one that fills the rest: samples are added
one by one to the sums that can be reached, the nearest first, where a sample of half the length counts as further away (short
ones fill any hole: where few samples make a block they are kept for the holes that need them; see `patience_units`). The
search ends with the first sum that fills the rest as well as it is worth: what stays empty is at most 1 / `FINE` of the
distance looked at, and of `GRACE` blocks; or after `LOOKS` samples, with the best sum. The oldest of all goes first, so none is
left behind; none is early by more than K samples, nor is more in view than `window_units` (K / 10 blocks of tokens). At last
the blocks of a shard are put in the order of the mean place of their samples, which brings each nearer to where it was.

The order is cut at every `SHARD` samples, by their place in the order and never by workers, and planning starts anew there:
shards are planned side by side, with the same result.

Source: the bitset of sums is the classical subset-sum program (Bellman 1957); stopping by distance and length, and the order
of candidates, are this project's own, tuned on the order of source files and of conversations and on drawn lengths.
Cost: 0.1 to 0.3 microseconds a sample, up to 1.3 where no set fits (uniform lengths, three to a block), and O(K + capacity)
memory beside 20 bytes for each item of a shard. At K = 1,024 heavy tails (capacity 8,192) are 99.99 % full and moved by one
block in the mean, sources in the order of their folders 99.96 % and 15 blocks; the variance share stays within 0.05 of a random
draw's, mostly below it (`benchmarks/planning_quality.py`). What it gives up: where three or four samples of like length fill a
block, `optimal` and `mixed` are tighter (0.2 % on lognormal(700, 0.5) at 2,048, 1.5 % on SQuAD at 384 and on uniform lengths).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bitset import leading_zeros
from cloison.planning.items import Items
from cloison.planning.ordering import planning_order
from cloison.planning.sums import add_length, has, last
from cloison.planning.threads import spread

__all__ = [
    "CELLS",
    "CHOICE",
    "FINE",
    "GRACE",
    "LOOKS",
    "SHARD",
    "look_ahead_blocks",
    "patience_units",
    "window_units",
]

CHOICE = 4
"""Mean lengths that are left free for a choice; what lies before is filled in order."""

PATIENCE, MOST_PATIENCE = 64, 12
"""Halving the length counts as PATIENCE * mean * mean / units of distance, MOST_PATIENCE blocks at most."""

GRACE, FINE = 8, 1 << 15
"""A fill is good enough where ``waste * FINE <= distance + GRACE * units``, the distance of the furthest sample looked at."""

LOOKS = 64
"""Samples that a search looks at."""

CELLS = 14
"""Sums are kept in at most 2 ** CELLS steps; where a block has more units, lengths are rounded up to a step in the search."""

SHARD = 1 << 20
"""Items from one fresh start of the policy to the next."""

_63 = np.uint64(63)


@njit(cache=True, nogil=True, inline="always")
def _octave(units: int) -> Any:
    """Return the place of the highest bit."""
    return np.int64(_63 - leading_zeros(np.uint64(units)))


@njit(cache=True, nogil=True)
def patience_units(held_units: int, held: int, units: int) -> Any:
    """Return how far away halving the length counts as, where ``held`` samples wait: much where few of them fill a block."""
    mean = held_units // held
    return min(int(PATIENCE * mean * (mean / units)), MOST_PATIENCE * units)  # no integer overflows


@njit(cache=True, nogil=True)
def _enter(item: int, octave: int, queues: Any) -> None:
    """Put ``item`` at the end of the queue of its octave."""
    head, tail, following, previous = queues
    at = item & (following.size - 1)
    following[at], previous[at] = -1, tail[octave]
    if tail[octave] >= 0:
        following[tail[octave] & (following.size - 1)] = item
    else:
        head[octave] = item
    tail[octave] = item


@njit(cache=True, nogil=True)
def _leave(item: int, octave: int, queues: Any) -> None:
    """Take ``item`` out of the queue of its octave."""
    head, tail, following, previous = queues
    older, newer = previous[item & (following.size - 1)], following[item & (following.size - 1)]
    if older >= 0:
        following[older & (following.size - 1)] = newer
    else:
        head[octave] = newer
    if newer >= 0:
        previous[newer & (following.size - 1)] = older
    else:
        tail[octave] = older


@njit(cache=True, nogil=True)
def _picked(reach: Any, looked: int, total: int, cells: Any, candidates: Any, out: Any) -> Any:
    """Write the candidates that add up to ``total``, the nearest that do, to ``out`` and return how many."""
    n = 0
    while total > 0:
        while has(reach[looked - 1], total):
            looked -= 1
        looked -= 1
        out[n] = candidates[looked]
        total -= cells[looked]
        n += 1
    return n


@njit(cache=True, nogil=True)
def _fitting(item: int, room: int, classes: Any, following: Any) -> Any:
    """Return the first from ``item`` on in its queue that fits ``room``, or -1."""
    while item >= 0 and classes[item] > room:
        item = following[item & (following.size - 1)]
    return item


@njit(cache=True, nogil=True)
def _distance(item: int, start: int, places: Any) -> Any:
    """Return how far ``item`` is from ``start``, in units; without an item, further than anything."""
    return places[item & (places.size - 1)] - start if item >= 0 else np.int64(2**62)


@njit(cache=True, nogil=True)
def _search(
    classes: Any, places: Any, start: int, patience: int, room: int, units: int, most: int, queues: Any, work: Any
) -> Any:
    """Write the near set of at most ``most`` items that fills ``room`` well enough to ``work`` and return its size."""
    head, _, following, _ = queues
    reach, cells, candidates, at, distances, out = work
    fineness = max(_octave(units) + 1 - CELLS, 0)
    steps = room >> fineness
    size = (steps >> 6) + 1
    longest, above = _octave(room), _octave(units)
    reach[0, :size] = np.uint64(0)
    reach[0, 0] = np.uint64(1)
    for octave in range(longest + 1):
        at[octave] = _fitting(head[octave], room, classes, following)
        distances[octave] = _distance(at[octave], start - patience * (above - octave), places)
    looked = total = 0
    while looked < LOOKS:
        chosen = 0
        for octave in range(1, longest + 1):
            if distances[octave] < distances[chosen]:
                chosen = octave
        item = at[chosen]
        if item < 0:
            break
        at[chosen] = _fitting(following[item & (following.size - 1)], room, classes, following)
        distances[chosen] = _distance(at[chosen], start - patience * (above - chosen), places)
        cells[looked] = (classes[item] + (1 << fineness) - 1) >> fineness
        candidates[looked] = item
        add_length(reach[looked], reach[looked + 1], cells[looked], size)
        total += cells[looked]
        looked += 1
        worth = (places[item & (places.size - 1)] - start + GRACE * units) // FINE
        if total + (worth >> fineness) >= steps and room - (last(reach[looked], steps) << fineness) <= worth:
            break
    n = _picked(reach, looked, last(reach[looked], steps), cells, candidates, out)
    if n > most:
        n = _picked(reach, most, last(reach[most], steps), cells, candidates, out)
    return n


@njit(cache=True, nogil=True)
def _fill_shard(classes: Any, units: int, ahead: int, window: int, limit: int) -> Any:
    """Return (the block of each item: int32 [items], -1 where it has no units; the number of blocks).

    Pending items wait in queues, one for each octave of lengths, oldest first, in rings by the last bits of their place.
    """
    n, octaves = classes.size, _octave(units) + 1
    ring = 1
    while ring < min(ahead, n):
        ring *= 2
    queues = (np.full(octaves, -1), np.full(octaves, -1), np.full(ring, -1), np.full(ring, -1))
    places = np.zeros(ring, np.int64)  # of the first unit of each item in view
    reach = np.zeros((LOOKS + 1, (min(units, 1 << CELLS) >> 6) + 1), np.uint64)
    cells, candidates, found_items = np.zeros(LOOKS, np.int64), np.zeros(LOOKS, np.int64), np.zeros(LOOKS, np.int64)
    work = (reach, cells, candidates, np.full(octaves, -1), np.zeros(octaves, np.int64), found_items)
    block = np.full(n, -1, np.int32)
    blocks = np.int32(0)
    oldest = entered = at = held = held_units = taken = start = choice = patience = 0
    room, in_order = units, True
    while True:
        while oldest < entered and (block[oldest] >= 0 or classes[oldest] == 0):
            oldest += 1
        while entered < n and entered - oldest < ahead and (entered == oldest or at - places[oldest & (ring - 1)] < window):
            c = classes[entered]
            places[entered & (ring - 1)] = at
            if c > 0:
                _enter(entered, _octave(c), queues)
                at += c
                held += 1
                held_units += c
            elif oldest == entered:
                oldest += 1
            entered += 1
        if taken == 0:
            if held == 0:
                break
            start = places[oldest & (ring - 1)]
            choice, patience = CHOICE * held_units // held, patience_units(held_units, held, units)
        found = 0
        if in_order:
            in_order = held > 0 and taken < limit and (taken == 0 or room - classes[oldest] >= choice)
            if in_order:
                found, found_items[0] = 1, oldest
        if not in_order and held > 0 and room > 0 and taken < limit:
            found = _search(classes, places, start, patience, room, units, limit - taken, queues, work)
        if found == 0:
            blocks += np.int32(1)
            room, taken, in_order = units, 0, True
        for i in range(found):
            item = found_items[i]
            c = classes[item]
            _leave(item, _octave(c), queues)
            block[item] = blocks
            room -= c
            held_units -= c
        taken += found
        held -= found
    return block, blocks


@njit(cache=True, nogil=True)
def _sorted(classes: Any, block: Any, blocks: int) -> Any:
    """Return (sequence: int32 [placed] items block after block, in order in each; ends: int64 [blocks] in the sequence).

    The blocks come in the order of the mean place of their items' first units.
    """
    places, counts = np.zeros(blocks), np.zeros(blocks, np.int64)
    at = 0
    for item in range(classes.size):
        if block[item] >= 0:
            places[block[item]] += at
            counts[block[item]] += 1
            at += classes[item]
    order = np.argsort(places / counts, kind="mergesort")
    ends = np.cumsum(counts[order])
    to = np.empty(blocks, np.int64)
    to[order] = ends - counts[order]
    sequence = np.empty(ends[-1] if blocks else 0, np.int32)
    for item in range(classes.size):
        if block[item] >= 0:
            sequence[to[block[item]]] = item
            to[block[item]] += 1
    return sequence, ends


def window_units(ahead: int, units: int) -> int:
    """Return how many units in view are enough: a tenth of ``ahead`` blocks, at least one."""
    return max(ahead // 10, 1) * units


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
        sequence, ends = _sorted(classes, *_fill_shard(classes, items.units, min(ahead, SHARD), window, limit))
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
