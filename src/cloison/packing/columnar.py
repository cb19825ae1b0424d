"""Token ids that come in columns go to the token store as arrays: no record and no token passes through Python objects.

Only batches in which everything is right go this way. A batch with anything else in it (a null, an id out of range, a mask of
another length) is read record by record, so that what is said of it, and skipped, is the same as for any other source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cloison.errors import CloisonError, RecordError, StoreError
from cloison.places import Remote, place, random_access
from cloison.segments import IGNORE
from cloison.spec import PackSpec
from cloison.store.tokens import SPAN_LAYOUT, UNIT_TOKENS, Unit
from cloison.text.arrow_files import arrow_batches, arrow_schema
from cloison.text.columnar import group_batches
from cloison.text.packed_rows import SIGNS, may_be_packed
from cloison.text.shapes import recognise
from cloison.text.targets import ROLES, SHAPES
from cloison.text.tokens import runs

__all__ = ["batch_unit", "columnar_batches", "token_parts"]

_MASKS = ("labels", "completion_mask", "assistant_masks")


def token_parts(chunk: Mapping[str, Any], spec: PackSpec) -> dict[str, str] | None:
    """Return {part: column} when ``chunk`` holds columns of token ids that can be taken as arrays, else None."""
    if chunk["kind"] not in ("parquet", "arrow"):
        return None
    try:
        layout = _layout(chunk)
    except Exception:  # the reader of records says what is wrong with the file
        return None
    try:
        reading = recognise(dict.fromkeys(layout.names, True), spec.columns, spec.carry)
    except RecordError:
        return None
    parts = dict(reading.columns)
    if reading.shape != "tokens" or set(parts) - {"input_ids", *_MASKS} or set(spec.carry) - set(layout.names):
        return None
    kinds = [layout.field(column).type for column in parts.values()]
    return parts if all(_holds_integers(kind) for kind in kinds) else None


def columnar_batches(
    chunk: Mapping[str, Any], parts: Mapping[str, str], spec: PackSpec
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (index of the first row in the file, batch) for the rows of ``chunk``, about `UNIT_TOKENS` tokens at once.

    Raises:
        StoreError: the file cannot be read to its end.
    """
    names = [*parts.values(), *spec.carry]
    row = int(chunk["first"])
    try:
        for batch in _parquet(chunk, names, parts) if chunk["kind"] == "parquet" else _arrow(chunk, names, parts):
            yield row, batch
            row += batch.num_rows
    except CloisonError:
        raise
    except Exception as error:  # pyarrow raises many kinds where a file lies
        raise StoreError(f"{chunk['path']} must be whole.", f"It does not read: {error}.", "Replace the file.") from error


def batch_unit(batch: pa.RecordBatch, parts: Mapping[str, str], carry: tuple[str, ...], size: int) -> Unit | None:
    """Return the samples of ``batch``, or None when a row is not in order.

    Args:
        size: of the vocabulary; 0 where it is not known.
    """
    for name in batch.schema.names:
        if name in SIGNS and _shows_blocks(name, batch.column(name)):
            return None
    columns = {part: _flat(batch.column(name)) for part, name in parts.items()}
    if any(column is None for column in columns.values()):
        return None
    found = {part: column for part, column in columns.items() if column is not None}
    ids, offsets = found.pop("input_ids")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= (size or 1 << 31)):
        return None
    mask: npt.NDArray[np.bool_] | None = None
    for part, (values, others) in found.items():
        if not np.array_equal(offsets, others):
            return None
        if part == "labels":
            here = values != IGNORE
            if not np.array_equal(values[here], ids[here]):
                return None
        else:
            here = values == 1
            if not (here | (values == 0)).all():
                return None
        mask = here if mask is None else mask & here
    lengths = np.diff(offsets)
    role = "given-assistant" if "assistant_masks" in found else "given"
    spans, counts = _whole(lengths, role) if mask is None else runs(mask, lengths, role)
    stored = np.zeros(spans.size, SPAN_LAYOUT)
    for name in ("start", "stop", "role", "terminator", "message", "weight"):
        stored[name] = spans[name]
    return Unit(
        ids.astype(np.int32, copy=False),
        lengths,
        stored,
        counts,
        np.full(lengths.size, SHAPES.index("tokens"), np.uint8),
        columns={name: _plain(batch.column(name)) for name in carry},
    )


def _shows_blocks(name: str, column: pa.Array) -> bool:
    """Return whether a row may be a block of several samples: then each is looked at, and refused by its place."""
    if not _holds_integers(column.type):
        return False
    found = _flat(column)
    return found is None or may_be_packed(name, found[0], found[1][:-1])


def _whole(lengths: npt.NDArray[np.int64], role: str) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """Return one span over each sample that is not empty."""
    counts = (lengths > 0).astype(np.int64)
    spans = np.zeros(int(counts.sum()), SPAN_LAYOUT)
    spans["stop"] = lengths[lengths > 0]
    spans["role"], spans["weight"] = ROLES.index(role), 1
    return spans, counts


def _flat(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
    """Return the values of a list column and int64 offsets from 0, or None when there is a null in it."""
    if column.null_count:
        return None
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        return None
    return values.to_numpy(zero_copy_only=False), offsets - offsets[0]


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _holds_integers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type))


def _layout(chunk: Mapping[str, Any]) -> pa.Schema:
    if chunk["kind"] == "parquet":
        return pq.read_schema(random_access(place(chunk["path"])))
    return arrow_schema(chunk["path"])


def _parquet(chunk: Mapping[str, Any], names: list[str], parts: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    at = place(chunk["path"])
    with pq.ParquetFile(random_access(at), pre_buffer=isinstance(at, Remote)) as file:
        group = file.metadata.row_group(chunk["start"])
        leaves = {group.column(i).path_in_schema.split(".")[0]: group.column(i).num_values for i in range(group.num_columns)}
        tokens = max(1, leaves[parts["input_ids"]] // max(1, group.num_rows))
        kept = _with_signs(names, file.schema_arrow.names)
        yield from group_batches(file, [chunk["start"]], kept, max(1, UNIT_TOKENS // tokens))


def _arrow(chunk: Mapping[str, Any], names: list[str], parts: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    for batch in arrow_batches(chunk["path"], chunk, {*names, *SIGNS}):
        tokens = max(1, len(batch.column(parts["input_ids"]).flatten()) // max(1, batch.num_rows))
        rows = max(1, UNIT_TOKENS // tokens)
        for first in range(0, batch.num_rows, rows):
            yield batch.select(_with_signs(names, batch.schema.names)).slice(first, rows)


def _with_signs(names: list[str], there: list[str]) -> list[str]:
    """Return ``names`` and those columns of a file that would show that its rows are blocks, each once."""
    return list(dict.fromkeys([*names, *(name for name in there if name in SIGNS)]))
