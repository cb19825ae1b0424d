"""Bounds: the segments of many rows, from whichever column states them, without a loop over rows.

Rows that no segments fit are reported and count as one segment, so that the other rules can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.checking.ragged import Ragged

__all__ = ["Bounds", "from_flags", "from_lengths", "from_numbers", "from_offsets", "from_positions", "from_starts", "one_each"]

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Bounds:
    """Segments of rows.

    Attributes:
        seq_lengths: int64 [segments], each at least 1.
        counts: int64 [rows], segments of each row.
        misfits: int64 [rows that do not fit], their indices.
        reason: what does not fit in the first of them.
    """

    seq_lengths: _Ints
    counts: _Ints
    misfits: _Ints
    reason: str = ""


def _rows_of(offsets: _Ints) -> _Ints:
    return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))


def _sums(values: npt.NDArray[Any], offsets: _Ints) -> _Ints:
    ends = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]])


def _settle(lengths: _Ints, rows: _Ints, sizes: _Ints, bad: _Bools, reason: Callable[[int], str]) -> Bounds:
    """Return Bounds in which each bad row is one segment of its whole size, or none where it is empty."""
    misfits = np.flatnonzero(bad)
    if misfits.size:
        keep = ~bad[rows]
        filled = misfits[sizes[misfits] > 0]
        lengths, rows = np.append(lengths[keep], sizes[filled]), np.append(rows[keep], filled)
        order = np.argsort(rows, kind="stable")
        lengths, rows = lengths[order], rows[order]
    counts = np.bincount(rows, minlength=sizes.size).astype(np.int64)
    return Bounds(lengths, counts, misfits, reason(int(misfits[0])) if misfits.size else "")


def one_each(sizes: _Ints) -> Bounds:
    """Return the Bounds in which each row that is not empty is one segment."""
    none = np.zeros(0, np.int64)
    return Bounds(sizes[sizes > 0], (sizes > 0).astype(np.int64), none)


def from_lengths(lengths: Ragged, sizes: _Ints, *, padded: bool) -> Bounds:
    """Return the Bounds of lengths [segments]; zeros vanish. ``padded`` rows may hold more tokens than the lengths sum to."""
    values = lengths.values.astype(np.int64)
    rows = _rows_of(lengths.offsets)
    sums = _sums(values, lengths.offsets)
    negative = np.zeros(sizes.size, bool)
    negative[rows[values < 0]] = True
    bad = negative | (sums > sizes) | ((sums < sizes) & (not padded))
    keep = values > 0

    def reason(row: int) -> str:
        if negative[row]:
            return "a length is negative"
        return f"the lengths sum to {sums[row]:,} and there are {sizes[row]:,} tokens"

    return _settle(values[keep], rows[keep], sizes, bad, reason)


def from_starts(starts: Ragged, sizes: _Ints) -> Bounds:
    """Return the Bounds of the places where segments start [segments], the first 0; the last segment ends with the row."""
    values, rows = starts.values.astype(np.int64), _rows_of(starts.offsets)
    last = np.append(rows[1:] != rows[:-1], True)[: values.size]
    lengths = np.where(last, sizes[rows], np.append(values[1:], 0)[: values.size]) - values
    bad = (starts.sizes == 0) & (sizes > 0)
    bad[rows[lengths <= 0]] = True
    first = starts.offsets[:-1][starts.sizes > 0]
    bad[rows[first[values[first] != 0]]] = True

    def reason(row: int) -> str:
        shown = values[starts.offsets[row] : starts.offsets[row + 1]][:6].tolist()
        return f"the starts {shown} must begin with 0, increase, and lie inside its {sizes[row]:,} tokens"

    return _settle(lengths, rows, sizes, bad, reason)


def from_offsets(offsets: Ragged, sizes: _Ints, *, padded: bool) -> Bounds:
    """Return the Bounds of cumulative offsets [segments + 1]; negative sentinels and repeats at the end are trimmed."""
    values, rows = offsets.values.astype(np.int64), _rows_of(offsets.offsets)
    real = values >= 0
    late = np.zeros(sizes.size, bool)
    after = np.flatnonzero(real[1:] & ~real[:-1] & (rows[1:] == rows[:-1])) + 1
    late[rows[after]] = True
    values, rows = values[real], rows[real]
    tops = np.zeros(sizes.size, np.int64)
    np.maximum.at(tops, rows, values)
    pair = np.flatnonzero(rows[1:] == rows[:-1])
    lengths, of_row = values[pair + 1] - values[pair], rows[pair + 1]
    trailing = (lengths == 0) & (values[pair] == tops[of_row])
    bad = late | ((np.bincount(rows, minlength=sizes.size) < 2) & (sizes > 0))
    bad[of_row[(lengths <= 0) & ~trailing]] = True
    first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1])[: rows.size])
    bad[rows[first[values[first] != 0]]] = True
    bad |= (tops > sizes) | ((tops < sizes) & (not padded))

    def reason(row: int) -> str:
        shown = offsets.values[offsets.offsets[row] : offsets.offsets[row + 1]][:6].tolist()
        return f"the offsets {shown} must begin with 0, increase, and end at its {sizes[row]:,} tokens"

    return _settle(lengths[~trailing], of_row[~trailing], sizes, bad, reason)


def from_flags(flags: _Bools, valid: _Ints, row_offsets: _Ints) -> Bounds:
    """Return the Bounds whose segments begin where ``flags`` [cells] is set, cut at ``valid`` [rows] tokens of each row."""
    rows = _rows_of(row_offsets)
    inside = np.arange(flags.size) - row_offsets[rows] < valid[rows]
    flags = flags & inside
    flags[row_offsets[:-1][valid > 0]] = True
    at = np.flatnonzero(flags)
    row = rows[at]
    last = np.append(row[1:] != row[:-1], True)[: at.size]
    ends = np.where(last, row_offsets[row] + valid[row], np.append(at[1:], 0)[: at.size])
    counts = np.bincount(row, minlength=valid.size).astype(np.int64)
    return Bounds(ends - at, counts, np.zeros(0, np.int64))


def from_numbers(numbers: Ragged, padding: int) -> tuple[Bounds, _Ints]:
    """Return the Bounds of segment numbers [cells] (``padding`` where none), and the rows that are not one run a segment."""
    values, offsets = numbers.values, numbers.offsets
    rows = _rows_of(offsets)
    real = values != padding
    valid = np.zeros(numbers.num_rows, np.int64)
    places = np.flatnonzero(real)
    np.maximum.at(valid, rows[places], places - offsets[rows[places]] + 1)
    holes = valid != _sums(real, offsets)
    changes = np.ones(values.size, bool)
    changes[1:] = (values[1:] != values[:-1]) | (rows[1:] != rows[:-1])
    bounds = from_flags(changes, valid, offsets)
    at = np.flatnonzero(changes & real)
    order = np.lexsort((values[at], rows[at]))
    again = (rows[at][order][1:] == rows[at][order][:-1]) & (values[at][order][1:] == values[at][order][:-1])
    back = np.zeros(numbers.num_rows, bool)
    back[rows[at][order][1:][again]] = True
    return bounds, np.flatnonzero(holes | back)


def from_positions(positions: Ragged, valid: _Ints) -> Bounds:
    """Return the Bounds that begin wherever a position is not one more than the last: what sdpa, eager and flex paths read."""
    values = positions.values
    breaks = np.ones(values.size, bool)
    breaks[1:] = values[1:] != values[:-1] + 1
    return from_flags(breaks, valid, positions.offsets)
