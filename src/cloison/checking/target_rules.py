"""What may be wrong with the targets of packed rows: what the loss will ask for. Each rule is a few passes over flat arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cloison.checking.hits import Hit, Place
from cloison.checking.known import Known
from cloison.checking.rows import Rows
from cloison.segments import IGNORE

__all__ = ["TARGET_RULES"]


def boundary_targets(rows: Rows, known: Known) -> Iterator[Hit]:
    """Labels at the first token of a segment.

    The first token of a row has no token before it when the model shifts, so outside our own blocks only later ones count.
    """
    if rows.labels is None:
        several = np.flatnonzero(np.diff(rows.segments.row_offsets) > 1)
        if rows.convention.first_label == "trained":
            place = rows.row_place(several[0]) if several.size else Place()
            yield Hit("implied_labels", several.size, rows.num_rows, place)
        return
    if rows.convention.name == "megatron-bridge":
        # Its last mask entry is the label of the next segment's first token, or of nothing at the end of a row.
        cells = rows.last_cells[_unrolled(rows)]
        place = rows.cell_place(int(cells[0])) if cells.size else Place()
        yield Hit("mask_not_rolled", cells.size, rows.segments.num_segments, place)
        return
    ours = rows.convention.name == "cloison"
    cells = rows.first_cells if ours else rows.inner_first_cells
    wrong = rows.judged(cells[rows.labels[cells] != IGNORE])
    kind = "first_labels_masked_later" if rows.convention.first_label == "masked" else "boundary_target"
    yield Hit(kind, wrong.size, cells.size, rows.cell_place(int(wrong[0])) if wrong.size else Place())
    tails = rows.unread_tails[~rows.moved[rows.unread_tails]]
    yield Hit("target_past_row", tails.size, rows.num_rows, rows.row_place(tails[0]) if tails.size else Place())


def _unrolled(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return bool [segments], True where a mask that should lie one to the left is set at the segment's last token."""
    out = np.zeros(rows.segments.num_segments, bool)
    if rows.convention.name == "megatron-bridge" and rows.labels is not None:
        inner = rows.inner_first_cells
        out[:-1][np.isin(rows.last_cells[:-1] + 1, inner)] = rows.labels[inner] != IGNORE
        out[rows.segments.row_offsets[1:][rows.unread_tails] - 1] = True
    return out


def shifted_labels(rows: Rows, known: Known) -> Iterator[Hit]:
    """Labels that belong to the neighbouring token, or to none."""
    if rows.labels is None or rows.trained is None or rows.input_ids.size == 0:
        return
    moved = rows.moved
    shifted = np.flatnonzero(moved)
    kind = "not_shifted" if rows.convention.labels == "shifted" else "shifted_twice"
    yield Hit(kind, shifted.size, rows.num_rows, rows.row_place(shifted[0]) if shifted.size else Place())
    off = rows.trained & (rows.labels != rows.input_ids)
    wrong = np.flatnonzero(off)
    wrong = wrong[~moved[rows.row_of_cell[wrong]]] if wrong.size else wrong
    place = rows.cell_place(int(wrong[0])) if wrong.size else Place()
    yield Hit("wrong_token", wrong.size, int(np.count_nonzero(rows.trained)), place)


def padding_targets(rows: Rows, known: Known) -> Iterator[Hit]:
    """Targets at padding, by place: the padding id may be the end of text."""
    if rows.trained is None or rows.padding is None:
        return
    bad = rows.judged(np.flatnonzero(rows.trained & rows.padding))
    of = int(np.count_nonzero(rows.padding))
    yield Hit("padding_trained", bad.size, of, rows.cell_place(int(bad[0])) if bad.size else Place())


def context_targets(rows: Rows, known: Known) -> Iterator[Hit]:
    """Targets where a mask column beside the labels says that the token is context."""
    if rows.trained is None:
        return
    for name, context in rows.context.items():
        bad = np.flatnonzero(rows.trained & context)
        place = rows.cell_place(int(bad[0])) if bad.size else Place()
        details = {"column": name, "variant": name}
        yield Hit("prompt_trained", bad.size, int(np.count_nonzero(context)), place, details=details)


def nothing_to_train(rows: Rows, known: Known) -> Iterator[Hit]:
    """Rows, and segments of two tokens and more, without a target."""
    if rows.trained is None:
        return
    asked = rows.segment_sums(rows.trained)
    # The first token is none by right, wherever a label stands there.
    asked = asked - rows.trained[rows.first_cells]
    idle = np.flatnonzero((asked == 0) & (rows.segments.seq_lengths > 1) & ~_unrolled(rows))
    idle = idle[np.isin(rows.first_cells[idle], rows.judged(rows.first_cells[idle]))] if idle.size else idle
    place = rows.cell_place(int(rows.first_cells[idle[0]])) if idle.size else Place()
    yield Hit("segments_without_target", idle.size, rows.segments.num_segments, place)
    empty = np.flatnonzero(rows.row_sums(rows.trained) == 0)
    yield Hit("nothing_trained", empty.size, rows.num_rows, rows.row_place(empty[0]) if empty.size else Place())


TARGET_RULES = (boundary_targets, shifted_labels, padding_targets, context_targets, nothing_to_train)
"""In the order of the report."""
