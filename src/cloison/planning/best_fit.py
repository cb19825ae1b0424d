"""best_fit: best-fit-decreasing, decided on the histogram of lengths alone.

Item by item, best-fit-decreasing takes the longest item first and puts it into the fullest block that still has room. All
items of one length meet the same choice, so it can be made for all at once: the smallest room ``r >= l`` that some block has,
k = r // l items into each block of that room, as many blocks as there are items for. Blocks of one history are one group, so
each such move is one event, about two a distinct length in practice, and the groups at the end are the patterns. The blocks
are those that item-by-item best-fit-decreasing gives.

Source: Johnson's BFD (1974); on counts, the observation of Krell et al. 2021 ("Efficient sequence packing without
cross-contamination") for a histogram packer, made exact. Cost: O(distinct lengths + events), 0.1-0.3 ms at 2,048 to 8,192
units, independent of the number of samples. What it gives up: blocks hold like lengths (see `composition`); on narrow
distributions it is 0.2-6.5 % above the optimum (see `optimal`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bitset import add, at_least, discard, words
from cloison.planning.patterns import NO_PATTERNS, Patterns

__all__ = ["best_fit_patterns"]


class _Groups(NamedTuple):
    """Groups of blocks of one history, as parallel arrays, one entry an event."""

    classes: Any
    repeats: Any
    parents: Any  # the event before, -1: first in its block
    blocks: Any  # how many blocks end there
    used: Any  # segments so far
    after: Any  # the next open group of the same room


class _Progress(NamedTuple):
    """What is placed, and the open groups by their room."""

    heads: Any  # [units + 1], the first open group of each room, or -1
    bits: Any  # the rooms that have one
    summary: Any
    state: Any  # [3]: the length that is being placed, how many of it are left, events so far


@njit(cache=True, nogil=True)
def _begin(groups: Any, progress: Any, units: int, limit: int, counts: Any, offsets: Any, classes: Any, repeats: Any) -> None:
    """Put in the blocks of the given patterns, as groups with what room they have left."""
    at = 0
    for p in range(counts.size):
        room, before = units, 0
        for e in range(offsets[p], offsets[p + 1]):
            room -= classes[e] * repeats[e]
            before += repeats[e]
            groups.classes[at] = classes[e]
            groups.repeats[at] = repeats[e]
            groups.parents[at] = at - 1 if e > offsets[p] else -1
            groups.blocks[at] = 0
            groups.used[at] = before
            at += 1
        groups.blocks[at - 1] = counts[p]
        if room > 0 and before < limit:
            groups.after[at - 1] = progress.heads[room]
            progress.heads[room] = at - 1
            add(progress.bits, progress.summary, room)
    progress.state[2] = at


@njit(cache=True, nogil=True, error_model="numpy")
def _go_on(groups: Any, progress: Any, counts: Any, units: int, limit: int) -> None:
    """Place the items of ``counts`` from ``state`` on, until none is left (then its length is 0) or the arrays are full."""
    classes, repeats, parents, blocks, used, after = groups
    heads, bits, summary, state = progress
    length, left, at = state
    while length > 0:
        while left > 0 and at < classes.size:
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
            classes[at] = length
            repeats[at] = k
            parents[at] = parent
            blocks[at] = take
            used[at] = before + k
            room -= length * k
            if room > 0 and before + k < limit:
                after[at] = heads[room]
                heads[room] = at
                add(bits, summary, room)
            at += 1
        if left > 0:
            break
        length -= 1
        left = counts[length]
    state[0], state[1], state[2] = length, left, at


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
    counts = np.asarray(counts, np.int64)
    size = 1024 + begun.classes.size + 4 * int(np.count_nonzero(counts))
    kinds = (np.int32, np.int32, np.int64, np.int64, np.int32, np.int64)
    groups = _Groups(*(np.empty(size, kind) for kind in kinds))
    bits, summary = words(units + 1)
    progress = _Progress(np.full(units + 1, -1, np.int64), bits, summary, np.array([counts.size - 1, counts[-1], 0]))
    _begin(groups, progress, units, limit, begun.counts, begun.offsets, begun.classes, begun.repeats)
    _go_on(groups, progress, counts, units, limit)
    while progress.state[0] > 0:  # more events than expected: arrays grow out here, since a loop that may do so is far slower
        groups = _Groups(*(np.concatenate([array, np.empty_like(array)]) for array in groups))
        _go_on(groups, progress, counts, units, limit)
    made = int(progress.state[2])
    return Patterns(*_unwound(*(array[:made] for array in groups[:4])))
