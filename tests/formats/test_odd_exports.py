"""Exports of odd data, to odd places, of files that lie, and of runs that die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import CloisonError, InputError, StoreError
from cloison.formats.exporting import LOSSES, TARGETS
from tests.formats import fact_readers
from tests.formats.fact_readers import Blocks

LARGEST = 2**31 - 1
ROWS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one block": ([{"input_ids": [5, 6, 7], "labels": [-100, 6, -100]}], {}),
    "a block that is full": ([{"input_ids": list(range(16))}], {}),
    "the largest ids": ([{"input_ids": [0, LARGEST, 65_536, LARGEST]}] * 9, {}),
    "split samples": ([{"input_ids": list(range(5, 5 + n))} for n in (3, 40, 17, 100, 16)], {"overflow": "split"}),
    "capacity 2": ([{"input_ids": [n, n]} for n in range(9)], {"capacity": 2}),
    "a piece of one token": ([{"input_ids": list(range(17))}], {"overflow": "split"}),
    "carried columns": ([{"input_ids": [5, 6, n], "source": f"s{n}"} for n in range(50)], {"carry": ("source",)}),
}


def _pack(folder: Path, rows: list[dict[str, Any]], **spec: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cloison.pack([str(folder / "a.jsonl")], folder / "out", cloison.PackSpec(**({"capacity": 16} | spec)))
    return folder / "out"


def _blocks(path: Path) -> Blocks:
    return [
        [(one.input_ids.tolist(), (one.labels != -100).tolist()) for one in _segments(block)] for block in cloison.open(path)
    ]


def _segments(block: cloison.Block) -> list[cloison.Sample]:
    ends = np.cumsum(block.segments.seq_lengths)
    return [
        cloison.Sample(block.input_ids[b - n : b], block.labels[b - n : b])
        for n, b in zip(block.segments.seq_lengths, ends, strict=True)
    ]


def _read(to: str, folder: Path) -> Blocks:
    found: Blocks = getattr(fact_readers, to.replace("-", "_"))(folder)
    return found


def _wanted(to: str, path: Path) -> Blocks:
    blocks = _blocks(path)
    if to != "megatron":
        return blocks
    return [[(ids, [False] + [True] * (len(ids) - 1)) for block in blocks for ids, _ in block]]


@pytest.mark.parametrize("name", ROWS)
def test_odd_data_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    rows, spec = ROWS[name]
    path = _pack(tmp_path / "x", rows, **spec)
    for to in TARGETS:
        done = cloison.export(path, tmp_path / to, to, lose=list(LOSSES), pad_token_id=LARGEST)
        assert _read(to, tmp_path / to) == _wanted(to, path), to
        assert all(file.is_file() for file in done.files)


@settings(max_examples=10, deadline=None)
@given(
    samples=st.lists(
        st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), min_size=1, max_size=16), min_size=1, max_size=20
    ),
    spare=st.integers(0, 5),
)
def test_what_goes_out_comes_back(
    samples: list[list[tuple[int, bool]]], spare: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("back")
    rows = [{"input_ids": [t for t, _ in one], "labels": [t if asked else -100 for t, asked in one]} for one in samples]
    capacity = max(map(len, samples)) + spare
    assume(any(asked for one in samples for _, asked in one[1:]))
    path = _pack(folder / "x", rows, capacity=capacity, on_empty="drop")
    wanted = sorted(one for block in _blocks(path) for one in block)
    for to, options in (("olmo-core", {"dtype": "uint32"}), ("mds", {}), ("megatron", {})):
        cloison.export(path, folder / to, to, lose=["labels", "blocks", "boundaries"])
        source = folder / to / "samples_text_document" if to == "megatron" else folder / to
        cloison.import_tokens(source, folder / f"{to}-in", to, **options)  # type: ignore[arg-type]
        cloison.pack([str(folder / f"{to}-in")], folder / f"{to}-again", cloison.PackSpec(capacity=capacity, on_empty="drop"))
        again = sorted(one for block in _blocks(folder / f"{to}-again") for one in block)
        if to == "megatron":
            assert [ids for ids, _ in again] == sorted(ids for ids, _ in wanted)
        else:
            assert again == wanted


def test_weights_that_come_back_need_their_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cloison.cli import main

    rows = [{"input_ids": [5, 6, 7], "weight": 0.5}, {"input_ids": [8, 9], "weight": 1.5}]
    path = _pack(tmp_path / "x", rows, columns={"input_ids": "input_ids", "weight": "weight"})
    cloison.export(path, tmp_path / "mds", "mds")
    with pytest.raises(InputError, match="loss_weights"):
        cloison.import_tokens(tmp_path / "mds", tmp_path / "in", "mds")
    assert not (tmp_path / "in").exists()
    with pytest.raises(InputError, match="may lose is weights"):
        cloison.import_tokens(tmp_path / "mds", tmp_path / "in", "mds", lose=["labels"])
    assert main(["import", str(tmp_path / "mds"), str(tmp_path / "in"), "--from", "mds", "--lose", "weights"]) == 0
    assert "columns left out: loss_weights" in capsys.readouterr().out


def test_a_broken_import_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.formats import token_pieces

    path = _pack(tmp_path / "x", [{"input_ids": [5, 6, 7, n]} for n in range(50)])
    cloison.export(path, tmp_path / "olmo", "olmo-core")
    monkeypatch.setattr(token_pieces, "_PIECE_TOKENS", 16)
    monkeypatch.setattr(token_pieces, "_FILE_TOKENS", 32)
    straight = cloison.import_tokens(tmp_path / "olmo", tmp_path / "straight", "olmo-core", dtype="uint32")
    assert len(straight.files) > 3 and straight.samples == 50
    (tokens,) = (tmp_path / "olmo").glob("tokens-*.npy")
    ids = np.fromfile(tokens, "<u4")
    ids[-1] = 2**31  # the last piece is found to be wrong when the others are written
    ids.tofile(tokens)
    with pytest.raises(StoreError, match="token ids are from 0"):
        cloison.import_tokens(tmp_path / "olmo", tmp_path / "in", "olmo-core", dtype="uint32")
    assert not (tmp_path / "in").exists()


def test_no_blocks_are_refused(tmp_path: Path) -> None:
    path = _pack(tmp_path / "x", [{"input_ids": []}], on_empty="drop")
    for to in TARGETS:
        with pytest.raises(InputError, match="must hold blocks"):
            cloison.export(path, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- places


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"input_ids": list(range(5, 7 + n % 14)), "labels": [-100, *range(6, 7 + n % 14)]} for n in range(100)]
    return _pack(tmp_path_factory.mktemp("odd"), rows)


@pytest.mark.parametrize("name", ["with spaces", "[brackets]*", "{braces} %s", "qu\"o'te", "ünïcødé", "-dash"])
def test_odd_names(name: str, packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / f"in {name}")
    for to in TARGETS:
        dest = tmp_path / name / to
        done = cloison.export(tmp_path / f"in {name}", dest, to, lose=["blocks", "boundaries"])
        assert _read(to, dest) == _wanted(to, packed)
        assert str(dest) in done.usage
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"in {name}"])


def test_inside_the_data_set_is_refused(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    before = sorted((tmp_path / "data").rglob("*"))
    for dest in (
        tmp_path / "data",
        tmp_path / "data" / "sub" / "out",
        tmp_path / "x" / ".." / "data" / "out",
        tmp_path / "link" / "o",
    ):
        with pytest.raises(InputError, match="must not be inside the data set"):
            cloison.export(tmp_path / "data", dest, "trl")
    assert sorted((tmp_path / "data").rglob("*")) == before
    cloison.export(tmp_path / "data", tmp_path / "data-out", "trl")  # a name that begins like it is another folder


def test_a_file_or_a_used_folder_is_left_alone(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / ".hidden").write_text("mine")
    (tmp_path / "empty").mkdir()
    for dest in ("file", "used"):
        with pytest.raises(StoreError, match="new or empty folder"):
            cloison.export(packed, tmp_path / dest, "mds")
    assert (tmp_path / "file").read_text() == (tmp_path / "used" / ".hidden").read_text() == "mine"
    cloison.export(packed, tmp_path / "empty", "mds")
    with pytest.raises(StoreError, match="new or empty folder"):
        cloison.export(packed, tmp_path / "empty", "mds")
    assert fact_readers.mds(tmp_path / "empty") == _blocks(packed)


def test_one_export_at_a_time(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.formats import mds

    real = mds.each_shard
    seen = []

    def second(*arguments: Any) -> Any:
        if not seen:
            seen.append(True)
            with pytest.raises(StoreError, match="one run at a time"):
                cloison.export(packed, tmp_path / "out", "mds")
        return real(*arguments)

    monkeypatch.setattr(mds, "each_shard", second)
    cloison.export(packed, tmp_path / "out", "mds")
    assert seen and fact_readers.mds(tmp_path / "out") == _blocks(packed)


# ---------------------------------------------------------------------- runs that die

DIES = """
import os, signal, sys
import cloison.formats.{module} as module
real, count = module.replacing, [0]
def replacing(path, **options):
    count[0] += 1
    if count[0] > {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(path, **options)
module.replacing = replacing
import cloison
cloison.export({path!r}, {dest!r}, {to!r}, lose=["blocks", "boundaries"])
"""


@pytest.mark.parametrize(("to", "module", "after"), [("mds", "mds", 1), ("olmo-core", "olmo_core", 4), ("trl", "trl", 0)])
def test_a_killed_export_shows_nothing_and_runs_again(to: str, module: str, after: int, packed: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    script = DIES.format(module=module, after=after, path=str(packed), dest=str(dest), to=to)
    environment = os.environ | {"PYTHONPATH": str(Path(cloison.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert [path.name for path in dest.iterdir()] == [".work"]
    done = cloison.export(packed, dest, to, lose=["blocks", "boundaries"])
    other = cloison.export(packed, tmp_path / "straight", to, lose=["blocks", "boundaries"])
    assert [file.read_bytes() for file in done.files] == [file.read_bytes() for file in other.files]
    assert {file for file in dest.rglob("*") if file.is_file()} == set(done.files)


@pytest.mark.parametrize("to", TARGETS)
def test_an_error_leaves_nothing(to: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "empty").mkdir()
    for dest in (tmp_path / "new" / "out", tmp_path / "empty"):
        with pytest.raises(StoreError, match="cannot be written") as caught:
            cloison.export(packed, dest, to, lose=["blocks", "boundaries"])
        assert "Free space" in caught.value.remedy
    assert not (tmp_path / "new" / "out").exists() and not list((tmp_path / "empty").iterdir())


# ---------------------------------------------------------------------- data sets that lie


LIES: dict[str, Any] = {
    "lengths that do not sum": lambda t: _with(
        t, "seq_lengths", [[*row[:-1], row[-1] + 1] for row in t["seq_lengths"].to_pylist()]
    ),
    "a length of zero": lambda t: _with(t, "seq_lengths", [[0, *row] for row in t["seq_lengths"].to_pylist()]),
    "a negative length": lambda t: _with(
        t, "seq_lengths", [[-1, row[0] + 1, *row[1:]] for row in t["seq_lengths"].to_pylist()]
    ),
    "labels of other tokens": lambda t: _with(t, "labels", [row[1:] for row in t["labels"].to_pylist()]),
    "a block that is missing": lambda t: t.slice(1),
    "a block too many": lambda t: pa.concat_tables([t, t.slice(0, 1)]),
    "a null": lambda t: _with(t, "input_ids", [[None, *row[1:]] for row in t["input_ids"].to_pylist()]),
    "wide ids": lambda t: t.set_column(0, "input_ids", t["input_ids"].cast(pa.list_(pa.int64()))),
    "no labels": lambda t: t.drop_columns(["labels"]),
}


def _with(table: pa.Table, name: str, rows: list[list[Any]]) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, table.schema.field(index), pa.array(rows, table.schema.field(index).type))


@pytest.mark.parametrize("lie", LIES)
def test_a_data_set_that_lies_is_an_error_of_ours(lie: str, packed: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    honest = cloison.open(packed)
    (shard,) = honest.manifest.shards
    shutil.copytree(packed, tmp_path / "data")
    file = tmp_path / "data" / shard.name
    pq.write_table(LIES[lie](pq.read_table(file)), file, compression="zstd", use_dictionary=False)
    lying = replace(honest.manifest, shards=(replace(shard, size_bytes=file.stat().st_size),))
    opened = type(honest)(tmp_path / "data", lying)
    for to in TARGETS:
        if to == "megatron" and "label" in lie:
            continue
        with pytest.raises(CloisonError):
            cloison.export(opened, tmp_path / to, to, lose=list(LOSSES))
        assert not (tmp_path / to).exists()


# ---------------------------------------------------------------------- sizes


def test_megatron_offsets_do_not_wrap() -> None:
    from cloison.formats.megatron import _index

    lengths = np.array([2**31 - 1, 2**31 - 1, 5, 2**30], np.int32)
    content = _index(lengths)
    pointers = np.frombuffer(content, "<i8", 4, 34 + 16)
    assert pointers.tolist() == [0, 4 * (2**31 - 1), 8 * (2**31 - 1), 8 * (2**31 - 1) + 20]
    assert struct.unpack_from("<QBQQ", content, 9) == (1, 4, 4, 5)


def test_a_row_that_mds_offsets_cannot_hold_is_refused(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.formats import mds

    monkeypatch.setattr(mds, "_OFFSET_LIMIT", 300)
    with pytest.raises(InputError, match="smaller than 4 GiB"):
        cloison.export(packed, tmp_path / "out", "mds")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("blocks", [1, 2, 9, 10, 11, 100])
def test_mds_shards_are_even(blocks: int) -> None:
    from cloison.formats.mds import _even

    parts = _even(blocks, 10)
    assert sum(parts) == blocks and max(parts) <= 10 and max(parts) - min(parts) <= 1 and len(parts) == -(-blocks // 10)
