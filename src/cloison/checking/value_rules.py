"""What may be wrong with the numbers themselves: ids and weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloison.checking.hits import Hit, Place
from cloison.checking.known import Known
from cloison.checking.rows import Rows

__all__ = ["VALUE_RULES"]


_PLACEHOLDERS = (-200, -201, -202)
"""Ids that LLaVA and the models after it write where an image, a video or a sound stands."""


def ids_in_range(rows: Rows, known: Known) -> Iterator[Hit]:
    """Ids below 0, or outside the vocabulary."""
    ids = rows.input_ids
    if not ids.size:
        return
    below = int(ids.min()) < 0
    placed = below and np.isin(ids, _PLACEHOLDERS)
    for kind, bad, size in (
        ("ids_placeholder", placed, 0),
        ("ids_negative", below and (ids < 0) & ~placed, 0),
        (
            "ids_out_of_vocabulary",
            known.vocab_size is not None and int(ids.max()) >= known.vocab_size and ids >= known.vocab_size,
            known.vocab_size or 0,
        ),
    ):
        cells = np.flatnonzero(bad) if isinstance(bad, np.ndarray) else np.zeros(0, np.int64)
        place = rows.cell_place(int(cells[0])) if cells.size else Place()
        details = {"held": int(ids[cells[0]]) if cells.size else 0, "size": size}
        yield Hit(kind, cells.size, int(ids.size), place, details=details)


def weights_in_range(rows: Rows, known: Known) -> Iterator[Hit]:
    """Weights that are NaN or infinite, negative, or segment numbers."""
    weights = rows.loss_weights
    if weights is None or not weights.size:
        return
    for kind, bad in (("weights_not_finite", ~np.isfinite(weights)), ("weights_negative", weights < 0)):
        cells = np.flatnonzero(bad)
        yield Hit(kind, cells.size, int(weights.size), rows.cell_place(int(cells[0])) if cells.size else Place())
    numbers = np.zeros(weights.size, np.int64)
    inner = np.arange(rows.segments.num_segments) - rows.segments.row_offsets[:-1][rows.row_of_segment] + 1
    valid = np.ones(weights.size, bool) if rows.padding is None else ~rows.padding
    numbers[valid] = np.repeat(inner, rows.segments.seq_lengths)
    same = (np.diff(rows.segments.row_offsets) > 1) & (rows.row_sums(weights == numbers) == np.diff(rows.row_offsets))
    as_ids = np.flatnonzero(same)
    yield Hit("weights_are_segment_ids", as_ids.size, rows.num_rows, rows.row_place(as_ids[0]) if as_ids.size else Place())


def doubled_bos(rows: Rows, known: Known) -> Iterator[Hit]:
    """Segments that begin with the begin-of-text id twice."""
    if known.bos_token_id is None:
        return
    first = rows.first_cells[rows.segments.seq_lengths > 1]
    double = first[(rows.input_ids[first] == known.bos_token_id) & (rows.input_ids[first + 1] == known.bos_token_id)]
    place = rows.cell_place(int(double[0])) if double.size else Place()
    yield Hit("double_bos", double.size, rows.segments.num_segments, place, details={"token": known.bos_token_id})


VALUE_RULES = (ids_in_range, weights_in_range, doubled_bos)
"""In the order of the report."""
