"""Columns of one system to `Rows`: which column states the boundaries, and what the others say about the same cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.checking.boundaries import (
    Bounds,
    from_lengths,
    from_numbers,
    from_offsets,
    from_positions,
    from_starts,
    one_each,
)
from cloison.checking.conventions import BoundarySource, Convention
from cloison.checking.hits import Hit, Place
from cloison.checking.integers import as_integers
from cloison.checking.ragged import Ragged
from cloison.checking.rows import Rows
from cloison.segments import IGNORE, Segments

__all__ = ["assemble"]

_CELL_COLUMNS = (
    "labels",
    "targets",
    "targets_segmentation",
    "loss_mask",
    "label_mask",
    "completion_mask",
    "assistant_masks",
    "loss_weights",
    "attention_mask",
    "segment_ids",
    "sequence_id",
    "position_ids",
)
_Found = list[tuple[BoundarySource, str, Bounds]]


def assemble(
    columns: Mapping[str, Ragged], convention: Convention, *, first_row: int = 0, file: str | None = None
) -> tuple[Rows, list[Hit]]:
    """Return ``columns`` (by our names) as `Rows`, with what did not fit.

    Where several columns state boundaries, the first of seq_lengths, seq_start_id, cu_seqlens, segment numbers and position_ids
    counts, and rows in which another one differs are hits.
    """

    def at(row: int) -> Place:
        return Place(file, first_row + int(row))

    columns, hits = as_integers(columns, at)
    columns, shifts = _left_aligned(columns)
    tokens = columns["input_ids"]
    sizes, num_rows = tokens.sizes, tokens.num_rows
    cells: dict[str, npt.NDArray[Any]] = {}
    for name in _CELL_COLUMNS:
        if name in columns:
            cells[name], column_hit = _fit(columns[name], sizes, name, at)
            hits += [column_hit] if column_hit else []

    found: _Found = []
    unsound = [np.zeros(0, np.int64)]
    if "seq_lengths" in columns:
        found.append(("seq_lengths", "seq_lengths", from_lengths(columns["seq_lengths"], sizes, padded=convention.padded)))
    if "seq_start_id" in columns:
        found.append(("seq_start_id", "seq_start_id", from_starts(columns["seq_start_id"], sizes)))
    if "cu_seqlens" in columns:
        found.append(("cu_seqlens", "cu_seqlens", from_offsets(columns["cu_seqlens"], sizes, padded=convention.padded)))
    for name, padding in (("segment_ids", 0), ("sequence_id", -1), ("attention_mask", 0)):
        numbers = name != "attention_mask" or cells.get(name, tokens.values[:0]).max(initial=0) > 1
        # Where rows elsewhere in the data have numbers above 1, a row of ones is a row of one segment.
        if name in cells and (numbers or (convention.name == "segment-ids" and not found)):
            bounds, broken = from_numbers(Ragged(cells[name], tokens.offsets), padding)
            found.append(("segment_ids", name, bounds))
            unsound.append(broken)
            if broken.size:
                hits.append(Hit("interleaved_segments", broken.size, num_rows, at(broken[0])))
    for _, name, bounds in found:
        unsound.append(bounds.misfits)
        if bounds.misfits.size:
            details = {"source": name, "reason": bounds.reason}
            hits.append(Hit("lengths_disagree", bounds.misfits.size, num_rows, at(bounds.misfits[0]), details=details))

    source: BoundarySource
    if found:
        source, primary, bounds = found[0]
        for _, name, other in found[1:]:
            differing = _differing(bounds, other, sizes)
            if differing.size:
                details = {"other": name, "source": primary, "variant": name}
                hits.append(Hit("boundaries_disagree", differing.size, num_rows, at(differing[0]), details=details))
    elif "position_ids" in cells:
        source = "position_ids"
        bounds, tail_hit = _guessed(cells, tokens, at)
        hits += [tail_hit] if tail_hit else []
    else:
        source = "none"
        bounds = one_each(_mask_sizes(cells, tokens) if "attention_mask" in cells else sizes)

    labels, tails = _same_index(cells, tokens, convention)
    row_offsets = np.concatenate([[0], np.cumsum(bounds.counts)]).astype(np.int64)
    lengths = bounds.seq_lengths.astype(np.int32)
    lengths.setflags(write=False)
    row_offsets.setflags(write=False)
    segments = Segments(lengths, row_offsets, None)
    mask = cells.get("attention_mask")
    context: dict[str, npt.NDArray[np.bool_]] = {
        str(name): cells[name] == 0 for name in ("completion_mask", "assistant_masks") if name in cells and "labels" in cells
    }
    per_segment: dict[str, npt.NDArray[np.int64]] = {}
    for name in ("sample_ids", "starts"):
        if name in columns:
            column = columns[name]
            wrong = np.flatnonzero(column.sizes != bounds.counts)
            if wrong.size:
                row = int(wrong[0])
                reason = f"it has {column.sizes[row]:,} entries for {bounds.counts[row]:,} segments"
                details = {"column": name, "reason": reason, "variant": name}
                hits.append(Hit("columns_disagree", wrong.size, num_rows, at(row), details=details))
            else:
                per_segment[name] = column.values.astype(np.int64)
    rows = Rows(
        convention,
        source,
        tokens.values,
        tokens.offsets,
        segments,
        labels=labels,
        position_ids=cells.get("position_ids"),
        attention_mask=mask if mask is not None and mask.max(initial=0) <= 1 else None,
        loss_weights=cells.get("loss_weights"),
        context=context,
        unsound=np.unique(np.concatenate(unsound)),
        unread_tails=tails,
        shifts=shifts,
        first_row=first_row,
        file=file,
        **per_segment,
    )
    return rows, hits


def _left_aligned(columns: Mapping[str, Ragged]) -> tuple[Mapping[str, Ragged], npt.NDArray[np.int64] | None]:
    """Return ``columns`` with the padding that a 0/1 attention_mask shows before the first token of rows put behind the last.

    And int64 [rows], how many places each row was moved by; None where there was no such padding.
    """
    mask, tokens = columns.get("attention_mask"), columns["input_ids"]
    if mask is None or not mask.values.size or int(mask.values.max()) > 1 or not np.array_equal(mask.offsets, tokens.offsets):
        return columns, None
    places = np.flatnonzero(mask.values)
    rows, first = np.unique(np.searchsorted(mask.offsets, places, "right") - 1, return_index=True)
    lead = np.zeros(tokens.num_rows, np.int64)
    lead[rows] = places[first] - mask.offsets[rows]
    if not lead.any():
        return columns, None
    row = np.repeat(np.arange(tokens.num_rows), tokens.sizes)
    inside = np.arange(row.size) - tokens.offsets[row]
    order = tokens.offsets[row] + (inside + lead[row]) % tokens.sizes[row]
    moved = {
        name: Ragged(column.values[order], column.offsets)
        for name, column in columns.items()
        if name in ("input_ids", *_CELL_COLUMNS) and np.array_equal(column.offsets, tokens.offsets)
    }
    return {**columns, **moved}, lead


def _fit(column: Ragged, sizes: npt.NDArray[np.int64], name: str, at: Any) -> tuple[npt.NDArray[Any], Hit | None]:
    """Return the column's values on the cells of input_ids: rows of another length are cut or filled, and are a hit."""
    wrong = np.flatnonzero(column.sizes != sizes)
    if not wrong.size:
        return column.values, None
    fill = IGNORE if name in ("labels", "targets") else 0
    rows = []
    for row, size in enumerate(sizes):
        values = column.values[column.offsets[row] : column.offsets[row + 1]][:size]
        rows.append(np.append(values, np.full(size - values.size, fill, values.dtype)))
    first = int(wrong[0])
    reason = f"{column.sizes[first]:,} entries for {sizes[first]:,} tokens"
    hit = Hit(
        "columns_disagree", wrong.size, sizes.size, at(first), details={"column": name, "reason": reason, "variant": name}
    )
    return np.concatenate(rows), hit


