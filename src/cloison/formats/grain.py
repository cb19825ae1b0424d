"""grain and MaxText: Parquet rows of fixed width with inputs, targets, segment numbers and positions.

Columns are those of MaxText's packed batches, all list<int32> of ``capacity``: ``inputs``, ``inputs_segmentation`` (1, 2,
...; 0 at padding), ``inputs_position`` (0, 1, ... in each segment), ``targets`` (already shifted inside each segment),
``targets_segmentation`` (the segment's number where the target is trained, else 0: MaxText's loss takes it as the mask) and
``targets_position``. grain's ``ParquetIterDataset`` yields such rows; tested with grain 0.2.18.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cloison.formats.flat import block_offsets, pieces, rolled_mask, segment_numbers, segment_positions, to_rows
from cloison.store.columns import BlockRows
from cloison.store.files import replacing
from cloison.store.packed import Packed

__all__ = ["COLUMNS", "USAGE", "write"]

USAGE = (
    'grain.experimental.ParquetIterDataset(sorted(glob.glob("{dest}/*.parquet"))).map(lambda row: {{name: np.asarray(values, '
    "np.int32) for name, values in row.items()}}).batch(...)"
)
COLUMNS = ("inputs", "inputs_segmentation", "inputs_position", "targets", "targets_segmentation", "targets_position")


def write(packed: Packed, folder: Path, pad_token_id: int) -> list[Path]:
    """Write one Parquet file for each of the data set's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout = pa.schema([pa.field(name, pa.list_(pa.int32())) for name in COLUMNS])
    files = []
    for index, shard in enumerate(packed.manifest.shards):
        path = folder / f"train-{index:05d}.parquet"
        with (
            replacing(path) as part,
            pq.ParquetWriter(part, layout, compression="snappy", use_dictionary=False) as writer,
        ):
            for rows in pieces(packed, shard):
                group = max(1, (1 << 17) // packed.capacity)
                writer.write_table(_table(rows, packed.capacity, pad_token_id, layout), row_group_size=group)
        files.append(path)
    return files


def _table(rows: BlockRows, width: int, pad_token_id: int, layout: Any) -> Any:
    import pyarrow as pa

    offsets = block_offsets(rows)
    numbers, positions, asked = segment_numbers(rows), segment_positions(rows), rolled_mask(rows)
    targets = np.zeros_like(rows.input_ids)
    targets[:-1] = np.where(asked[:-1], rows.input_ids[1:], 0)
    columns = (
        (rows.input_ids, pad_token_id),
        (numbers, 0),
        (positions, 0),
        (targets, 0),
        (np.where(asked, numbers, 0).astype(np.int32), 0),
        (positions, 0),
    )
    ends = pa.array(np.arange(offsets.size, dtype=np.int32) * width)
    arrays = [
        pa.ListArray.from_arrays(ends, pa.array(to_rows(values, offsets, width, fill).reshape(-1))) for values, fill in columns
    ]
    return pa.Table.from_arrays(arrays, schema=layout)
