"""Blocks laid into rows of fixed width: tokens, segment numbers, positions and shifted targets, each in one pass.

Compiled, since numpy's ways go over the tokens several times and make an array each time, which takes longer than reading
and writing them. All fill arrays that the caller keeps, and leave Python's lock free.

``lengths`` is int32 [segments], ``counts`` int64 [blocks], the segments of each block; ``rows`` is [blocks, width] and may lie
in strides. Nothing is checked: the lengths of a block sum to at most ``width``, and values hold an entry for each token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["lay", "number", "place", "shift", "starts"]


@njit(cache=True, nogil=True)
def lay(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    fill: int | float,
    rows: npt.NDArray[Any],
) -> None:
    """Put the values of each block into its row, with ``fill`` behind them."""
    segment = start = 0
    for block in range(counts.size):
        size = 0
        for _ in range(counts[block]):
            size += lengths[segment]
            segment += 1
        for token in range(size):
            rows[block, token] = values[start + token]
        for token in range(size, rows.shape[1]):
            rows[block, token] = fill
        start += size


@njit(cache=True, nogil=True)
def number(
    lengths: npt.NDArray[np.int32], counts: npt.NDArray[np.int64], first: int, fill: int, rows: npt.NDArray[np.int32]
) -> None:
    """Put the number of each token's segment in its block there, from ``first``, and ``fill`` behind the last segment."""
    segment = 0
    for block in range(counts.size):
        token = 0
        for inner in range(counts[block]):
            for _ in range(lengths[segment]):
                rows[block, token] = first + inner
                token += 1
            segment += 1
        for rest in range(token, rows.shape[1]):
            rows[block, rest] = fill


@njit(cache=True, nogil=True)
def place(lengths: npt.NDArray[np.int32], counts: npt.NDArray[np.int64], rows: npt.NDArray[np.int32]) -> None:
    """Put the place of each token in its segment there, from 0, and 0 behind the last segment."""
    segment = 0
    for block in range(counts.size):
        token = 0
        for _ in range(counts[block]):
            for inner in range(lengths[segment]):
                rows[block, token] = inner
                token += 1
            segment += 1
        for rest in range(token, rows.shape[1]):
            rows[block, rest] = 0


@njit(cache=True, nogil=True)
def shift(
    labels: npt.NDArray[np.int32],
    ignored: int,
    lengths: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int32],
) -> None:
    """Put at each token what it is asked to predict, the next label of its segment, and the segment's number from 1; 0 in
    both where nothing is asked (the label is ``ignored``) and at a segment's last token."""
    segment = start = 0
    for block in range(counts.size):
        token = 0
        for inner in range(counts[block]):
            last = lengths[segment] - 1
            for _ in range(last):
                label = labels[start + 1]
                targets[block, token] = 0 if label == ignored else label
                numbers[block, token] = 0 if label == ignored else inner + 1
                start += 1
                token += 1
            targets[block, token] = 0
            numbers[block, token] = 0
            start += 1
            token += 1
            segment += 1
        for rest in range(token, targets.shape[1]):
            targets[block, rest] = 0
            numbers[block, rest] = 0


@njit(cache=True, nogil=True)
def starts(levels: npt.NDArray[np.uint8], count: int, found: npt.NDArray[np.int64]) -> int:
    """Put the places of 0 among ``count`` levels of one bit there, and return how many; -1 where they are not such levels, or
    more than ``found`` holds.

    They are runs: twice a length, seven bits a byte with the lowest first, and the level; or, where that number is odd, half
    of it the bytes that follow, eight levels in each.
    """
    at = place = rows = 0
    while place < count:
        head = bits = 0
        while True:
            if at >= levels.size or bits > 28:
                return -1
            byte = int(levels[at])
            at += 1
            head |= (byte & 0x7F) << bits
            bits += 7
            if byte < 0x80:
                break
        apart = head & 1
        width = head >> 1 if apart else 1
        size = min(width * 8 if apart else head >> 1, count - place)
        if size < 1 or at + width > levels.size:
            return -1
        if apart or levels[at] == 0:
            for k in range(size):
                if not apart or (levels[at + (k >> 3)] >> (k & 7)) & 1 == 0:
                    if rows == found.size:
                        return -1
                    found[rows] = place + k
                    rows += 1
        at += width
        place += size
    return rows
