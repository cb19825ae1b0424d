"""Packed rows: rows of token ids that are blocks of several samples. Read as one sample, those would see each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BOUNDARIES", "SIGNS", "may_be_packed", "why_packed"]

BOUNDARIES = ("seq_lengths", "seq_start_id", "cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q", "seq_lens", "doc_lens")
"""Columns that state boundaries: a row that has one is a block."""

_POSITIONS = ("position_ids", "inputs_position", "input_ids_positions")
_NUMBERS = {
    "attention_mask": 1,
    "segment_ids": 1,
    "inputs_segmentation": 1,
    "input_ids_segment_ids": 1,
    "sequence_id": 0,
}
"""Columns that number the samples of a row, with the number of the first; what is below is padding."""

SIGNS = (*_POSITIONS, *_NUMBERS)
"""Columns whose values tell."""


def why_packed(record: Mapping[str, Any]) -> str:
    """Return by what a record of token ids is a block of several samples, "" where nothing says so.

    >>> why_packed({"input_ids": [5, 6, 7, 8], "position_ids": [0, 1, 0, 1]})
    'position_ids begins again at token 2'
    >>> why_packed({"input_ids": [5, 6, 0, 0], "position_ids": [0, 1, 0, 0], "attention_mask": [1, 1, 0, 0]})
    ''
    """
    for name in BOUNDARIES:
        if record.get(name) is not None:
            return f"it has {name}"
    for name in _POSITIONS:
        values = _flat(record.get(name))
        if values is not None and (again := _begins(values)).size > 1:
            return f"{name} begins again at token {int(again[1])}"
    for name, first in _NUMBERS.items():
        values = _flat(record.get(name))
        if values is not None and (numbers := np.unique(values[values >= first])).size > 1:
            return f"{name} numbers {numbers.size} samples"
    return ""


def may_be_packed(name: str, values: npt.NDArray[Any], first_rows: npt.NDArray[np.int64]) -> bool:
    """Return whether a row of a column, flat over many rows, could be a block by `why_packed`; quick, and never False for one.

    Args:
        first_rows: int64 [rows], where each row begins in ``values``.
    """
    if name in _NUMBERS:
        return bool(values.size) and int(values.max()) > _NUMBERS[name]
    begins = _begins(values)
    return bool(begins.size) and bool((np.bincount(np.searchsorted(first_rows, begins, "right")) > 1).any())


def _begins(positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return where 0 is followed by 1: padding of zeros is no beginning, and samples of one token are none that show."""
    return np.flatnonzero((positions[:-1] == 0) & (positions[1:] == 1))


def _flat(value: Any) -> npt.NDArray[Any] | None:
    """Return a flat list of integers as an array; None for anything else, which says nothing."""
    if value is None or isinstance(value, (str, bytes, Mapping)) or not isinstance(value, (Collection, np.ndarray)):
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array if array.ndim == 1 and array.dtype.kind in "iu" else None
