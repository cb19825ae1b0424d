"""Proven lower bounds on the number of blocks, from the histogram alone.

- volume: the units of all items over the units of a block, rounded up (Martello and Toth's L1).
- martello_toth: L2 of Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem" (1990): for every
  threshold a, items over units - a stand alone, those over half stand in blocks of their own with room to spare, and what of
  the items of a or more does not fit that room needs blocks by volume. O(units).
- dual_feasible: Fekete and Schepers, "New classes of fast lower bounds for bin packing problems" (2001), the functions u(k),
  k = 1..16: lengths weighted by a function whose sum in a block is at most 1. O(16 distinct lengths).
- segments: items over max_segments.

The bound of the linear program (see `optimal`) is stronger, and costs seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["dual_feasible", "lower_bound", "martello_toth", "volume"]


def volume(counts: npt.NDArray[np.int64], units: int) -> int:
    """Return the blocks that the units of all items fill."""
    return -(-_total(*_present(counts)) // units)


def martello_toth(counts: npt.NDArray[np.int64], units: int) -> int:
    """Return L2 of items ``counts`` int64 [units + 1].

    Between two lengths the bound of a threshold only grows, so the lengths up to half a block are thresholds enough.
    """
    return _martello_toth(*_present(counts), units)


def dual_feasible(counts: npt.NDArray[np.int64], units: int, most: int = 16) -> int:
    """Return the best bound of the functions u(1) .. u(most)."""
    return _dual_feasible(*_present(counts), units, most)


def lower_bound(counts: npt.NDArray[np.int64], units: int, max_segments: int | None = None) -> tuple[int, str]:
    """Return (bound, name of the argument that gives it) of ``counts`` int64 [units + 1]."""
    lengths, amounts = _present(counts)
    total = _total(lengths, amounts)
    bounds = [(-(-total // units), "volume")]
    if total < 2**58 // 17:
        bounds.append((_martello_toth(lengths, amounts, units), "martello_toth"))
        bounds.append((_dual_feasible(lengths, amounts, units, 16), "dual_feasible"))
    if max_segments is not None:
        bounds.append((-(-int(amounts.sum()) // max_segments), "segments"))
    return max(bounds, key=lambda pair: pair[0])


_Ints = npt.NDArray[np.int64]


def _present(counts: _Ints) -> tuple[_Ints, _Ints]:
    """Return (the lengths that there are, how many of each): few, however large a block is."""
    lengths = np.flatnonzero(counts)
    return lengths, np.asarray(counts, np.int64)[lengths]


def _total(lengths: _Ints, amounts: _Ints) -> int:
    """Return the units of all items, exact also where int64 does not hold them."""
    if lengths.size and int(lengths[-1]) * float(amounts.sum(dtype=np.float64)) > 2**62:
        return sum(length * amount for length, amount in zip(lengths.tolist(), amounts.tolist(), strict=True))
    return int(lengths @ amounts)


def _martello_toth(lengths: _Ints, amounts: _Ints, units: int) -> int:
    number = _sums(amounts)  # number[i]: items of the first i lengths
    weight = _sums(amounts * lengths)
    half = int(np.searchsorted(lengths, units // 2, side="right"))
    thresholds = lengths[:half]
    fitting = np.searchsorted(lengths, units - thresholds, side="right")  # what is longer stands alone
    spare = (number[fitting] - number[half]) * units - (weight[fitting] - weight[half])
    further = -(-(weight[half] - weight[:half] - spare) // units)
    return int(number[-1] - number[half] + max(further.max(initial=0), 0))


def _dual_feasible(lengths: _Ints, amounts: _Ints, units: int, most: int) -> int:
    best = 0
    for k in range(1, most + 1):
        scaled = lengths * (k + 1)
        rounded = scaled // units * units
        # k * u(k) in units of 1 / units: exact integers.
        values = np.where(rounded == scaled, lengths * k, rounded)
        best = max(best, -(-int(values @ amounts) // (k * units)))
    return best


def _sums(values: _Ints) -> _Ints:
    sums = np.zeros(values.size + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
