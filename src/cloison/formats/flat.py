"""The blocks of a packed data set in large flat pieces, as every writer wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.places import Remote, random_access
from cloison.segments import IGNORE
from cloison.store.columns import BlockRows
from cloison.store.files import store_errors
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = [
    "block_offsets",
    "first_tokens",
    "has_weights",
    "pieces",
    "rolled_mask",
    "segment_numbers",
    "segment_positions",
    "to_rows",
]

_PIECE_TOKENS = 1 << 20


def pieces(packed: Packed, shard: Shard) -> Iterator[BlockRows]:
    """Yield the blocks of one file in pieces of about a million tokens; the last columns only where they are there."""
    import pyarrow.parquet as pq

    path = packed.path / shard.name
    names = ["input_ids", "labels", "seq_lengths", "sample_ids"]
    size = max(1, _PIECE_TOKENS // packed.capacity)
    source = random_access(path, shard.size_bytes)
    remote = isinstance(path, Remote)
    with store_errors(f"{path} cannot be read"), pq.ParquetFile(source, memory_map=True, pre_buffer=remote) as file:
        names += [name for name in ("starts", "loss_weights") if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=size, columns=names):
            flat: dict[str, Any] = {}
            for name in names:
                column = batch.column(batch.schema.get_field_index(name))
                flat[name] = column.flatten().to_numpy(zero_copy_only=False)
            counts = np.diff(batch.column("seq_lengths").offsets.to_numpy()).astype(np.int64)
            yield BlockRows(block_segments=counts, **flat)


def has_weights(packed: Packed) -> bool:
    """Return whether the blocks hold loss weights. Cost: the footer of the first file."""
    import pyarrow.parquet as pq

    if not packed.manifest.shards:
        return False
    path = packed.path / packed.manifest.shards[0].name
    with store_errors(f"{path} cannot be read"):
        return "loss_weights" in pq.read_schema(random_access(path)).names


def first_tokens(rows: BlockRows) -> npt.NDArray[np.int64]:
    """Return int64 [segments], the index of each segment's first token."""
    return np.cumsum(rows.seq_lengths, dtype=np.int64) - rows.seq_lengths


def block_offsets(rows: BlockRows) -> npt.NDArray[np.int64]:
    """Return int64 [blocks + 1], the tokens of block b are ``[offsets[b]:offsets[b + 1]]``."""
    ends = np.concatenate([[0], np.cumsum(rows.seq_lengths, dtype=np.int64)])
    return np.asarray(ends[np.concatenate([[0], np.cumsum(rows.block_segments)])])


def segment_numbers(rows: BlockRows) -> npt.NDArray[np.int32]:
    """Return int32 [tokens], the number of each token's segment in its block, from 1."""
    first = np.cumsum(rows.block_segments) - rows.block_segments
    inner = np.arange(rows.seq_lengths.size) - np.repeat(first, rows.block_segments) + 1
    return np.repeat(inner.astype(np.int32), rows.seq_lengths)


def segment_positions(rows: BlockRows) -> npt.NDArray[np.int32]:
    """Return int32 [tokens], the place of each token in its segment, from 0."""
    return (np.arange(rows.input_ids.size) - np.repeat(first_tokens(rows), rows.seq_lengths)).astype(np.int32)


def rolled_mask(rows: BlockRows) -> npt.NDArray[np.bool_]:
    """Return bool [tokens], True where the *next* token of the same segment is a target; never at a segment's last token."""
    asked = np.zeros(rows.labels.size, bool)
    asked[:-1] = rows.labels[1:] != IGNORE
    asked[first_tokens(rows) + rows.seq_lengths - 1] = False
    return asked


def to_rows(values: npt.NDArray[Any], offsets: npt.NDArray[np.int64], width: int, fill: int | float) -> npt.NDArray[Any]:
    """Return flat values as [blocks, width], filled with ``fill`` behind each block's own."""
    out = np.full((offsets.size - 1, width), fill, values.dtype)
    sizes = np.diff(offsets)
    out[np.arange(width) < sizes[:, None]] = values
    return out
