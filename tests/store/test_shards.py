"""Shards of blocks: what is written is read, and the logical hash is a function of the meaning alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloison.store.columns import BlockRows, LogicalHash, schema
from cloison.store.shards import SHARD_TOKENS, blocks_per_group, blocks_per_shard, write_shard


def rows(seed: int, blocks: int = 7) -> BlockRows:
    random = np.random.default_rng(seed)
    counts = random.integers(1, 4, blocks)
    lengths = random.integers(1, 6, int(counts.sum())).astype(np.int32)
    ids = random.integers(0, 99, int(lengths.sum())).astype(np.int32)
    labels = ids.copy()
    labels[np.cumsum(lengths) - lengths] = -100
    return BlockRows(ids, labels, lengths, np.arange(lengths.size, dtype=np.int64), counts.astype(np.int64))


def part(whole: BlockRows, first: int, last: int) -> BlockRows:
    segments = np.concatenate([[0], np.cumsum(whole.block_segments)])
    a, b = int(segments[first]), int(segments[last])
    tokens = np.concatenate([[0], np.cumsum(whole.seq_lengths)])
    here = slice(int(tokens[a]), int(tokens[b]))
    counts = whole.block_segments[first:last]
    return BlockRows(whole.input_ids[here], whole.labels[here], whole.seq_lengths[a:b], whole.sample_ids[a:b], counts)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    whole = rows(1)
    shard = write_shard(tmp_path / "a.parquet", [whole], schema(), (), capacity=32)
    table = pq.read_table(tmp_path / "a.parquet")
    assert np.concatenate(table.column("input_ids").to_pylist()).tolist() == whole.input_ids.tolist()
    assert np.concatenate(table.column("seq_lengths").to_pylist()).tolist() == whole.seq_lengths.tolist()
    assert [len(row) for row in table.column("sample_ids").to_pylist()] == whole.block_segments.tolist()
    assert (shard.num_blocks, shard.num_tokens) == (7, whole.input_ids.size)
    assert shard.sha256 == hashlib.sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()


def test_the_logical_hash_is_what_its_docstring_says(tmp_path: Path) -> None:
    whole = rows(2)
    shard = write_shard(tmp_path / "a.parquet", [whole], schema(), (), capacity=32)
    table = pq.read_table(tmp_path / "a.parquet")
    digests = b""
    for name in ("input_ids", "labels", "seq_lengths"):
        digests += hashlib.sha256(np.concatenate(table.column(name).to_pylist()).astype("<i4").tobytes()).digest()
    counts = np.array([len(row) for row in table.column("seq_lengths").to_pylist()], "<i4")
    digests += hashlib.sha256(counts.tobytes()).digest()
    assert shard.logical_hash == hashlib.sha256(digests).hexdigest()


@pytest.mark.parametrize("change", ["input_ids", "labels", "seq_lengths", "block_segments"])
def test_the_logical_hash_sees_every_part_and_not_the_batches(change: str) -> None:
    def digest(*batches: BlockRows) -> str:
        meaning = LogicalHash()
        for batch in batches:
            meaning.update(batch)
        return meaning.hexdigest()

    whole = rows(3)
    assert digest(whole) == digest(part(whole, 0, 3), part(whole, 3, 7))
    fields = dict(vars(whole))
    fields[change] = fields[change][::-1].copy() if change == "block_segments" else fields[change] + 1
    assert digest(whole) != digest(BlockRows(**fields))


@given(st.integers(1, 1 << 23), st.integers(0, 1 << 24))
def test_shards_are_whole_row_groups_of_about_their_size(capacity: int, blocks: int) -> None:
    size, group = blocks_per_shard(capacity, blocks), blocks_per_group(capacity)
    assert size % group == 0
    assert size >= max(1, SHARD_TOKENS // capacity)
    assert -(-blocks // size) <= 1024
