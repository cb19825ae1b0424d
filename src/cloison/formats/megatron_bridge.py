"""NeMo / Megatron-Bridge: packed Parquet rows.

A row is ``input_ids`` (list<int64>, all n tokens of each segment), ``loss_mask`` (list<int8>, one to the left: entry i
weighs the prediction of token i + 1; 0 at every segment's last token) and ``seq_start_id`` (list<int64>, the first is 0).
The reader trains n - 1 tokens of a segment, and so counts n - 1 toward the pack size. Row groups of 500 rows; the name ends
in ``.idx.parquet``. Beside it lies the metadata that the fine-tuning recipes read: a JSON list of one entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.formats.flat import block_offsets, first_tokens, pieces, rolled_mask
from cloison.store.columns import BlockRows
from cloison.store.files import replacing
from cloison.store.packed import Packed

__all__ = ["USAGE", "write"]

USAGE = (
    "FinetuningDatasetConfig(packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size={capacity}, "
    'packed_train_data_path="{dest}/training_{capacity}.idx.parquet", '
    'packed_metadata_path="{dest}/training_{capacity}_metadata.jsonl"))'
)

_GROUP_ROWS = 500


def write(packed: Packed, folder: Path, pad_token_id: int) -> list[Path]:
    """Write one ``training_CAPACITY.idx.parquet`` and its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout = pa.schema(
        [
            pa.field("input_ids", pa.list_(pa.int64())),
            pa.field("loss_mask", pa.list_(pa.int8())),
            pa.field("seq_start_id", pa.list_(pa.int64())),
        ]
    )
    path = folder / f"training_{packed.capacity}.idx.parquet"
    most = longest = 0
    shortest = packed.capacity
    held: list[Any] = []
    with replacing(path) as part, pq.ParquetWriter(part, layout, compression="snappy", use_dictionary=False) as writer:
        for shard in packed.manifest.shards:
            for rows in pieces(packed, shard):
                held.append(_table(rows, layout))
                sizes = np.diff(block_offsets(rows))
                most, longest = max(most, int(rows.block_segments.max())), max(longest, int(rows.seq_lengths.max()))
                shortest = min(shortest, int(sizes.min()))
                waiting = pa.concat_tables(held)
                whole = waiting.num_rows // _GROUP_ROWS * _GROUP_ROWS
                writer.write_table(waiting.slice(0, whole), row_group_size=_GROUP_ROWS) if whole else None
                held = [waiting.slice(whole)]
        if held and held[0].num_rows:
            writer.write_table(held[0], row_group_size=_GROUP_ROWS)
    blocks, segments = packed.manifest.num_blocks, packed.manifest.num_segments
    facts = {
        "dataset_max_seqlen": longest,
        "max_samples_per_bin": most,
        "packing_factor": round(segments / max(1, blocks), 2),
        "packing_efficiency": round(100 * packed.manifest.num_tokens / max(1, blocks * packed.capacity), 2),
        "pack_size": packed.capacity,
        "min_packed_seqlen": shortest,
    }
    metadata = folder / f"training_{packed.capacity}_metadata.jsonl"
    with replacing(metadata) as part:
        part.write_text(json.dumps([facts]), encoding="utf-8")
    return [path, metadata]


def _table(rows: BlockRows, layout: Any) -> Any:
    import pyarrow as pa

    offsets = block_offsets(rows)
    starts = first_tokens(rows) - np.repeat(offsets[:-1], rows.block_segments)
    by_segment = np.concatenate([[0], np.cumsum(rows.block_segments)])

    def column(ends: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Any:
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(values))

    arrays = [
        column(offsets, rows.input_ids.astype(np.int64)),
        column(offsets, rolled_mask(rows).astype(np.int8)),
        column(by_segment, starts),
    ]
    return pa.Table.from_arrays(arrays, schema=layout)
