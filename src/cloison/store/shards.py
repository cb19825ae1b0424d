"""Block shards: Parquet files of packed blocks, whole or not there, with the hashes that prove them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cloison.places import Place
from cloison.segments import IGNORE
from cloison.store.columns import BlockRows, Carried, LogicalHash, to_table
from cloison.store.files import file_sha256, replacing

__all__ = [
    "GROUP_TOKENS",
    "SHARD_TOKENS",
    "Shard",
    "blocks_per_group",
    "blocks_per_shard",
    "overall_hash",
    "shard_name",
    "write_shard",
]

SHARD_TOKENS = 1 << 22
"""Token positions of a shard (a whole number of blocks, at least one): small enough that a few million tokens keep some
workers busy, large enough that a billion make no crowd of files."""

SHARD_LIMIT = 1024
"""Shards of a data set at most; beyond, shards grow."""

GROUP_TOKENS = 1 << 15
"""Token positions of a Parquet row group: what reading one block at random decodes (some 0.3 ms). Larger ones make files a
little smaller (2 % at four times the size) and a random block slower."""


@dataclass(frozen=True)
class Shard:
    """What the manifest says of one file of blocks.

    Attributes:
        name: the file's name inside the data set.
        num_blocks, num_segments, num_tokens, num_targets: what is in it.
        size_bytes, sha256: of the file.
        logical_hash: of its meaning, see `LogicalHash`.
    """

    name: str
    num_blocks: int
    num_segments: int
    num_tokens: int
    num_targets: int
    size_bytes: int
    sha256: str
    logical_hash: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def shard_name(index: int) -> str:
    """Return the file name of shard ``index``."""
    return f"blocks-{index:05d}.parquet"


def blocks_per_group(capacity: int) -> int:
    """Return how many blocks of ``capacity`` tokens share a row group."""
    return max(1, GROUP_TOKENS // capacity)


def blocks_per_shard(capacity: int, num_blocks: int) -> int:
    """Return how many blocks a shard holds: a function of the spec and the input alone, and whole row groups."""
    group = blocks_per_group(capacity)
    wanted = max(SHARD_TOKENS // capacity, -(-num_blocks // SHARD_LIMIT), 1)
    return -(-wanted // group) * group


def write_shard(
    path: Place, batches: Iterable[BlockRows], layout: pa.Schema, carried: tuple[Carried, ...], capacity: int
) -> Shard:
    """Put a file of the blocks in ``batches`` at ``path``, whole or not at all, and return what is in it.

    Every batch but the last must hold whole row groups (a multiple of `blocks_per_group`). Cost: one batch in memory.
    """
    group = blocks_per_group(capacity)
    meaning = LogicalHash()
    blocks = segments = tokens = targets = 0
    with replacing(path) as part:
        with pq.ParquetWriter(
            part, layout, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=False
        ) as writer:
            for rows in batches:
                meaning.update(rows)
                writer.write_table(to_table(rows, layout, carried), row_group_size=group)
                blocks += rows.block_segments.size
                segments += rows.seq_lengths.size
                tokens += rows.input_ids.size
                targets += int(np.count_nonzero(rows.labels != IGNORE))
        size, found = part.stat().st_size, file_sha256(part)
    return Shard(path.name, blocks, segments, tokens, targets, size, found, meaning.hexdigest())


def overall_hash(shards: Iterable[Shard]) -> str:
    """Return the logical hash of a data set: the sha256 of its shards' logical hashes, as bytes, in order."""
    return hashlib.sha256(b"".join(bytes.fromhex(shard.logical_hash) for shard in shards)).hexdigest()
