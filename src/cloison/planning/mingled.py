"""mingled: blocks of a drawn order, each finished by the longest that fit: a start for `optimal` under a limit of segments.

Where the limit binds, a good plan has long samples in company with short ones, and blocks that begin with whatever comes next
do. A block takes the samples of a keyed order while they fit; then, of the next `_AHEAD`, the longest that fits, or, where
none fills the block, the longer of the two that fill it best together.

Cost: about 60 ns a sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bijection import derive, permutation
from cloison.planning.bitset import add, at_most, discard, words

__all__ = ["mingled_sample"]

_AHEAD = 8192
_PAIRS = 8


@njit(cache=True, nogil=True)
def _mingled(classes: Any, units: int, limit: int) -> Any:
    """Return (the items block after block, ends of the blocks). ``waiting`` counts the pending items of each class."""
    n = classes.size
    waiting = np.zeros(units + 1, np.int64)
    bits, summary = words(units + 1)
    out = np.empty(n, np.int32)
    ends = np.empty(n, np.int64)
    owed = np.zeros(units + 1, np.int64)  # items of a class that left before their turn in the order
    oldest = entered = at = blocks = taken = 0
    room, in_order = units, True
    while True:
        while oldest < entered and owed[classes[oldest]] > 0:
            owed[classes[oldest]] -= 1
            oldest += 1
        while entered < n and entered - oldest < _AHEAD:
            if waiting[classes[entered]] == 0:
                add(bits, summary, classes[entered])
            waiting[classes[entered]] += 1
            entered += 1
        c = -1
        if oldest < entered and taken < limit and room > 0:
            in_order = in_order and classes[oldest] <= room
            if in_order:
                c = classes[oldest]
                oldest += 1
            else:
                c = at_most(bits, summary, room)
                if c >= 0 and c < room and taken + 1 < limit:
                    c = _longer_of_best_pair(bits, summary, waiting, c, room)
                if c >= 0:
                    owed[c] += 1
        if c < 0:
            if taken == 0:
                break
            ends[blocks] = at
            blocks += 1
            room, taken, in_order = units, 0, True
            continue
        waiting[c] -= 1
        if waiting[c] == 0:
            discard(bits, summary, c)
        out[at] = c
        at += 1
        taken += 1
        room -= c
    return out[:at], ends[:blocks]


@njit(cache=True, nogil=True)
def _longer_of_best_pair(bits: Any, summary: int, waiting: Any, longest: int, room: int) -> Any:
    """Return the longer of the two pending classes that fill ``room`` best, of the `_PAIRS` longest first ones that fit."""
    best, chosen = 0, longest
    c = longest
    for _ in range(_PAIRS):
        if c < 0 or 2 * c <= best:
            break
        other = at_most(bits, summary, min(c, room - c))
        if other == c and waiting[c] < 2:
            other = at_most(bits, summary, c - 1)
        both = c + max(other, 0)
        if both > best:
            best, chosen = both, c
            if best == room:
                break
        c = at_most(bits, summary, c - 1)
    return chosen


def mingled_sample(counts: npt.NDArray[np.int64], units: int, max_segments: int, samples: int) -> list[npt.NDArray[np.int32]]:
    """Return the lengths of each block of about ``samples`` items of ``counts``, none of which is of length 0."""
    total = int(counts.sum())
    classes = np.repeat(np.arange(counts.size, dtype=np.int32), -(-counts * min(samples, total) // total))
    classes = classes[permutation(classes.size, derive(0, 11))]
    blocks, ends = _mingled(classes, units, max_segments)
    return np.split(blocks, ends[:-1])
