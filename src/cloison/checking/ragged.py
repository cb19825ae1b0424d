"""Ragged: a column of lists as one flat numpy array and its offsets, from Arrow or from Python rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError

__all__ = ["Ragged", "from_arrow", "from_rows", "numeric"]


class Ragged(NamedTuple):
    """A column of lists.

    Attributes:
        values: [entries], the entries of all rows, one row after the other.
        offsets: int64 [rows + 1], row r is ``values[offsets[r]:offsets[r + 1]]``.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """int64 [rows], entries of each row."""
        return np.diff(self.offsets)

    @property
    def num_rows(self) -> int:
        """Rows."""
        return int(self.offsets.size - 1)


def numeric(value: Any) -> npt.NDArray[Any]:
    """Return a tensor, an array or nested lists as numpy, without importing the library it comes from."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return np.asarray(value.numpy())
    return np.asarray(value)


def from_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], first_row: int = 0) -> dict[str, Ragged]:
    """Return the columns ``names`` of ``rows``, those that are there; each a flat list of numbers in every row.

    Raises:
        InputError: a column that some rows have and others lack, or whose entries are no flat list of numbers.
    """
    columns: dict[str, Ragged] = {}
    for name in names:
        have = [row.get(name) is not None for row in rows]
        if not any(have):
            continue
        if not all(have):
            lacking = have.index(False)
            raise InputError(
                f"every row must have the column {name!r}, or none.",
                f"Row {first_row + lacking} lacks it ({have.count(False)} of {len(rows)} rows read together do).",
                "A mask that is missing means that all is trained: write it out.",
            )
        arrays = []
        for index, row in enumerate(rows):
            try:
                array = numeric(row[name])
            except ValueError:
                array = np.empty(0, object)
            if array.ndim == 0:
                array = array[None]
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iubf"):
                raise InputError(
                    f"{name} must be a flat list of numbers in every row.",
                    f"Row {first_row + index} has dtype {array.dtype} and shape {list(array.shape)}.",
                    "Pass token ids, not text or nested lists.",
                )
            if array.dtype == np.uint64 and array.max(initial=0) < 2**63:  # beside int64 numpy would make doubles of both
                array = array.astype(np.int64)
            arrays.append(array)
        sizes = [array.size for array in arrays]
        filled = [array for array in arrays if array.size]
        values = np.concatenate(filled) if filled else np.zeros(0, np.int64)
        columns[name] = Ragged(values, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64))
    return columns


def from_arrow(batch: Any, names: Sequence[str], first_row: int = 0) -> dict[str, Ragged]:
    """Return the list columns ``names`` of a ``pyarrow.RecordBatch``, those that are there, without copying plain ones.

    Raises:
        InputError: a null row or entry, or lists of something that is no number.
    """
    import pyarrow as pa

    columns: dict[str, Ragged] = {}
    for name in names:
        index = batch.schema.get_field_index(name)
        if index < 0:
            continue
        array = batch.column(index)
        kind = array.type
        if pa.types.is_integer(kind):
            array, kind = pa.FixedSizeListArray.from_arrays(array, 1), pa.list_(kind, 1)
        if pa.types.is_null(kind):
            continue
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        item = kind.value_type if is_list else kind
        if not is_list or not (pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)):
            raise InputError(
                f"{name} must be a column of lists of numbers.", f"Its type is {kind}.", "Pass tokenised, packed rows."
            )
        if array.null_count:
            lacking = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(
                f"every row must have {name}.",
                f"Row {first_row + lacking} is null ({array.null_count} of {len(array)} rows read together are).",
                "Drop the row, or write an empty list.",
            )
        if pa.types.is_fixed_size_list(kind):
            values, offsets = array.flatten(), np.arange(len(array) + 1, dtype=np.int64) * kind.list_size
        else:
            offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
            values, offsets = array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]
        if values.null_count:
            raise InputError(
                f"{name} must hold numbers only.",
                f"{values.null_count} entries are null.",
                "Write -100 where there is no label.",
            )
        columns[name] = Ragged(values.to_numpy(zero_copy_only=False), offsets)
    return columns
