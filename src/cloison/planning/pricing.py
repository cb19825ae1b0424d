"""pricing: the dearest pattern at given prices of the lengths, and for each length the dearest that holds it. A knapsack.

Three forms of one dynamic program over the capacity:

- plain: any number of segments of each length. O(lengths x units).
- scarce: no more segments of a length than there are: what few samples, or the rest of a plan, ask for. A row a length is
  kept, 4 bytes x lengths x units. O(lengths x units x segments of one length).
- layered: at most so many segments in a block. O(lengths x units x segments).

Prices are integers, so the dearest is exact, and what `linear_program` proves with it is proven.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import require

__all__ = ["priced"]


@njit(cache=True, nogil=True)
def _knapsack(lengths: Any, prices: Any, units: int, layers: int) -> Any:
    """Return (best, choice) [layers + 1, units + 1]: the dearest pattern within each room, and one length of it (-1: none).

    With ``layers`` 0 a pattern has any number of segments (one layer that refers to itself), else at most as many as the layer.
    """
    depth = max(layers, 1)
    best = np.zeros((depth + 1, units + 1), np.int64)
    choice = np.full((depth + 1, units + 1), -1, np.int32)
    for j in range(1, depth + 1):
        below = j if layers == 0 else j - 1
        for c in range(1, units + 1):
            value = best[j, c - 1]
            chosen = np.int32(-2)
            for i in range(lengths.size):
                if lengths[i] > c:
                    break
                found = best[below, c - lengths[i]] + prices[i]
                if found > value:
                    value = found
                    chosen = np.int32(i)
            best[j, c] = value
            choice[j, c] = chosen
    return best, choice


@njit(cache=True, nogil=True)
def _patterns_with(lengths: Any, units: int, layers: int, choice: Any) -> Any:
    """Return (rows, pointers): for each length the dearest pattern that holds it, as row numbers with repeats."""
    rows = np.empty(lengths.size * 8 + units, np.int32)
    pointers = np.zeros(lengths.size + 1, np.int32)
    at = 0
    for i in range(lengths.size):
        if at + units + 1 > rows.size:
            rows = np.concatenate((rows, np.empty(rows.size + units, np.int32)))
        rows[at] = i
        at += 1
        room = units - lengths[i]
        layer = layers - 1 if layers else 1
        while room > 0 and layer > 0:
            chosen = choice[layer, room]
            if chosen == -1:
                break
            if chosen == -2:
                room -= 1
                continue
            rows[at] = chosen
            at += 1
            room -= lengths[chosen]
            if layers:
                layer -= 1
        pointers[i + 1] = at
    return rows[:at].copy(), pointers


@njit(cache=True, nogil=True)
def _scarce_knapsack(lengths: Any, prices: Any, counts: Any, units: int) -> Any:
    """Return (best [units + 1], last, taken [lengths + 1, units + 1]) with at most ``counts`` segments of each length.

    ``last[i, c]`` is the last of the first i lengths in the dearest pattern of these within room c (-1: none), and
    ``taken[i, c]`` how many of it.
    """
    best = np.zeros(units + 1, np.int64)
    last = np.empty((lengths.size + 1, units + 1), np.int16)
    taken = np.zeros((lengths.size + 1, units + 1), np.int16)
    last[0] = -1
    for i in range(lengths.size):
        last[i + 1] = last[i]
        taken[i + 1] = taken[i]
        length, price = lengths[i], prices[i]
        if price <= 0:
            continue
        most = min(counts[i], units // length)
        if (most + 1) * length > units:
            for c in range(length, units + 1):
                if best[c - length] + price > best[c]:
                    best[c] = best[c - length] + price
                    taken[i + 1, c] = taken[i + 1, c - length] + 1 if last[i + 1, c - length] == i else 1
                    last[i + 1, c] = i
        else:
            for c in range(units, length - 1, -1):
                for k in range(1, min(most, c // length) + 1):
                    found = best[c - k * length] + k * price
                    if found > best[c]:
                        best[c] = found
                        last[i + 1, c] = i
                        taken[i + 1, c] = k
    return best, last, taken


@njit(cache=True, nogil=True)
def _scarce_patterns(lengths: Any, counts: Any, units: int, last: Any, taken: Any) -> Any:
    """Return (rows, repeats, pointers): for each length the dearest pattern that holds it, or one near it; and the dearest."""
    rows = np.empty(lengths.size * 8 + units, np.int32)
    repeats = np.empty(rows.size, np.float64)
    pointers = np.zeros(lengths.size + 2, np.int32)
    at = 0
    for i in range(lengths.size + 1):
        if at + units + 1 > rows.size:
            repeats = np.concatenate((repeats, np.empty(rows.size + units, np.float64)))
            rows = np.concatenate((rows, np.empty(rows.size + units, np.int32)))
        own, room = at, units
        if i < lengths.size:
            rows[at] = i
            repeats[at] = 1.0
            at += 1
            room -= lengths[i]
        stage = lengths.size
        while stage > 0 and last[stage, room] >= 0:
            j, k = last[stage, room], taken[stage, room]
            room -= k * lengths[j]
            stage = j
            if j == i:
                repeats[own] = min(1 + k, counts[i])
            else:
                rows[at] = j
                repeats[at] = k
                at += 1
        pointers[i + 1] = at
    return rows[:at].copy(), repeats[:at].copy(), pointers


def priced(
    lengths: npt.NDArray[np.int64], prices: npt.NDArray[np.int64], units: int, layers: int, counts: npt.NDArray[np.int64] | None
) -> tuple[int, Any]:
    """Return (the price of the dearest pattern, a CSC matrix [lengths, patterns] with the dearest for each length).

    Args:
        lengths: rising, distinct, at most 32,767 of them where ``counts`` are given.
        layers: segments a pattern holds at most; 0: any number.
        counts: how many samples of each length there are at most; None: enough of each. Not heeded with ``layers``.
    """
    sparse = require("scipy.sparse", "optimal")
    if counts is None or layers:
        best, choice = _knapsack(lengths, prices, units, layers)
        dearest = int(best[-1, -1])
        rows, pointers = _patterns_with(lengths, units, layers, choice)
        repeats = np.ones(rows.size)
    else:
        value, last, taken = _scarce_knapsack(lengths, prices, counts, units)
        dearest = int(value[-1])
        rows, repeats, pointers = _scarce_patterns(lengths, counts, units, last, taken)
    columns = sparse.csc_matrix((repeats, rows, pointers), shape=(lengths.size, pointers.size - 1))
    columns.sum_duplicates()
    return dearest, columns
