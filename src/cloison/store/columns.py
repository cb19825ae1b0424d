"""The Parquet columns of packed blocks: names, types, and the way between flat arrays and rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["RESERVED", "BlockRows", "Carried", "ColumnKind", "LogicalHash", "schema", "to_table"]

ColumnKind = Literal["token", "segment"]
"""What a carried column has one entry for."""

RESERVED = ("input_ids", "labels", "seq_lengths", "sample_ids", "starts", "first_labels", "loss_weights")
"""Names that the format gives a meaning; a carried column cannot take them."""


@dataclass(frozen=True)
class Carried:
    """A column that is carried along.

    Attributes:
        name: its name on disk.
        kind: "token" (one entry a token, cut with the tokens) or "segment" (one entry a segment, never cut).
        type: the Arrow type of an entry.
    """

    name: str
    kind: ColumnKind
    type: pa.DataType


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The content of some blocks, flat: what a shard is written from.

    Attributes:
        input_ids: int32 [tokens].
        labels: int32 [tokens], -100 at the first token of every segment.
        seq_lengths: int32 [segments].
        sample_ids: int64 [segments].
        block_segments: int64 [blocks], how many segments each block has.
        starts: int32 [segments], or None where no sample is split.
        first_labels: int32 [segments], the label that a segment's first token has in its whole sample; with ``starts`` only.
        loss_weights: float32 [tokens] or None.
        columns: name to an Arrow array of [tokens] or [segments].
    """

    input_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    seq_lengths: npt.NDArray[np.int32]
    sample_ids: npt.NDArray[np.int64]
    block_segments: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32] | None = None
    first_labels: npt.NDArray[np.int32] | None = None
    loss_weights: npt.NDArray[np.float32] | None = None
    columns: Mapping[str, pa.Array] = field(default_factory=lambda: MappingProxyType({}))


def schema(carried: tuple[Carried, ...] = (), *, split: bool = False, weighted: bool = False) -> pa.Schema:
    """Return the Arrow schema of block files."""
    fields = {
        "input_ids": pa.int32(),
        "labels": pa.int32(),
        "seq_lengths": pa.int32(),
        "sample_ids": pa.int64(),
    }
    if split:
        fields |= {"starts": pa.int32(), "first_labels": pa.int32()}
    if weighted:
        fields["loss_weights"] = pa.float32()
    fields |= {column.name: column.type for column in carried}
    return pa.schema([pa.field(name, pa.list_(kind)) for name, kind in fields.items()])


def to_table(rows: BlockRows, layout: pa.Schema, carried: tuple[Carried, ...] = ()) -> pa.Table:
    """Return ``rows`` as a table of ``layout``, one row a block. Arrays are taken as they are, without a copy."""
    segment_ends = np.concatenate([[0], np.cumsum(rows.block_segments)])
    token_ends = np.concatenate([[0], np.cumsum(rows.seq_lengths, dtype=np.int64)])[segment_ends]
    by_segment = pa.array(segment_ends.astype(np.int32))
    by_token = pa.array(token_ends.astype(np.int32))
    per_token = {"input_ids", "labels", "loss_weights"} | {column.name for column in carried if column.kind == "token"}
    arrays = []
    for place in layout:
        values = rows.columns[place.name] if place.name in rows.columns else getattr(rows, place.name)
        offsets = by_token if place.name in per_token else by_segment
        arrays.append(pa.ListArray.from_arrays(offsets, pa.array(values, type=place.type.value_type), type=place.type))
    return pa.Table.from_arrays(arrays, schema=layout)


class LogicalHash:
    """A hash over what blocks mean, whatever wrote their file: tokens, labels, lengths, blocks, weights.

    ``hexdigest`` is the sha256 of the concatenated sha256 digests of, in this order and as little-endian bytes: ``input_ids``
    (int32), ``labels`` (int32), ``seq_lengths`` (int32), the segments of each block (int32), and, where there are any,
    ``loss_weights`` (float32); each over all blocks of the shard in order.
    """

    def __init__(self) -> None:
        self._parts = [hashlib.sha256() for _ in range(4)]
        self._weights: Any = None

    def update(self, rows: BlockRows) -> None:
        """Add the next blocks."""
        arrays = (rows.input_ids, rows.labels, rows.seq_lengths, rows.block_segments)
        for part, array in zip(self._parts, arrays, strict=True):
            part.update(np.ascontiguousarray(array, "<i4").data)
        if rows.loss_weights is not None:
            self._weights = self._weights or hashlib.sha256()
            self._weights.update(np.ascontiguousarray(rows.loss_weights, "<f4").data)

    def hexdigest(self) -> str:
        """Return the hash of the blocks so far."""
        parts = [*self._parts, *([self._weights] if self._weights else [])]
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()
