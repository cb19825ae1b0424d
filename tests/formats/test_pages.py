"""Pages read without their levels: what pyarrow reads of them, or its turn, or an error of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import CloisonError
from cloison.formats import flat
from cloison.formats.compact import TRUE, i8, i32, i64, many, parse, struct, text
from cloison.formats.flat import pieces
from cloison.formats.pages import plain_groups, read_groups
from cloison.formats.rows import starts

OPTIONS: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}


def _table(lengths: list[int], seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    ids = [random.integers(0, 1 << 31, n).astype(np.int32) for n in lengths]
    weights = [random.random(n).astype(np.float32) for n in lengths]
    counts = [random.integers(1, 9, random.integers(1, 4)).astype(np.int32) for _ in lengths]
    kinds = {"input_ids": pa.int32(), "loss_weights": pa.float32(), "seq_lengths": pa.int32()}
    return pa.table(
        {name: pa.array(rows, pa.list_(kinds[name])) for name, rows in zip(kinds, (ids, weights, counts), strict=True)}
    )


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9) | st.sampled_from([16, 500, 505, 9000]), min_size=1, max_size=40),
    group=st.integers(1, 40),
    page=st.sampled_from([16, 1000, 1 << 20]),
    batch=st.sampled_from([1, 100, 1024]),
)
def test_they_are_what_pyarrow_reads(
    lengths: list[int], group: int, page: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("pages") / "x.parquet"
    table = _table(lengths)
    pq.write_table(table, path, row_group_size=group, data_page_size=page, write_batch_size=batch, **OPTIONS)
    names = ["seq_lengths", "loss_weights", "input_ids"]
    with path.open("rb") as file:
        groups = plain_groups(file, pq.read_metadata(path), names)
        assert groups is not None and len(groups) == -(-len(lengths) // group)
        found = read_groups(file, groups, ["<i4", "<f4", "<i4"], 9000)
    for name, one in zip(names, found, strict=True):
        wanted = table[name].combine_chunks()
        assert one.values.dtype == wanted.values.to_numpy().dtype
        assert np.array_equal(one.values, wanted.values.to_numpy())
        assert np.array_equal(one.offsets, wanted.offsets.to_numpy())


@pytest.mark.parametrize(
    "options",
    [{"use_dictionary": True}, {"compression": "snappy"}, {"data_page_version": "2.0"}, {"compression": "none"}],
    ids=str,
)
def test_other_pages_are_left_to_pyarrow(options: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(_table([3, 4]), tmp_path / "x.parquet", **OPTIONS | options)
    with (tmp_path / "x.parquet").open("rb") as file:
        assert plain_groups(file, pq.read_metadata(tmp_path / "x.parquet"), ["input_ids"]) is None


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int64()), pa.list_(pa.uint32()), pa.list_(pa.field("element", pa.int32(), nullable=False)), pa.int32()],
    ids=str,
)
def test_columns_of_other_types_are_left_to_pyarrow(kind: pa.DataType, tmp_path: Path) -> None:
    rows = [1, 2] if kind == pa.int32() else [[1], [2]]
    pq.write_table(pa.table({"input_ids": pa.array(rows, kind)}), tmp_path / "x.parquet", **OPTIONS)
    with (tmp_path / "x.parquet").open("rb") as file:
        metadata = pq.read_metadata(tmp_path / "x.parquet")
        assert plain_groups(file, metadata, ["input_ids"]) is None and plain_groups(file, metadata, ["none"]) is None


@pytest.mark.parametrize("rows", [[[1, 2], None], [[1, 2], []], [[1, None], [2]], [[1], [1, 2, 3]]], ids=str)
def test_nulls_empty_lists_and_rows_that_are_too_long_are_errors(rows: list[Any], tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "x.parquet", **OPTIONS)
    with (tmp_path / "x.parquet").open("rb") as file:
        groups = plain_groups(file, pq.read_metadata(tmp_path / "x.parquet"), ["input_ids"])
        assert groups is not None
        with pytest.raises(ValueError, match=r"null|in 2 rows"):
            read_groups(file, groups, ["<i4"], 1 if len(rows[1] or []) == 3 else 2)


def _packed(folder: Path) -> cloison.Packed:
    random = np.random.default_rng(1)
    rows = [{"input_ids": random.integers(0, 70_000, random.integers(2, 16)).tolist()} for _ in range(60)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return cloison.pack(folder / "a.jsonl", folder / "out", cloison.PackSpec(capacity=16))


def test_packed_blocks_are_read_this_way_and_any_other_way_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = _packed(tmp_path)
    (shard,) = packed.manifest.shards
    monkeypatch.setattr(flat, "_ragged", None)  # pyarrow's turn would fail
    ours = list(pieces(packed, shard))
    monkeypatch.undo()
    monkeypatch.setattr(flat, "plain_groups", lambda *_: None)
    theirs = list(pieces(packed, shard))
    for name in ("input_ids", "labels", "seq_lengths", "block_segments"):
        one, two = (np.concatenate([getattr(piece, name) for piece in found]) for found in (ours, theirs))
        assert one.dtype == two.dtype and np.array_equal(one, two)


def test_a_changed_byte_is_an_error_of_ours_or_another_value(tmp_path: Path) -> None:
    packed = _packed(tmp_path)
    (shard,) = packed.manifest.shards
    content = (packed.path / shard.name).read_bytes()  # type: ignore[operator]
    shutil.copytree(packed.path, tmp_path / "data")  # type: ignore[arg-type]
    random = np.random.default_rng(2)
    raised = 0
    for at in [*range(4, 64), *random.integers(4, len(content), 300).tolist()]:
        changed = bytearray(content)
        changed[at] ^= 1 << int(random.integers(0, 8))
        (tmp_path / "data" / shard.name).write_bytes(changed)
        other = type(packed)(tmp_path / "data", packed.manifest)
        try:
            found = list(pieces(other, shard))
        except CloisonError:
            raised += 1
            continue
        assert sum(piece.block_segments.size for piece in found) == shard.num_blocks
    assert raised > 100


@pytest.mark.parametrize(
    ("levels", "count", "found"),
    [
        (b"\x02\x00\x06\x01", 4, [0]),  # a run of one 0, a run of three 1s
        (b"\x06\x00", 3, [0, 1, 2]),
        (b"\x03\xee", 8, [0, 4]),  # eight apart, the lowest bit first
        (b"\x03\xee", 5, [0, 4]),
        (b"\x02\x00\xfe\x01\x01", 128, [0]),
        (b"", 1, None),
        (b"\x06", 3, None),
        (b"\x03", 8, None),
        (b"\x00\x00", 1, None),
        (b"\x80\x80\x80\x80\x80\x80\x01\x00", 1, None),
        (b"\x08\x00", 4, None),  # more rows than there may be
    ],
)
def test_where_rows_start(levels: bytes, count: int, found: list[int] | None) -> None:
    there = np.empty(3, np.int64)
    number = starts(np.frombuffer(levels, np.uint8), count, there)
    assert (there[:number].tolist() if number >= 0 else None) == found


@given(numbers=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=40), words=st.text(max_size=200))
def test_structs_are_parsed_as_they_were_made(numbers: list[int], words: str) -> None:
    inner = struct({1: many([i64(n) for n in numbers]), 3: text(words), 4: TRUE, 15: i8(7)})
    content = b"x" + struct({2: i32(max(-(1 << 31), min(numbers[0], (1 << 31) - 1))), 9: inner})[1] + b"rest"
    fields, at = parse(content, 1)
    assert content[at:] == b"rest"
    assert fields == {
        2: max(-(1 << 31), min(numbers[0], (1 << 31) - 1)),
        9: {1: numbers, 3: words.encode(), 4: True, 15: 7},
    }
    assert parse(b"\x07\x50\x02\x00", 3) == ({}, 4)
    assert parse(b"\x05\x04\x06\x00", 0) == ({2: 3}, 4)  # a number of its own in place of a step
    for broken in (content[1:9], b"\x1d\x00", b"\x15" + b"\xff" * 12):
        with pytest.raises((IndexError, ValueError)):
            parse(broken, 0)
