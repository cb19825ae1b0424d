"""exact_fill: block after block, each filled as exactly as the items that are left allow, the longest of them first.

A block takes the longest item left, then of all sets of items that fill it best the one with the longest items: sums that can
be reached are a bitset, one row a length, and a set is read off the rows from the longest down. Each such block is repeated
while the counts allow. So little room is lost that `optimal` often has its proof here, where best-fit leaves 1 % and the
program of `linear_program` has too few blocks of each kind to round well: small data, and blocks of four samples or more.

A little slack a block (``slack``) may be allowed, so that longer items go first where they nearly fill.

Source: Gupta and Ho, "A new heuristic algorithm for the one-dimensional bin-packing problem" (1999), the minimum bin slack
heuristic, with the longest item fixed as in Fleszar and Hindi (2002); here on counts and by bitset instead of enumeration.
Cost: distinct lengths x units / 64 steps a kind of block, 1-300 ms in all, independent of the number of samples; beyond
`_WORK` steps a block looks at fewer lengths (the longest that fit, and some of each size below). What it gives up: where few
items fill a block (uniform on a fifth to half of the capacity) the first blocks are full and the last ones are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bitset import add, at_most, discard, words
from cloison.planning.patterns import NO_PATTERNS, Patterns
from cloison.planning.sums import add_length, last

__all__ = ["exact_fill_patterns", "fill_work", "joined", "picked"]

_WORK = 1 << 16
_ROWS = 48
_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def _choose_rows(live: Any, summary: int, room: int, most: int, rows: Any) -> Any:
    """Write the lengths to look at to ``rows``, longest first, and return how many: all that fit, or ``most`` of them."""
    n = 0
    c = at_most(live, summary, room)
    while c > 0 and n < most:
        rows[n] = c
        n += 1
        c = at_most(live, summary, c - 1)
    if c > 0:
        n = most // 2
        longest = rows[n - 1]
        for step in range(most - n):
            c = at_most(live, summary, min(longest * (most - n - step) // (most - n), rows[n - 1] - 1))
            if c <= 0:
                break
            rows[n] = c
            n += 1
    return n


@njit(cache=True, nogil=True)
def _filled(
    counts: Any, units: int, limit: int, slack: int, most: int, begun: Any, offsets: Any, classes: Any, repeats: Any
) -> Any:
    """Return (blocks, begun pattern or -1, offsets, classes, repeats) of what is put into each kind of block."""
    left = counts.copy()
    live, summary = words(units + 1)
    for c in range(1, units + 1):
        if left[c] > 0:
            add(live, summary, c)
    reach = np.empty((most + 1, units // 64 + 1), np.uint64)
    before = np.empty(units // 64 + 1, np.uint64)
    rows = np.empty(most, np.int64)
    out_blocks: Any = [np.int64(0) for _ in range(0)]
    out_begun: Any = [np.int64(0) for _ in range(0)]
    out_offsets: Any = [np.int64(0)]
    out_classes: Any = [np.int32(0) for _ in range(0)]
    out_repeats: Any = [np.int32(0) for _ in range(0)]
    p, open_blocks = 0, begun[0] if begun.size else 0
    while True:
        room, segments, first = units, 0, 0
        if p < begun.size:
            for e in range(offsets[p], offsets[p + 1]):
                room -= classes[e] * repeats[e]
                segments += repeats[e]
        else:
            first = at_most(live, summary, units)
            if first <= 0:
                break
            room -= first
            segments = 1
            left[first] -= 1
        n = _choose_rows(live, summary, room, most, rows) if segments < limit else 0
        size = room // 64 + 1
        reach[n, :size] = np.uint64(0)
        reach[n, 0] = _ONE
        for i in range(n - 1, -1, -1):  # reach[i]: the sums of lengths rows[i] and shorter
            length = rows[i]
            reach[i, :size] = reach[i + 1, :size]
            several, step = min(left[length], room // length), 1
            while several > 0:
                k = min(step, several)
                before[:size] = reach[i, :size]
                add_length(before, reach[i], k * length, size)
                several -= k
                step *= 2
        high = last(reach[0], room)
        low = max(min(high, room - slack), 0)
        start = len(out_classes)
        if first:
            out_classes.append(np.int32(first))
            out_repeats.append(np.int32(1))
        for i in range(n):
            if high <= 0 or segments == limit:
                break
            length = rows[i]
            k = min(min(left[length], high // length), limit - segments)
            while k > 0 and last(reach[i + 1], high - k * length) < max(low - k * length, 0):
                k -= 1
            if k > 0:
                if first == length:
                    out_repeats[start] += np.int32(k)
                else:
                    out_classes.append(np.int32(length))
                    out_repeats.append(np.int32(k))
                segments += k
                high -= k * length
                low = max(low - k * length, 0)
        if first:
            left[first] += 1
        if len(out_classes) == start:  # nothing fits these begun blocks
            p += 1
            open_blocks = begun[p] if p < begun.size else 0
            continue
        blocks = open_blocks if p < begun.size else left[first] // out_repeats[start]
        for e in range(start, len(out_classes)):
            blocks = min(blocks, left[out_classes[e]] // out_repeats[e])
        for e in range(start, len(out_classes)):
            left[out_classes[e]] -= blocks * out_repeats[e]
            if left[out_classes[e]] == 0:
                discard(live, summary, out_classes[e])
        out_blocks.append(blocks)
        out_begun.append(p if p < begun.size else -1)
        out_offsets.append(len(out_classes))
        if p < begun.size:
            open_blocks -= blocks
            if open_blocks == 0:
                p += 1
                open_blocks = begun[p] if p < begun.size else 0
    return np.array(out_blocks), np.array(out_begun), np.array(out_offsets), np.array(out_classes), np.array(out_repeats)


def exact_fill_patterns(
    counts: npt.NDArray[np.int64],
    units: int,
    max_segments: int | None = None,
    into: Patterns | None = None,
    slack: int = 0,
) -> Patterns:
    """Return patterns that take all of ``counts`` (int64 [units + 1], items of each length in units).

    Args:
        max_segments: a block with so many segments is closed, whatever its room.
        into: blocks that are there already: their room is filled first; the result holds them too.
        slack: units that a block may be short of the best fill, for longer items.

    >>> counts = np.bincount([6, 5, 5, 4, 3, 3, 4], minlength=11)
    >>> exact_fill_patterns(counts, 10).num_blocks
    3
    """
    begun = NO_PATTERNS if into is None else into
    counts = np.asarray(counts, np.int64)
    if not counts.any():
        return begun
    limit = 2**31 - 1 if max_segments is None else max_segments
    most = min(max(_ROWS, _WORK // (units // 64 + 1)), int(np.count_nonzero(counts)))
    room = np.flatnonzero((begun.units() < units) & (begun.segments() < limit))
    opened = picked(begun, room)
    blocks, owner, offsets, classes, repeats = _filled(
        counts, units, limit, slack, max(most, 2), opened.counts, opened.offsets, opened.classes, opened.repeats
    )
    return _put_into(begun, room, Patterns(blocks, offsets, classes, repeats), owner)


def fill_work(counts: npt.NDArray[np.int64], units: int) -> int:
    """Return about how many steps `exact_fill_patterns` takes for ``counts``."""
    distinct, width = int(np.count_nonzero(counts)), units // 64 + 1
    return distinct * min(distinct * width, max(_WORK, _ROWS * width))


def picked(patterns: Patterns, which: npt.NDArray[np.int64]) -> Patterns:
    """Return the patterns numbered ``which``."""
    sizes = np.diff(patterns.offsets)[which]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    at = np.repeat(patterns.offsets[which] - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Patterns(patterns.counts[which], offsets, patterns.classes[at], patterns.repeats[at])


def _put_into(begun: Patterns, room: npt.NDArray[np.int64], put: Patterns, owner: npt.NDArray[np.int64]) -> Patterns:
    """Return ``begun`` with what was ``put`` into its blocks (owner: into which of ``room``, -1 into new ones)."""
    left = begun.counts.copy()
    own = owner >= 0
    np.subtract.at(left, room[owner[own]], put.counts[own])
    kept, fresh = picked(begun, np.flatnonzero(left)), picked(put, np.flatnonzero(~own))
    head, tail = picked(begun, room[owner[own]]), picked(put, np.flatnonzero(own))
    sizes = np.diff(head.offsets) + np.diff(tail.offsets)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    at = np.concatenate(
        [
            np.arange(part.classes.size) + np.repeat(offset, np.diff(part.offsets))
            for part, offset in ((head, offsets[:-1] - head.offsets[:-1]), (tail, offsets[1:] - tail.offsets[1:]))
        ]
    )
    classes, repeats = np.empty(at.size, np.int32), np.empty(at.size, np.int32)
    classes[at] = np.concatenate([head.classes, tail.classes])
    repeats[at] = np.concatenate([head.repeats, tail.repeats])
    parts = (
        Patterns(left[left > 0], kept.offsets, kept.classes, kept.repeats),
        Patterns(put.counts[own], offsets, classes, repeats),
        fresh,
    )
    return joined(*parts)


def joined(*parts: Patterns) -> Patterns:
    """Return the patterns of all ``parts``, one after the other."""
    before = np.cumsum([0, *(part.classes.size for part in parts)])
    return Patterns(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([[0], *(part.offsets[1:] + at for part, at in zip(parts, before, strict=False))]).astype(np.int64),
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.repeats for part in parts]),
    )
