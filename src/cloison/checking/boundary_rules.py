"""What may be wrong with boundaries, masks and positions of packed rows. Each rule is one pass over flat arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cloison.checking.hits import Hit, Place
from cloison.checking.known import Known
from cloison.checking.rows import Rows

__all__ = ["BOUNDARY_RULES"]


def over_capacity(rows: Rows, known: Known) -> Iterator[Hit]:
    """Rows that hold more than the capacity, counted as their reader counts."""
    if known.capacity is None:
        return
    held = np.diff(rows.row_offsets)
    if rows.convention.counts == "targets":
        held = held - np.diff(rows.segments.row_offsets)
    over = np.flatnonzero(held > known.capacity)
    details = {"capacity": known.capacity, "held": int(held[over[0]]) if over.size else 0}
    yield Hit("over_capacity", over.size, rows.num_rows, _row(rows, over), details=details)


def positions_against_segments(rows: Rows, known: Known) -> Iterator[Hit]:
    """Positions that run on over a known boundary, or that restart inside a segment."""
    positions = rows.position_ids
    if positions is None or rows.source in ("position_ids", "none"):
        return
    grade: Any = None if rows.convention.positions_read else "warning"
    edges = rows.inner_first_cells
    went_on = rows.judged(edges[positions[edges] == positions[edges - 1] + 1])
    # A segment of one token before another of the same kind cannot be told from a run of positions that stand still.
    place = rows.cell_place(int(went_on[0])) if went_on.size else Place()
    yield Hit("positions_not_restarted", went_on.size, edges.size, place, severity=grade)
    breaks = np.zeros(positions.size, bool)
    breaks[1:] = positions[1:] != positions[:-1] + 1
    breaks[rows.first_cells] = False
    breaks[rows.row_offsets[:-1][np.diff(rows.row_offsets) > 0]] = False
    if rows.padding is not None:
        breaks &= ~rows.padding
    cells = rows.judged(np.flatnonzero(breaks))
    inside = np.unique(rows.row_of_cell[cells]) if cells.size else cells
    place = rows.cell_place(int(cells[0])) if cells.size else Place()
    details = {"other": "position_ids", "source": rows.source, "variant": "position_ids"}
    yield Hit("boundaries_disagree", inside.size, rows.num_rows, place, severity=grade, details=details)


def zero_tails(rows: Rows, known: Known) -> Iterator[Hit]:
    """Padding whose positions are all 0, where boundaries are known from elsewhere."""
    positions, padding = rows.position_ids, rows.padding
    if positions is None or padding is None or rows.source == "position_ids" or rows.convention.name != "batch":
        return
    if rows.shifts is not None:  # a mask says what is padding, and kernels go by that
        return
    sizes = rows.row_sums(padding)
    zero = rows.row_sums(padding & (positions == 0))
    bad = np.flatnonzero((sizes > 1) & (zero == sizes))
    yield Hit("padding_as_segments", bad.size, rows.num_rows, _row(rows, bad))


def flat_mask(rows: Rows, known: Known) -> Iterator[Hit]:
    """A 0/1 attention_mask over rows of several segments, or with holes."""
    mask = rows.attention_mask
    if mask is None:
        return
    several = np.diff(rows.segments.row_offsets) > 1
    invalid = rows.row_sums(mask == 0) if rows.padding is None else rows.row_sums((mask == 0) & ~rows.padding)
    if rows.convention.mask_read:
        hidden = np.flatnonzero(several & (invalid == 0))
        yield Hit("mask_hides_boundaries", hidden.size, rows.num_rows, _row(rows, hidden))
        holes = np.flatnonzero(invalid)
        yield Hit("mask_inside_segment", int(invalid.sum()), int(mask.size), _row(rows, holes))


def unrecorded_boundaries(rows: Rows, known: Known) -> Iterator[Hit]:
    """Rows without any boundaries that hold an end-of-text id in their middle."""
    if rows.source != "none" or known.eos_token_id is None:
        return
    ends = rows.input_ids == known.eos_token_id
    ends[rows.last_cells] = False
    if rows.padding is not None:
        ends &= ~rows.padding
    inside = np.flatnonzero(rows.row_sums(ends))
    yield Hit("no_boundaries", inside.size, rows.num_rows, _row(rows, inside), details={"token": known.eos_token_id})


def _row(rows: Rows, indices: Any) -> Place:
    return rows.row_place(int(indices[0])) if len(indices) else Place()


BOUNDARY_RULES = (over_capacity, positions_against_segments, zero_tails, flat_mask, unrecorded_boundaries)
"""In the order of the report."""
