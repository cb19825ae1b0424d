"""best_fit: best-fit-decreasing, decided on the histogram of lengths alone.

Item by item, best-fit-decreasing takes the longest item first and puts it into the fullest block that still has room. All
items of one length meet the same choice, so it can be made for all at once: the smallest room ``r >= l`` that some block has,
k = r // l items into each block of that room, as many blocks as there are items for. Blocks of one history are one group, so
each such move is one event, about two a distinct length in practice, and the groups at the end are the patterns. The blocks
are those that item-by-item best-fit-decreasing gives.

Source: Johnson's BFD (1974); on counts, the observation of Krell et al. 2021 ("Efficient sequence packing without
cross-contamination") for a histogram packer, made exact. Cost: O(distinct lengths + events), 1-4 ms at 2,048 to 8,192 units,
independent of the number of samples. What it gives up: blocks hold like lengths (see `composition`); on narrow distributions
it is 0.2-6.5 % above the optimum (see `optimal`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bitset import add, at_least, discard, words
from cloison.planning.patterns import NO_PATTERNS, Patterns

__all__ = ["best_fit_patterns"]


@njit(cache=True, nogil=True)
def _events(
    counts: Any, units: int, limit: int, open_counts: Any, open_offsets: Any, open_classes: Any, open_repeats: Any
) -> Any:
    """Return groups as parallel arrays: class, repeats, parent event (-1: first in its block), blocks that end there.

    The blocks of the ``open_`` patterns are there from the start, as groups with what room they have left.
    """
    size = max(1024, 2 * open_classes.size)
    classes = np.empty(size, np.int32)
    repeats = np.empty(size, np.int32)
    parents = np.empty(size, np.int64)
    blocks = np.empty(size, np.int64)
    used = np.empty(size, np.int32)
    after = np.empty(size, np.int64)  # the next open group of the same room
    heads = np.full(units + 1, -1, np.int64)  # the open groups of each room
    bits, summary = words(units + 1)
    events = 0
    for p in range(open_counts.size):
        room, before = units, 0
        for e in range(open_offsets[p], open_offsets[p + 1]):
            room -= open_classes[e] * open_repeats[e]
            before += open_repeats[e]
            classes[events] = open_classes[e]
            repeats[events] = open_repeats[e]
            parents[events] = events - 1 if e > open_offsets[p] else -1
            blocks[events] = 0
            used[events] = before
            events += 1
        blocks[events - 1] = open_counts[p]
        if room > 0 and before < limit:
            after[events - 1] = heads[room]
            heads[room] = events - 1
            add(bits, summary, room)
    for length in range(counts.size - 1, 0, -1):
        left = counts[length]
        while left > 0:
            room = at_least(bits, summary, length)
            if room < 0:
                parent, room, open_blocks, before = -1, units, left, 0
            else:
                parent = heads[room]
                open_blocks, before = blocks[parent], used[parent]
            k = min(room // length, limit - before)
            take = min(open_blocks, left // k)
            if take == 0:
                k, take = left, 1
            left -= k * take
            if parent >= 0:
                blocks[parent] -= take
                if blocks[parent] == 0:
                    heads[room] = after[parent]
                    if heads[room] < 0:
                        discard(bits, summary, room)
            if events == size:
                size *= 2
                classes = np.concatenate((classes, np.empty_like(classes)))
                repeats = np.concatenate((repeats, np.empty_like(repeats)))
                parents = np.concatenate((parents, np.empty_like(parents)))
                blocks = np.concatenate((blocks, np.empty_like(blocks)))
                used = np.concatenate((used, np.empty_like(used)))
                after = np.concatenate((after, np.empty_like(after)))
            classes[events] = length
            repeats[events] = k
            parents[events] = parent
            blocks[events] = take
            used[events] = before + k
            room -= length * k
            if room > 0 and before + k < limit:
                after[events] = heads[room]
                heads[room] = events
                add(bits, summary, room)
            events += 1
    return classes[:events], repeats[:events], parents[:events], blocks[:events]


@njit(cache=True, nogil=True)
def _unwound(classes: Any, repeats: Any, parents: Any, blocks: Any) -> Any:
    """Return (counts, offsets, classes, repeats) of the patterns: each group's chain of events, longest items first."""
    patterns = entries = 0
    depth = np.ones(classes.size, np.int64)
    for e in range(classes.size):
        if parents[e] >= 0:
            depth[e] += depth[parents[e]]
        if blocks[e] > 0:
            patterns += 1
            entries += depth[e]
    counts = np.empty(patterns, np.int64)
    offsets = np.zeros(patterns + 1, np.int64)
    out_classes = np.empty(entries, np.int32)
    out_repeats = np.empty(entries, np.int32)
    p = 0
    for e in range(classes.size):
        if blocks[e] > 0:
            counts[p] = blocks[e]
            offsets[p + 1] = offsets[p] + depth[e]
            at = offsets[p + 1]
            link = e
            while link >= 0:
                at -= 1
                out_classes[at] = classes[link]
                out_repeats[at] = repeats[link]
                link = parents[link]
            p += 1
    return counts, offsets, out_classes, out_repeats


def best_fit_patterns(
    counts: npt.NDArray[np.int64], units: int, max_segments: int | None = None, into: Patterns | None = None
) -> Patterns:
    """Return the patterns of best-fit-decreasing on ``counts`` (int64 [units + 1], items of each length in units).

    A block with ``max_segments`` segments is closed, whatever its room. With ``into``, the blocks of these patterns are there
    already, and the items go into the room that they leave first; the result holds them too.

    >>> best_fit_patterns(np.array([0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0]), 10).num_blocks  # lengths 6, 5, 5, 4
    2
    """
    limit = 2**31 - 1 if max_segments is None else max_segments
    begun = NO_PATTERNS if into is None else into
    events = _events(np.asarray(counts, np.int64), units, limit, begun.counts, begun.offsets, begun.classes, begun.repeats)
    return Patterns(*_unwound(*events))
