"""Rows: packed rows in one form, whatever system wrote them. Every reader yields it, every rule reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.checking.conventions import BoundarySource, Convention
from cloison.checking.hits import Place
from cloison.segments import IGNORE, Segments

__all__ = ["Rows"]

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some packed rows, flat. A *cell* is a token position of a row, padding included.

    Attributes:
        convention: how their reader understands them.
        source: the column that states the boundaries ("position_ids" is a guess, "none" means a sample a row).
        input_ids: int [cells].
        row_offsets: int64 [rows + 1], cells of row r are ``[row_offsets[r]:row_offsets[r + 1]]``.
        segments: the boundaries; the segments of a row begin at its first cell, what they leave is padding.
        labels: int [cells] with the index of ``input_ids``, -100 where not a target, whatever the convention; or None where
            no column says what is trained.
        position_ids, attention_mask, loss_weights: [cells] or None.
        context: name of a mask column to bool [cells], True where it says that a token is no target.
        sample_ids, starts: int64 [segments] or None.
        unread_tails: int64, indices of rows with a target after their last token (shifted conventions).
        first_row, file: where the rows come from.
    """

    convention: Convention
    source: BoundarySource
    input_ids: npt.NDArray[Any]
    row_offsets: _Ints
    segments: Segments
    labels: npt.NDArray[Any] | None = None
    position_ids: npt.NDArray[Any] | None = None
    attention_mask: npt.NDArray[Any] | None = None
    loss_weights: npt.NDArray[Any] | None = None
    context: Mapping[str, _Bools] = field(default_factory=lambda: MappingProxyType({}))
    sample_ids: _Ints | None = None
    starts: _Ints | None = None
    unread_tails: _Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    first_row: int = 0
    file: str | None = None

    @property
    def num_rows(self) -> int:
        """Rows."""
        return int(self.row_offsets.size - 1)

    @cached_property
    def row_of_segment(self) -> _Ints:
        """int64 [segments], the row each segment lies in."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.segments.row_offsets))

    @cached_property
    def first_cells(self) -> _Ints:
        """int64 [segments], the cell of each segment's first token."""
        first = self.segments.first_tokens()
        if self.padding is None:
            return first
        skipped = self.row_offsets[:-1] - np.concatenate([[0], np.cumsum(self.segments.row_tokens)])[:-1]
        return np.asarray(first + skipped[self.row_of_segment])

    @cached_property
    def last_cells(self) -> _Ints:
        """int64 [segments], the cell of each segment's last token."""
        return self.first_cells + self.segments.seq_lengths - 1

    @cached_property
    def inner_first_cells(self) -> _Ints:
        """int64, first cells of the segments that another segment of the same row precedes."""
        return np.delete(self.first_cells, self.segments.row_offsets[:-1][np.diff(self.segments.row_offsets) > 0])

    @cached_property
    def padding(self) -> _Bools | None:
        """bool [cells], True at padding; None where there is none."""
        sizes, valid = np.diff(self.row_offsets), self.segments.row_tokens
        if np.array_equal(sizes, valid):
            return None
        rows = self.row_of_cell
        return np.asarray(np.arange(self.input_ids.size) - self.row_offsets[rows] >= valid[rows])

    @cached_property
    def row_of_cell(self) -> _Ints:
        """int64 [cells], the row of each cell."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.row_offsets))

    @cached_property
    def trained(self) -> _Bools | None:
        """bool [cells], True at targets; None where no column says."""
        return None if self.labels is None else self.labels != IGNORE

    def row_sums(self, flags: npt.NDArray[Any]) -> _Ints:
        """Return int64 [rows], how many of ``flags`` [cells] are set in each row."""
        return _sums(flags, self.row_offsets[:-1], self.row_offsets[1:])

    def segment_sums(self, flags: npt.NDArray[Any]) -> _Ints:
        """Return int64 [segments], how many of ``flags`` [cells] are set in each segment."""
        return _sums(flags, self.first_cells, self.last_cells + 1)

    def row_place(self, row: int) -> Place:
        """Return where row ``row`` of these rows is."""
        return Place(self.file, self.first_row + int(row))

    def cell_place(self, cell: int) -> Place:
        """Return where the cell ``cell`` of these rows is."""
        row = int(np.searchsorted(self.row_offsets, cell, "right")) - 1
        segment = int(np.searchsorted(self.first_cells, cell, "right")) - 1
        inside = segment >= 0 and cell <= int(self.last_cells[segment])
        position = int(cell - self.row_offsets[row])
        number = segment - int(self.segments.row_offsets[row]) if inside else None
        return Place(self.file, self.first_row + row, number, position)


def _sums(flags: npt.NDArray[Any], starts: _Ints, ends: _Ints) -> _Ints:
    if flags.dtype == bool and flags.size and starts.size and not flags.any():
        return np.zeros(starts.size, np.int64)
    total = np.zeros(flags.size + 1, np.int64)
    np.cumsum(flags, out=total[1:])
    return total[ends] - total[starts]
