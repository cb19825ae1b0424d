"""Segments: the boundaries of packed rows, made once from lengths, and every view that a consumer reads.

A `Segments` is what `planning` makes and `forms` consume. It holds real lengths only; padding is what lies between the last
segment of a row and the row's width. All views are numpy arrays, read-only, computed on demand and never cached.

The file is long because it is one value: four ways to build it, checked, and the views whose agreement is its meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloison.errors import BoundaryError, InputError

__all__ = ["IGNORE", "Segments"]

IGNORE = -100
"""The label of a token that is not a target (the value that torch's cross entropy ignores)."""

_INT32_MAX = 2**31 - 1


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array


def _integers(values: npt.ArrayLike, name: str, ndim: int | None = 1) -> npt.NDArray[np.int64]:
    """Return ``values`` as int64, or raise: no floats, no booleans, no ragged nesting."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BoundaryError(f"{name} must be integers.", "The rows have different lengths.", "Pass one array.") from error
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise BoundaryError(f"{name} must be integers.", f"Its dtype is {array.dtype}.", "Cast it to int32 or int64.")
    if ndim is not None and array.ndim != ndim:
        raise BoundaryError(f"{name} must have {ndim} axes.", f"Its shape is {list(array.shape)}.", "Reshape it.")
    return array.astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Segments:
    """The segments of one or more rows. Build it with `from_lengths` or another ``from_*``.

    Attributes:
        seq_lengths: int32 [segments], the real length of each segment, row after row, each at least 1.
        row_offsets: int64 [rows + 1], the segments of row r are ``seq_lengths[row_offsets[r]:row_offsets[r + 1]]``.
        capacity: the width of every row in tokens, or None where a row is as wide as the longest.
    """

    seq_lengths: npt.NDArray[np.int32]
    row_offsets: npt.NDArray[np.int64]
    capacity: int | None = None

    # ------------------------------------------------------------------ building

    @classmethod
    def from_lengths(cls, rows: Sequence[Any] | npt.NDArray[Any], capacity: int | None = None) -> Segments:
        """Return the Segments of ``rows``, a list of rows of lengths; a flat list of lengths is one row.

        Lengths of 0 are no segments and vanish (the ledger counts them).

        Raises:
            BoundaryError: a length is negative or no integer, or a row sums to more than ``capacity``.

        >>> Segments.from_lengths([[3, 2], [4]], capacity=8).segment_ids().tolist()
        [[1, 1, 1, 2, 2, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
        """
        if isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu":
            rows = [rows]
        listed = list(rows)
        if listed and not any(isinstance(row, (Sequence, np.ndarray)) for row in listed):
            listed = [listed]
        arrays = [_integers(row, f"row {index} of the lengths") for index, row in enumerate(listed)]
        kept = [array[array != 0] for array in arrays]
        counts = [array.size for array in kept]
        flat = np.concatenate(kept) if kept else np.zeros(0, np.int64)
        return cls._checked(flat, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), capacity)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: npt.ArrayLike, capacity: int | None = None, row_length: int | None = None) -> Segments:
        """Return the Segments of cumulative offsets [segments + 1].

        Negative sentinels at the end (-1, as fixed-size buffers have them) and repeats of the last offset are trimmed. With
        ``row_length`` the offsets run over a flattened [B * row_length], every row edge must be an offset, and each row's
        segments are real ones (drop the padding tails first, or they count as segments).

        Raises:
            BoundaryError: no leading 0, an offset that does not increase, or a row edge inside a segment.
        """
        offsets = _integers(cu_seqlens, "cu_seqlens")
        while offsets.size and offsets[-1] < 0:
            offsets = offsets[:-1]
        while offsets.size > 1 and offsets[-1] == offsets[-2]:
            offsets = offsets[:-1]
        if offsets.size == 0 or offsets[0] != 0:
            raise BoundaryError("cu_seqlens must start with 0.", f"It is {offsets[:4].tolist()}...", "Prepend 0.")
        lengths = np.diff(offsets)
        if (lengths <= 0).any():
            where = int(np.flatnonzero(lengths <= 0)[0])
            raise BoundaryError(
                "cu_seqlens must increase.",
                f"Entry {where + 1} is {offsets[where + 1]} after {offsets[where]}.",
                "Drop empty segments; only trailing repeats are trimmed.",
            )
        if row_length is None:
            return cls._checked(lengths, np.array([0, lengths.size], np.int64), capacity)
        total = int(offsets[-1])
        edges = np.arange(0, total + 1, row_length, dtype=np.int64)
        places = np.searchsorted(offsets, edges)
        if total % row_length or not np.array_equal(offsets[places], edges):
            raise BoundaryError(
                f"every row edge (multiples of {row_length}) must be an offset of cu_seqlens.",
                f"The offsets {offsets[:8].tolist()}... miss one.",
                "Pass covering offsets, or the row_length they were made with.",
            )
        return cls._checked(lengths, places.astype(np.int64), capacity if capacity is not None else row_length)

    @classmethod
    def from_segment_ids(cls, segment_ids: npt.ArrayLike, padding: int = 0) -> Segments:
        """Return the Segments of rows [B, T] (or one row [T]) of ids, equal inside a segment, ``padding`` after the last.

        Any ids do, as long as neighbours differ; their values and order mean nothing else.

        Raises:
            BoundaryError: padding before or between segments, or an id that comes back after another one.
        """
        ids = _integers(segment_ids, "segment_ids", None)
        ids = ids[None] if ids.ndim == 1 else ids
        if ids.ndim != 2:
            raise BoundaryError("segment_ids must be [T] or [B, T].", f"The shape is {list(ids.shape)}.", "Reshape it.")
        rows = []
        for index, row in enumerate(ids):
            real = np.flatnonzero(row != padding)
            size = int(real[-1]) + 1 if real.size else 0
            if real.size != size:
                raise BoundaryError(
                    f"row {index}: padding may only follow the last segment.",
                    f"Position {int(np.flatnonzero(row[:size] == padding)[0])} is padding and position {size - 1} is not.",
                    "Right-pad the rows.",
                )
            starts = np.flatnonzero(np.diff(row[:size], prepend=row[0] - 1 if size else 0))
            if np.unique(row[starts]).size != starts.size:
                raise BoundaryError(
                    f"row {index}: a segment is one unbroken run.", "An id comes back after another one.", "Renumber."
                )
            rows.append(np.diff(np.append(starts, size)))
        return cls.from_lengths(rows, capacity=ids.shape[1])

    @classmethod
    def from_position_ids(cls, position_ids: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Segments:
        """Return the Segments that positions suggest: a new one wherever a position is not one more than the last.

        This is a guess, and callers say so: a padding tail counts as a segment unless ``lengths`` [B] (valid tokens a row)
        is given. Positions may start anywhere. Shapes: [T], [B, T], [4, B, T] (text plane first) or [3, B, T] (M-RoPE, where
        a new segment is where the first axis falls, since a grid repeats and skips positions).
        """
        positions = _integers(position_ids, "position_ids", None)
        if positions.ndim == 3 and positions.shape[0] not in (3, 4):
            raise BoundaryError(
                "position_ids with three axes are [3, B, T] or [4, B, T].",
                f"The shape is {list(positions.shape)}.",
                "Put the axes first.",
            )
        grid = positions.ndim == 3 and positions.shape[0] == 3
        positions = positions[0] if positions.ndim == 3 else np.atleast_2d(positions)
        if positions.ndim != 2:
            raise BoundaryError("position_ids must be [T] or [B, T].", f"The shape is {list(positions.shape)}.", "Reshape.")
        sizes = np.full(len(positions), positions.shape[1]) if lengths is None else _integers(lengths, "lengths")
        if sizes.size != len(positions) or (sizes.size and not 0 <= sizes.min() <= sizes.max() <= positions.shape[1]):
            raise BoundaryError(
                f"lengths must be [{len(positions)}] of 0 to {positions.shape[1]} valid tokens.",
                f"They are {sizes[:8].tolist()}.",
                "Pass the valid tokens of each row.",
            )
        rows = []
        for row, size in zip(positions, sizes, strict=True):
            steps = np.diff(row[:size])
            breaks = np.flatnonzero(steps < 0 if grid else steps != 1) + 1
            rows.append(np.diff(np.concatenate([[0], breaks, [size]])))
        return cls.from_lengths(rows, capacity=positions.shape[1])

    @classmethod
    def _checked(cls, lengths: npt.NDArray[np.int64], row_offsets: npt.NDArray[np.int64], capacity: int | None) -> Segments:
        if lengths.size and int(lengths.min()) < 0:
            where = int(np.flatnonzero(lengths < 0)[0])
            raise BoundaryError("lengths are 0 or more tokens.", f"Length {where} is {lengths[where]}.", "Pass real lengths.")
        if lengths.size and int(lengths.max()) > _INT32_MAX:
            raise BoundaryError("a length must fit int32.", f"The longest is {lengths.max()}.", "Split the sample.")
        if capacity is not None and capacity < 1:
            raise InputError("capacity must be at least 1 token.", f"It is {capacity}.", "Raise it.")
        sums = np.add.reduceat(np.append(lengths, 0), row_offsets[:-1]) if row_offsets.size > 1 else np.zeros(0, np.int64)
        sums[np.diff(row_offsets) == 0] = 0
        if capacity is not None and sums.size and int(sums.max()) > capacity:
            row = int(np.flatnonzero(sums > capacity)[0])
            raise BoundaryError(
                f"a row holds at most {capacity} tokens.",
                f"Row {row} has {int(sums[row])} ({int((sums > capacity).sum())} of {sums.size} rows are over).",
                "Raise capacity, or plan again.",
            )
        return cls(_frozen(lengths.astype(np.int32)), _frozen(row_offsets), capacity)

    # ------------------------------------------------------------------ sizes

    @property
    def num_rows(self) -> int:
        """Rows."""
        return int(self.row_offsets.size - 1)

    @property
    def num_segments(self) -> int:
        """Segments in all rows."""
        return int(self.seq_lengths.size)

    @property
    def num_tokens(self) -> int:
        """Valid tokens in all rows."""
        return int(self.seq_lengths.sum(dtype=np.int64))

    @property
    def row_tokens(self) -> npt.NDArray[np.int64]:
        """int64 [rows], valid tokens of each row."""
        ends = np.concatenate([[0], np.cumsum(self.seq_lengths, dtype=np.int64)])
        return _frozen(ends[self.row_offsets[1:]] - ends[self.row_offsets[:-1]])

    @property
    def width(self) -> int:
        """T: the capacity where one is given, else the valid tokens of the fullest row."""
        if self.capacity is not None:
            return self.capacity
        return int(self.row_tokens.max(initial=0))

    @property
    def max_seqlen(self) -> int:
        """The longest segment in tokens (0 when there is none); a host integer."""
        return int(self.seq_lengths.max(initial=0))

    def rows(self) -> list[list[int]]:
        """Return the lengths as lists, a row each."""
        return [self.seq_lengths[a:b].tolist() for a, b in zip(self.row_offsets, self.row_offsets[1:], strict=False)]

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> Segments:
        """Return row ``row`` as Segments of its own."""
        index = range(self.num_rows)[row]
        a, b = int(self.row_offsets[index]), int(self.row_offsets[index + 1])
        return Segments(self.seq_lengths[a:b], _frozen(np.array([0, b - a], np.int64)), self.capacity)

    def __iter__(self) -> Iterator[Segments]:
        return (self[row] for row in range(self.num_rows))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Segments)
            and self.capacity == other.capacity
            and np.array_equal(self.row_offsets, other.row_offsets)
            and np.array_equal(self.seq_lengths, other.seq_lengths)
        )

    def __hash__(self) -> int:
        return hash((self.capacity, self.row_offsets.tobytes(), self.seq_lengths.tobytes()))

    def __repr__(self) -> str:
        shown = self.rows() if self.num_segments <= 32 else f"<{self.num_rows} rows, {self.num_segments} segments>"
        return f"Segments({shown}, capacity={self.capacity})"

    # ------------------------------------------------------------------ views

    def cu_seqlens(self, *, covering: bool = False, static: int | None = None) -> npt.NDArray[np.int32]:
        """Return cumulative offsets, int32 [segments + 1], from 0 and strictly increasing.

        Args:
            covering: offsets over the flattened [B * T], with each row's padding tail as a segment of its own; without it
                they run over the valid tokens of all rows, one row after the other.
            static: a fixed number n of segments for compiled kernels: covering offsets padded to n + 2 entries by repeating
                the last (n segments, the padding tail, and the leading 0). The consumer's max_seqlen is then `width`.

        Raises:
            BoundaryError: more segments than ``static`` allows, or more tokens than int32 counts.
        """
        positions = self.num_rows * self.width if covering or static is not None else self.num_tokens
        if positions > _INT32_MAX:
            raise BoundaryError("cu_seqlens are int32.", f"There are {positions:,} positions.", "Take fewer rows at a time.")
        if not covering and static is None:
            return _frozen(np.concatenate([[0], np.cumsum(self.seq_lengths, dtype=np.int64)]).astype(np.int32))
        lengths: list[int] = []
        for row, tokens in zip(self.rows(), self.row_tokens, strict=True):
            lengths += row
            if tokens < self.width:
                lengths.append(self.width - int(tokens))
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if static is not None:
            if offsets.size > static + 2:
                raise BoundaryError(
                    f"static offsets for {static} segments hold {static + 2} entries.",
                    f"{self.num_segments} segments with their padding need {offsets.size}.",
                    "Raise static, or plan with max_segments.",
                )
            offsets = np.append(offsets, np.full(static + 2 - offsets.size, offsets[-1]))
        return _frozen(offsets.astype(np.int32))

    def segment_ids(self) -> npt.NDArray[np.int32]:
        """Return int32 [B, T]: 1, 2, ... inside a row, 0 in the padding tail."""
        out = np.zeros((self.num_rows, self.width), np.int32)
        for row, lengths in enumerate(self.rows()):
            out[row, : sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        return _frozen(out)

    def position_ids(self, start: int = 0) -> npt.NDArray[np.int64]:
        """Return int64 [B, T]: start, start + 1, ... in each segment, and again in the padding tail.

        ``start`` serves models whose position table does not begin at 0 (padding_idx + 1 in the RoBERTa family).
        """
        offsets = self.cu_seqlens(covering=True).astype(np.int64)
        flat = np.arange(self.num_rows * self.width) - np.repeat(offsets[:-1], np.diff(offsets))
        return _frozen((flat + start).reshape(self.num_rows, self.width))

    def dense_mask(
        self,
        *,
        causal: bool = True,
        window: int | None = None,
        chunk: int | None = None,
        prefix_lengths: Sequence[int] | None = None,
    ) -> npt.NDArray[np.bool_]:
        """Return bool [B, 1, T, T], True where query i may attend to key j: the specification of every other form.

        The rule is ``segment[j] == segment[i]`` and, where causal, ``j <= i``. Padding sees padding, so no row is empty.

        Args:
            window: keys at a distance of less than ``window`` tokens (itself included), measured inside the segment.
            chunk: keys in the same chunk of ``chunk`` positions, counted from the segment's start.
            prefix_lengths: [segments], the first tokens of each segment that all of its tokens see, whatever the order.

        Raises:
            InputError: a window or chunk below 1 (a row would be empty), or prefixes that are not one a segment.

        Cost: memory B * T * T bytes. It exists as the specification; kernels take lengths.
        """
        for name, size in (("window", window), ("chunk", chunk)):
            if size is not None and size < 1:
                raise InputError(f"{name} must be at least 1 token.", f"It is {size}.", "A token always sees itself.")
        if prefix_lengths is not None and len(prefix_lengths) != self.num_segments:
            raise BoundaryError(
                f"prefix_lengths must have one entry for each of {self.num_segments} segments.",
                f"There are {len(prefix_lengths)}.",
                "Write 0 for a segment without a prefix.",
            )
        ids = self.segment_ids()
        positions = self.position_ids()
        allowed = ids[:, :, None] == ids[:, None, :]
        distance = positions[:, :, None] - positions[:, None, :]
        if causal:
            seen = distance >= 0
            if prefix_lengths is not None:
                starts = np.concatenate([[0], np.asarray(prefix_lengths, np.int64)])
                row_first = self.row_offsets[:-1, None]
                prefix = np.where(ids > 0, starts[np.where(ids > 0, ids + row_first, 0)], 0)
                seen |= (positions < prefix)[:, None, :]
            allowed &= seen
        if window is not None:
            allowed &= np.abs(distance) < window
        if chunk is not None:
            allowed &= positions[:, :, None] // chunk == positions[:, None, :] // chunk
        return _frozen(allowed[:, None])

    # ------------------------------------------------------------------ labels and targets

    def targets(self, labels: npt.ArrayLike, depth: int = 1, fill: float = IGNORE) -> npt.NDArray[Any]:
        """Return ``labels`` [tokens] shifted left by ``depth`` inside each segment, ``fill`` where nothing follows.

        ``targets[i] = labels[i + depth]`` where both lie in one segment; depth 2 and more serve multi-token heads. Any array
        with the index of labels goes (``loss_weights`` with ``fill=0``). Takes valid tokens only, no padding.
        """
        if depth < 1:
            raise InputError("depth must be at least 1.", f"It is {depth}.", "1 is the next token.")
        values = np.asarray(labels)
        if values.shape != (self.num_tokens,):
            raise BoundaryError(
                f"labels must have the {self.num_tokens} tokens of the segments.",
                f"The shape is {list(values.shape)}.",
                "Pass valid tokens, one row after the other, without padding.",
            )
        out = np.full_like(values, fill)
        if depth < values.size:
            out[:-depth] = values[depth:]
        ends = np.cumsum(self.seq_lengths, dtype=np.int64)
        for back in range(1, depth + 1):
            out[np.maximum(ends - back, ends - self.seq_lengths)] = fill
        return _frozen(out)

    def first_tokens(self) -> npt.NDArray[np.int64]:
        """Return int64 [segments]: the index of each segment's first token among the valid tokens."""
        return _frozen(np.cumsum(self.seq_lengths, dtype=np.int64) - self.seq_lengths)

    def align(self, multiple: int) -> Segments:
        """Return the Segments with every length rounded up to ``multiple``, as FP8 and context parallelism want them.

        The real lengths stay in ``self``; consumers that need both take both. The capacity is kept where the rows still fit.
        """
        if multiple < 1:
            raise InputError("align must be at least 1.", f"It is {multiple}.", "Pass 1 for no alignment.")
        padded: Literal[1] | npt.NDArray[np.int64] = -(-self.seq_lengths.astype(np.int64) // multiple) * multiple
        return Segments._checked(np.asarray(padded), self.row_offsets.copy(), self.capacity)
