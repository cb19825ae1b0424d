"""grain and MaxText: Parquet rows of fixed width with inputs, targets, segment numbers and positions.

Columns are those of MaxText's packed batches, all list<int32> of ``capacity``: ``inputs``, ``inputs_segmentation`` (1, 2,
...; 0 at padding), ``inputs_position`` (0, 1, ... in each segment), ``targets`` (already shifted inside each segment),
``targets_segmentation`` (the segment's number where the target is trained, else 0: MaxText's loss takes it as the mask) and
``targets_position``. grain's ``ParquetIterDataset`` yields such rows; tested with grain 0.2.18. Tokens are not compressed,
segment numbers and positions are, by LZ4.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from cloison.formats.flat import Piece, each_shard, pieces
from cloison.formats.parquet import Column, rows_per_group, writing
from cloison.places import Place
from cloison.segments import IGNORE
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = ["COLUMNS", "USAGE", "write"]

USAGE = (
    'grain.experimental.ParquetIterDataset(sorted(glob.glob("{dest}/*.parquet"))).map(lambda row: {{name: np.asarray(values, '
    "np.int32) for name, values in row.items()}}).batch(...)"
)
COLUMNS = ("inputs", "inputs_segmentation", "inputs_position", "targets", "targets_segmentation", "targets_position")

Rows = npt.NDArray[np.int32]


def write(packed: Packed, folder: Path, home: Place, pad_token_id: int) -> list[str]:
    """Write one Parquet file for each of the data set's."""
    columns = [Column(name, plain=name in ("inputs", "targets")) for name in COLUMNS]
    group = rows_per_group(packed.capacity)

    def one(index: int, shard: Shard) -> str:
        name = f"train-{index:05d}.parquet"
        cells = np.empty((0, 0, 0), np.int32)
        with writing(folder / name, columns) as file:
            for piece in pieces(packed, shard):
                blocks = piece.block_segments.size
                if cells.shape[1] < blocks:  # the memory is used for every piece
                    cells = np.empty((5, blocks, packed.capacity), np.int32)
                _fill(piece, pad_token_id, *cells[:, :blocks])
                ends = np.arange(blocks + 1, dtype=np.int64) * packed.capacity
                inputs, numbers, positions, targets, asked = (rows.reshape(-1) for rows in cells[:, :blocks])
                file.write([ends] * len(COLUMNS), (inputs, numbers, positions, targets, asked, positions), group)
        return name

    return each_shard(packed, one)


def _fill(piece: Piece, pad_token_id: int, inputs: Rows, numbers: Rows, positions: Rows, targets: Rows, asked: Rows) -> None:
    from cloison.formats.rows import lay, number, place, shift

    lengths, counts = piece.seq_lengths, piece.block_segments
    lay(piece.input_ids, lengths, counts, pad_token_id, inputs)
    number(lengths, counts, 1, 0, numbers)
    place(lengths, counts, positions)
    shift(piece.labels, IGNORE, lengths, counts, targets, asked)
