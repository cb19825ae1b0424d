"""Proven lower bounds on the number of blocks, from the histogram alone.

- volume: the units of all items over the units of a block, rounded up (Martello and Toth's L1).
- martello_toth: L2 of Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem" (1990): for every
  threshold a, items over units - a stand alone, those over half stand in blocks of their own with room to spare, and what of
  the items of a or more does not fit that room needs blocks by volume. O(units).
- dual_feasible: Fekete and Schepers, "New classes of fast lower bounds for bin packing problems" (2001), the functions u(k),
  k = 1..16: lengths weighted by a function whose sum in a block is at most 1. O(16 units).
- segments: items over max_segments.

The bound of the linear program (see `optimal`) is stronger, and costs seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["dual_feasible", "lower_bound", "martello_toth", "volume"]


def volume(counts: npt.NDArray[np.int64], units: int) -> int:
    """Return the blocks that the units of all items fill."""
    return -(-_total(counts) // units)


def martello_toth(counts: npt.NDArray[np.int64], units: int) -> int:
    """Return L2 of items ``counts`` int64 [units + 1]."""
    weights = np.arange(counts.size, dtype=np.float64) * counts if _total(counts) > 2**62 else np.arange(counts.size) * counts
    number = np.concatenate([[0], np.cumsum(counts)])  # number[c]: items below class c
    weight = np.concatenate([[0], np.cumsum(weights)])
    half = units // 2
    threshold = np.arange(half + 1)
    above = number[-1] - number[half + 1]  # J1 and J2 together: items over half
    middle_number = number[units - threshold + 1] - number[half + 1]
    middle_weight = weight[units - threshold + 1] - weight[half + 1]
    small_weight = weight[half + 1] - weight[threshold]
    spare = middle_number * units - middle_weight
    further = np.maximum(0, -(-(small_weight - spare) // units))
    return int(above + further.max())


def dual_feasible(counts: npt.NDArray[np.int64], units: int, most: int = 16) -> int:
    """Return the best bound of the functions u(1) .. u(most)."""
    present = np.flatnonzero(counts)
    amounts = counts[present]
    best = 0
    for k in range(1, most + 1):
        scaled = present * (k + 1)
        rounded = scaled // units * units
        # k * u(k) in units of 1 / units: exact integers.
        values = np.where(rounded == scaled, present * k, rounded)
        best = max(best, -(-int(values @ amounts) // (k * units)))
    return best


def lower_bound(counts: npt.NDArray[np.int64], units: int, max_segments: int | None = None) -> tuple[int, str]:
    """Return (bound, name of the argument that gives it) of ``counts`` int64 [units + 1]."""
    bounds = [(volume(counts, units), "volume")]
    if _total(counts) < 2**58 // 17:
        bounds += [(martello_toth(counts, units), "martello_toth"), (dual_feasible(counts, units), "dual_feasible")]
    if max_segments is not None:
        bounds.append((-(-int(counts.sum()) // max_segments), "segments"))
    return max(bounds, key=lambda pair: pair[0])


def _total(counts: npt.NDArray[np.int64]) -> int:
    if counts.size > 2**24 or counts.max(initial=0) > 2**38:
        return sum(int(c) * int(counts[c]) for c in np.flatnonzero(counts))
    return int(np.dot(np.arange(counts.size), counts))