def _differing(one: Bounds, other: Bounds, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rows in which two Bounds are not the same; rows that fit neither are told elsewhere."""
    if np.array_equal(one.counts, other.counts) and np.array_equal(one.seq_lengths, other.seq_lengths):
        return np.zeros(0, np.int64)
    differ = one.counts != other.counts
    same = np.flatnonzero(~differ)
    one_ends, other_ends = np.cumsum(one.counts), np.cumsum(other.counts)
    for row in same:
        a = one.seq_lengths[one_ends[row] - one.counts[row] : one_ends[row]]
        b = other.seq_lengths[other_ends[row] - other.counts[row] : other_ends[row]]
        differ[row] = not np.array_equal(a, b)
    differ[one.misfits] = differ[other.misfits] = False
    return np.flatnonzero(differ)


def _mask_sizes(cells: Mapping[str, npt.NDArray[Any]], tokens: Ragged) -> npt.NDArray[np.int64]:
    """Return int64 [rows], the valid tokens of each row as a 0/1 attention_mask has them: up to its last 1."""
    valid = np.zeros(tokens.num_rows, np.int64)
    places = np.flatnonzero(cells["attention_mask"])
    rows = np.searchsorted(tokens.offsets, places, "right") - 1
    np.maximum.at(valid, rows, places - tokens.offsets[rows] + 1)
    return valid


def _guessed(cells: Mapping[str, npt.NDArray[Any]], tokens: Ragged, at: Any) -> tuple[Bounds, Hit | None]:
    """Return the Bounds that position_ids suggest, without the padding at the ends of rows, and a hit for tails of zeros.

    A tail is padding where a 0/1 mask says so; where its positions are all 0; or where it is a last segment of one repeated id
    that is no target.
    """
    sizes, offsets = tokens.sizes, tokens.offsets
    positions = Ragged(cells["position_ids"], offsets)
    valid = _mask_sizes(cells, tokens) if "attention_mask" in cells else sizes.copy()
    bounds = from_positions(positions, valid)
    ends = np.cumsum(bounds.counts)
    zeros = np.zeros(sizes.size, bool)
    for row in np.flatnonzero(bounds.counts > 1):
        lengths = bounds.seq_lengths[ends[row] - bounds.counts[row] : ends[row]]
        start = offsets[row]
        ones = int((np.cumsum(lengths[::-1] != 1) == 0).sum())
        tail = positions.values[start + valid[row] - ones : start + valid[row]]
        if ones > 1 and not tail.any():
            zeros[row] = True
            # The first of the zeros may be a segment of one token: it is, if something is trained or another id stands there.
            valid[row] -= ones
        elif "labels" in cells or "targets" in cells:
            last = slice(start + valid[row] - int(lengths[-1]), start + valid[row])
            ids, asked = tokens.values[last], cells.get("labels", cells.get("targets"))
            if asked is not None and ids.min() == ids.max() and (asked[last] == IGNORE).all():
                valid[row] -= int(lengths[-1])
    hit = Hit("padding_as_segments", int(zeros.sum()), sizes.size, at(np.flatnonzero(zeros)[0])) if zeros.any() else None
    return (bounds if np.array_equal(valid, sizes) else from_positions(positions, valid)), hit


def _same_index(
    cells: Mapping[str, npt.NDArray[Any]], tokens: Ragged, convention: Convention
) -> tuple[npt.NDArray[Any] | None, npt.NDArray[np.int64]]:
    """Return labels with the index of input_ids, whatever the convention, and the rows with a target after their last token."""
    none = np.zeros(0, np.int64)
    first, last = tokens.offsets[:-1][tokens.sizes > 0], tokens.offsets[1:][tokens.sizes > 0] - 1
    shifted = cells.get("targets", cells.get("labels") if convention.labels == "shifted" else None)
    if shifted is not None and "targets_segmentation" in cells:
        # MaxText's loss takes the targets' segment numbers for its mask.
        shifted = np.where(cells["targets_segmentation"] != 0, shifted, IGNORE)
    if shifted is not None:
        labels = np.full_like(shifted, IGNORE)
        labels[1:] = shifted[:-1]
        labels[first] = IGNORE
        tails = np.flatnonzero(tokens.sizes > 0)[shifted[last] != IGNORE]
        return labels, tails
    if "labels" in cells:
        return cells["labels"], none
    if "loss_mask" in cells:
        asked = np.zeros(tokens.values.size, bool)
        asked[1:] = cells["loss_mask"][:-1] != 0
        asked[first] = False
        # A mask at the last token of a row predicts nothing; the rule on rolled masks tells of it, by segment.
        tails = np.flatnonzero(tokens.sizes > 0)[cells["loss_mask"][last] != 0]
        return np.where(asked, tokens.values, IGNORE), tails
    for name in ("label_mask", "completion_mask", "assistant_masks"):
        if name in cells:
            return np.where(cells[name] != 0, tokens.values, IGNORE), none
    return None, none
