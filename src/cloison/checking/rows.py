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
_MOSTLY = 0.9


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
        unsound: int64, indices of rows whose boundaries do not fit; their segments are a stopgap.
        unread_tails: int64, indices of rows with a target after their last token (shifted conventions).
        shifts: int64 [rows], how many tokens of padding stood before each row's first token and are counted as behind its last
            here; None where there were none.
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
    unsound: _Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    unread_tails: _Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    shifts: _Ints | None = None
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

    @cached_property
    def moved(self) -> npt.NDArray[np.bool_]:
        """Return bool [rows], True where the labels are those of the neighbouring tokens (nine in ten of a row's targets)."""
        ids, labels, trained = self.input_ids, self.labels, self.trained
        if labels is None or trained is None or not (off := trained & (labels != ids)).any():
            return np.zeros(self.num_rows, bool)
        filled = np.diff(self.row_offsets) > 0
        neighbour = np.zeros(ids.size, bool)
        if self.convention.labels == "shifted":
            # In the index of the tokens, targets that were never shifted stand one place late.
            neighbour[1:] = labels[1:] == ids[:-1]
            neighbour[self.row_offsets[:-1][filled]] = True
        else:
            # At the last place of a row there is no neighbour: a roll wraps around, and anything may stand there.
            neighbour[:-1] = labels[:-1] == ids[1:]
            neighbour[self.row_offsets[1:][filled] - 1] = True
        wanted = self.row_sums(trained)
        near = self.row_sums(trained & neighbour)
        own = wanted - self.row_sums(off)
        return np.asarray((near >= _MOSTLY * wanted) & (near > own) & (wanted > 0))

    def judged(self, cells: _Ints) -> _Ints:
        """Return those of ``cells`` whose row has sound boundaries and unmoved labels: the others' fault is told already."""
        if not cells.size or not (self.moved.any() or self.unsound.size):
            return cells
        skipped = self.moved.copy()
        skipped[self.unsound] = True
        return cells[~skipped[self.row_of_cell[cells]]]

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
        if self.shifts is not None:
            size = int(self.row_offsets[row + 1] - self.row_offsets[row])
            position = (position + int(self.shifts[row])) % size
        number = segment - int(self.segments.row_offsets[row]) if inside else None
        return Place(self.file, self.first_row + row, number, position)


def _sums(flags: npt.NDArray[Any], starts: _Ints, ends: _Ints) -> _Ints:
    if flags.dtype == bool and flags.size and starts.size and not flags.any():
        return np.zeros(starts.size, np.int64)
    total = np.zeros(flags.size + 1, np.int64)
    np.cumsum(flags, out=total[1:])
    return total[ends] - total[starts]
