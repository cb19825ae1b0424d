"""Imports: stores written by the facts of each format come in as they are, and pack takes them without a tokenizer."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import CloisonError, InputError, StoreError
from cloison.formats import datatrove, megatron, olmo_core

Documents = list[list[int]]
Masks = list[list[bool]]


def _flat(documents: Documents, dtype: str) -> np.ndarray:
    return np.array([token for ids in documents for token in ids], dtype)


def write_megatron(folder: Path, documents: Documents, masks: Masks | None, code: int = 4, parts: int = 1) -> Path:
    """``parts``: sequences a document is cut into."""
    dtype = {1: "<u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}[code]
    lengths, edges = [], [0]
    for ids in documents:
        cuts = [len(part) for part in np.array_split(np.arange(len(ids)), parts)]
        lengths += cuts
        edges.append(len(lengths))
    item = np.dtype(dtype).itemsize
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * item
    _flat(documents, dtype).tofile(folder / "x.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(edges))
    body = np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes() + np.array(edges, "<i8").tobytes()
    (folder / "x.idx").write_bytes(head + body)
    return folder / "x"


def write_olmo(folder: Path, documents: Documents, masks: Masks | None, dtype: str = "<u4") -> Path:
    _flat(documents, dtype).tofile(folder / "token_ids_part_0000.npy")
    ends = np.cumsum([len(ids) for ids in documents]).tolist()
    with gzip.open(folder / "token_ids_part_0000.csv.gz", "wt") as file:
        file.write("".join(f"{a},{b}\n" for a, b in zip([0, *ends[:-1]], ends, strict=True)))
    if masks is not None:
        np.array([one for mask in masks for one in mask], bool).tofile(folder / "labels_mask_part_0000.npy")
    return folder


def write_datatrove(folder: Path, documents: Documents, masks: Masks | None, dtype: str = "<u2") -> Path:
    _flat(documents, dtype).tofile(folder / "00000.ds")
    np.cumsum([len(ids) for ids in documents]).astype("<u8").tofile(folder / "00000.ds.index")
    if masks is not None:
        np.array([one for mask in masks for one in mask], bool).tofile(folder / "00000.ds.loss")
    return folder


def write_mds(folder: Path, documents: Documents, masks: Masks | None, compression: str | None = None) -> Path:
    """One row of all documents, dynamic shapes, with a row of padding behind."""
    numbers = np.array([n for n, ids in enumerate(documents) for _ in ids] + [-1, -1], "<i4")
    tokens = np.append(_flat(documents, "<i4"), [0, 0]).astype("<i4")
    columns = {"sequence_id": numbers, "tokens": tokens}
    if masks is not None:
        flags = np.array([one for mask in masks for one in mask] + [False, False])
        columns["labels"] = np.where(flags, tokens, -100).astype("<i4")
    names = sorted(columns)
    parts = [bytes([4 + 2]) + struct.pack("<I", columns[name].size) + columns[name].tobytes() for name in names]
    sample = b"".join(struct.pack("<I", len(part)) for part in parts) + b"".join(parts)
    config = {
        "column_encodings": ["ndarray:int32"] * len(names),
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    head = json.dumps(config).encode()
    begin = 4 + 8 + len(head)
    content = struct.pack("<3I", 1, begin, begin + len(sample)) + head + sample
    raw = {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}}
    packed = None
    if compression is None:
        (folder / "shard.00000.mds").write_bytes(content)
    else:
        packed = {"basename": "shard.00000.mds.zstd", "bytes": 0, "hashes": {}}
        with pa.output_stream(str(folder / "shard.00000.mds.zstd"), compression="zstd") as stream:
            stream.write(content)
    index = {"shards": [config | {"raw_data": raw, "samples": 1, "zip_data": packed}], "version": 2}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


Write = Callable[[Path, Documents, Masks | None], Path]
STORES: dict[str, tuple[str, Write, dict[str, Any], bool]] = {
    "megatron": ("megatron", write_megatron, {}, False),
    "megatron uint16": ("megatron", lambda f, d, m: write_megatron(f, d, m, 8), {}, False),
    "megatron int64 in parts": ("megatron", lambda f, d, m: write_megatron(f, d, m, 5, 2), {}, False),
    "olmo-core": ("olmo-core", write_olmo, {"dtype": "uint32"}, True),
    "olmo-core uint16": ("olmo-core", lambda f, d, m: write_olmo(f, d, m, "<u2"), {"dtype": "uint16"}, True),
    "datatrove": ("datatrove", write_datatrove, {}, True),
    "datatrove uint32": ("datatrove", lambda f, d, m: write_datatrove(f, d, m, "<u4"), {}, True),
    "mds": ("mds", write_mds, {}, True),
    "mds zstd": ("mds", lambda f, d, m: write_mds(f, d, m, "zstd"), {}, True),
}
DOCUMENTS: Documents = [[5, 6, 7, 2], [9, 2], [2, 8, 40_000, 11, 12, 2]]
MASKS: Masks = [[False, False, True, True], [False, True], [False, False, False, True, True, True]]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_documents_and_masks_come_in_and_are_packed(name: str, masked: bool, tmp_path: Path) -> None:
    format, write, options, holds = STORES[name]
    (tmp_path / "store").mkdir()
    source = write(tmp_path / "store", DOCUMENTS, MASKS if masked else None)
    done = cloison.import_tokens(source, tmp_path / "in", format, **options)
    assert (done.samples, done.tokens, done.masked) == (3, 12, masked and holds)
    packed = cloison.pack([str(tmp_path / "in")], tmp_path / "out", cloison.PackSpec(capacity=8))
    assert cloison.check(tmp_path / "out").ok
    found = {}
    for block in packed:
        for number, sample in zip(block.sample_ids.tolist(), block.samples(), strict=True):
            found[number] = (sample.input_ids.tolist(), (sample.labels != -100).tolist())
    masks = MASKS if masked and holds else [[False] + [True] * (len(ids) - 1) for ids in DOCUMENTS]
    assert [found[number] for number in range(3)] == list(zip(DOCUMENTS, masks, strict=True))


@settings(max_examples=15, deadline=None)
@given(documents=st.lists(st.lists(st.integers(0, 65_535), max_size=8), min_size=1, max_size=6))
def test_any_documents_come_in_as_they_are(documents: Documents, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("megatron", "olmo-core", "datatrove uint32"):
        format, write, options, _ = STORES[name]
        folder = tmp_path_factory.mktemp("any")
        source = write(folder, documents, None)
        if format == "datatrove" and not any(documents):
            continue
        done = cloison.import_tokens(source, folder / "in", format, **options)
        rows = [row for file in done.files for row in pq.read_table(file).column("input_ids").to_pylist()]
        assert rows == documents


def test_what_pack_exports_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"input_ids": ids, "labels": [-100, *ids[1:]]}) + "\n" for ids in DOCUMENTS)
    )
    spec = cloison.PackSpec(capacity=8, order="input")
    packed = cloison.pack([str(tmp_path / "a.jsonl")], tmp_path / "out", spec)
    order = packed.sample_ids().tolist()
    for to, format, options in (
        ("megatron", "megatron", {}),
        ("olmo-core", "olmo-core", {"dtype": "uint32"}),
        ("mds", "mds", {}),
    ):
        cloison.export(packed, tmp_path / to, to, lose=["blocks", "boundaries"])
        source = tmp_path / to / "samples_text_document" if to == "megatron" else tmp_path / to
        done = cloison.import_tokens(source, tmp_path / f"in-{to}", format, **options)
        rows = pq.read_table(done.files[0]).column("input_ids").to_pylist()
        assert rows == [DOCUMENTS[number] for number in order]


def test_documents_end_in_the_end_of_text_where_nothing_else_says(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    write_olmo(tmp_path / "s", DOCUMENTS, None)
    (tmp_path / "s" / "token_ids_part_0000.csv.gz").unlink()
    with pytest.raises(InputError, match="--eos"):
        cloison.import_tokens(tmp_path / "s", tmp_path / "a", "olmo-core", dtype="uint32")
    done = cloison.import_tokens(tmp_path / "s", tmp_path / "b", "olmo-core", dtype="uint32", eos_token_id=2)
    rows = pq.read_table(done.files[0]).column("input_ids").to_pylist()
    assert rows == [[5, 6, 7, 2], [9, 2], [2], [8, 40_000, 11, 12, 2]]


# ---------------------------------------------------------------------- stores that lie


def _patch(path: Path, at: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(content)] = content
    path.write_bytes(whole)


def _index(folder: Path, **changes: Any) -> None:
    plain = json.loads((folder / "index.json").read_text())
    plain["shards"][0].update(changes)
    (folder / "index.json").write_text(json.dumps(plain))


CSV, ENDS, SHARD = "token_ids_part_0000.csv.gz", "00000.ds.index", "shard.00000.mds"
DAMAGE: list[tuple[str, str, Callable[[Path], Any], str]] = [
    ("no index at all", "megatron", lambda f: (f / "x.idx").unlink(), "cannot be read"),
    ("another magic", "megatron", lambda f: _patch(f / "x.idx", 0, b"XX"), "must be a Megatron index"),
    ("a type of floats", "megatron", lambda f: _patch(f / "x.idx", 17, b"\x07"), "integer ids"),
    ("more sequences than bytes", "megatron", lambda f: _patch(f / "x.idx", 18, struct.pack("<Q", 1 << 40)), "must hold"),
    ("a negative length", "megatron", lambda f: _patch(f / "x.idx", 34, struct.pack("<i", -4)), "one after the other"),
    ("an offset elsewhere", "megatron", lambda f: _patch(f / "x.idx", 34 + 12 + 8, b"\x01"), "one after the other"),
    ("edges that fall", "megatron", lambda f: _patch(f / "x.idx", 34 + 36 + 8, b"\x09"), "cut all sequences"),
    ("a short token file", "megatron", lambda f: (f / "x.bin").write_bytes(b"\0" * 8), "must have 48 bytes"),
    ("negative ids", "megatron", lambda f: _patch(f / "x.bin", 0, b"\xff\xff\xff\xff"), "token ids are from 0"),
    ("half an id", "olmo-core", lambda f: (f / "token_ids_part_0000.npy").write_bytes(b"\0" * 47), "whole ids of 4 bytes"),
    ("a numpy header", "olmo-core", lambda f: np.save(f / "token_ids_part_0000.npy", np.zeros(12, "<u4")), "raw array"),
    (
        "metadata of another file",
        "olmo-core",
        lambda f: (f / CSV).write_bytes(gzip.compress(b"0,4\n")),
        "must cut all",
    ),
    (
        "metadata that is no numbers",
        "olmo-core",
        lambda f: (f / CSV).write_bytes(gzip.compress(b"a,b\n")),
        "must hold start,end",
    ),
    ("metadata that is no gzip", "olmo-core", lambda f: (f / CSV).write_bytes(b"0,4\n"), "cannot be read"),
    ("a short mask", "olmo-core", lambda f: (f / "labels_mask_part_0000.npy").write_bytes(b"\1"), "must have 12 entries"),
    ("no index", "datatrove", lambda f: (f / ENDS).unlink(), "cannot be read"),
    ("an index of another file", "datatrove", lambda f: np.array([4, 7], "<u8").tofile(f / ENDS), "tokens of its index"),
    ("an index that falls", "datatrove", lambda f: np.array([6, 4, 12], "<u8").tofile(f / ENDS), "tokens of its index"),
    ("a short loss file", "datatrove", lambda f: (f / "00000.ds.loss").write_bytes(b"\1"), "must have 12 entries"),
    ("no list of shards", "mds", lambda f: (f / "index.json").write_text("{}"), "must be an MDS data set"),
    ("an index that is no JSON", "mds", lambda f: (f / "index.json").write_text("{"), "must be JSON"),
    ("a name that leaves the folder", "mds", lambda f: _index(f, raw_data={"basename": "../x", "bytes": 1}), "in its data set"),
    ("another size", "mds", lambda f: (f / SHARD).write_bytes(b"\0"), "bytes"),
    ("a lying count", "mds", lambda f: _index(f, samples=2), "what its index says"),
    ("a huge count", "mds", lambda f: _index(f, samples=1 << 40), "one does not parse|must hold"),
    ("too few encodings", "mds", lambda f: _index(f, column_encodings=[]), "must hold MDS shards"),
    ("a count beyond all", "mds", lambda f: _index(f, samples=1 << 80), "must hold MDS shards"),
    ("an unknown encoding", "mds", lambda f: _index(f, column_encodings=["pkl"] * 3), "must hold MDS shards"),
    ("an offset beyond the file", "mds", lambda f: _patch(f / SHARD, 8, b"\xff\xff\xff\x7f"), "what its index says"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(DAMAGE)), ids=[f"{format}: {name}" for name, format, _, _ in DAMAGE])
def test_a_store_that_lies_is_an_error_of_ours(index: int, tmp_path: Path) -> None:
    _, format, damage, says = DAMAGE[index]
    (tmp_path / "store").mkdir()
    source = STORES[format][1](tmp_path / "store", DOCUMENTS, MASKS)
    damage(tmp_path / "store")
    with pytest.raises(CloisonError, match=f"(?i){says}") as caught:
        cloison.import_tokens(source, tmp_path / "in", format, **STORES[format][2])  # type: ignore[arg-type]
    assert isinstance(caught.value, StoreError)
    assert not list((tmp_path / "in").glob("*.parquet")) if (tmp_path / "in").exists() else True


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_an_error_of_ours_or_a_right_result(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    format = data.draw(st.sampled_from(["megatron", "olmo-core", "datatrove", "mds"]))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "store").mkdir()
    source = STORES[format][1](folder / "store", DOCUMENTS, MASKS)
    file = data.draw(st.sampled_from(sorted((folder / "store").iterdir())))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        done = cloison.import_tokens(source, folder / "in", format, **STORES[format][2])  # type: ignore[arg-type]
    except CloisonError:
        return
    rows = [row for path in done.files for row in pq.read_table(path).column("input_ids").to_pylist()]
    assert sum(map(len, rows)) == done.tokens <= 12 + 2 and all(token >= 0 for row in rows for token in row)


def test_wrong_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cloison.cli import main

    (tmp_path / "store").mkdir()
    write_olmo(tmp_path / "store", DOCUMENTS, MASKS)
    with pytest.raises(InputError, match="a format is one of"):
        cloison.import_tokens(tmp_path / "store", tmp_path / "in", "tfrecord")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="new or empty folder"):
        cloison.import_tokens(tmp_path / "store", tmp_path / "store", "olmo-core", dtype="uint32")
    assert main(["import", str(tmp_path / "store"), str(tmp_path / "in"), "--from", "olmo-core"]) == 2
    assert "--dtype" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "store"), str(tmp_path / "in"), "--from", "olmo-core", "--dtype", "uint32"]) == 0
    assert "3 samples, 12 tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["megatron", "olmo-core", "datatrove"])
def test_a_store_that_is_cut_while_it_is_read_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of another's is mapped: looking at a mapped file that was cut ends the process."""
    monkeypatch.setattr("cloison.formats.token_pieces._PIECE_TOKENS", 8)
    _, write, _, _ = STORES[name]
    source = write(tmp_path, DOCUMENTS * 100, None)
    read = {"megatron": megatron.read, "datatrove": datatrove.read, "olmo-core": partial(olmo_core.read, dtype="uint32")}[name]
    (ids,) = (path for path in tmp_path.iterdir() if path.suffix in (".bin", ".ds", ".npy"))
    pieces = read(source)
    next(pieces)
    os.truncate(ids, 500)
    with pytest.raises(StoreError, match="It lacks"):
        list(pieces)
