"""NeMo / Megatron-Bridge: packed Parquet rows, as releases after 0.3 read them (0.3 reads ``.npy`` alone).

A row is ``input_ids`` (list<int32>, all n tokens of each segment), ``loss_mask`` (list<int8>, one to the left: entry i
weighs the prediction of token i + 1; 0 at every segment's last token) and ``seq_start_id`` (list<int32>, the first is 0).
The reader trains n - 1 tokens of a segment, and so counts n - 1 toward the pack size and in the metadata, a JSON list of one
entry. It takes a pattern of names that ends in ``.parquet``. It holds one decoded row group and asks for rows in random
order: row groups are of a few rows, and the tokens in them are not compressed (loss masks are, by LZ4).

Rows were read by the collator of megatron-bridge 0.3.1; it takes no loss at a token that equals the tokenizer's
end-of-text id, whatever the mask says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.formats.flat import Piece, block_offsets, each_shard, first_tokens, pieces, rolled_mask
from cloison.formats.parquet import Column, rows_per_group, writing
from cloison.places import Place
from cloison.store.files import replacing
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = ["USAGE", "write"]

USAGE = (
    "FinetuningDatasetConfig(packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size={capacity}, "
    'packed_train_data_path="{dest}/training_{capacity}-*.idx.parquet", '
    'packed_metadata_path="{dest}/training_{capacity}_metadata.jsonl"))'
)


@dataclass(frozen=True)
class _Facts:
    """Of some rows, counted as the reader does: a segment of n tokens has n - 1."""

    most_segments: int
    longest: int
    shortest_row: int


def write(packed: Packed, folder: Path, home: Place, pad_token_id: int) -> list[str]:
    """Write ``training_CAPACITY-NNNNN.idx.parquet`` for each of the data set's files, and their metadata."""
    columns = Column("input_ids", plain=True), Column("loss_mask", bits=8), Column("seq_start_id")
    group = rows_per_group(packed.capacity)

    def one(index: int, shard: Shard) -> tuple[str, list[_Facts]]:
        name = f"training_{packed.capacity}-{index:05d}.idx.parquet"
        facts = []
        with writing(folder / name, columns) as file:
            for piece in pieces(packed, shard):
                file.write(*_rows(piece), group)
                facts.append(_facts(piece))
        return name, facts

    written = each_shard(packed, one)
    facts = [one for _, found in written for one in found]
    blocks, segments, tokens = packed.manifest.num_blocks, packed.manifest.num_segments, packed.manifest.num_tokens
    metadata = {
        "dataset_max_seqlen": max(one.longest for one in facts),
        "max_samples_per_bin": max(one.most_segments for one in facts),
        "packing_factor": round(segments / blocks, 2),
        "packing_efficiency": round(100 * (tokens - segments) / (blocks * packed.capacity), 2),
        "pack_size": packed.capacity,
        "min_packed_seqlen": min(one.shortest_row for one in facts),
    }
    name = f"training_{packed.capacity}_metadata.jsonl"
    with replacing(folder / name) as part:
        part.write_text(json.dumps([metadata]), encoding="utf-8")
    return [*(name for name, _ in written), name]


def _facts(piece: Piece) -> _Facts:
    rows = np.diff(block_offsets(piece)) - piece.block_segments
    return _Facts(int(piece.block_segments.max()), int(piece.seq_lengths.max()) - 1, int(rows.min()))


def _rows(piece: Piece) -> tuple[tuple[npt.NDArray[np.int64], ...], tuple[npt.NDArray[Any], ...]]:
    """Return where the rows of each column end, and the column's values."""
    offsets = block_offsets(piece)
    starts = first_tokens(piece) - np.repeat(offsets[:-1], piece.block_segments)
    by_segment = np.concatenate([[0], np.cumsum(piece.block_segments)])
    return (offsets, offsets, by_segment), (piece.input_ids, rolled_mask(piece), starts)
