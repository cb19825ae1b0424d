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

__all__ = ["lay", "number", "place", "shift"]


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
