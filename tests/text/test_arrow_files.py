"""Arrow files by their heads: the same rows as pyarrow reads, chunk by chunk; what lies, or was cut, is an error."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.errors import StoreError
from cloison.text import arrow_files
from cloison.text.arrow_files import arrow_batches, arrow_jobs, arrow_schema

TABLE = pa.table(
    {
        "ids": pa.array([list(range(n % 9)) for n in range(200)], pa.list_(pa.int32())),
        "text": [None if n % 5 == 0 else f"é {n}" for n in range(200)],
        "kind": pa.array(["a", "b"] * 100),
    }
)


def write(path: Path, table: pa.Table, rows: int = 7, compression: str | None = None, stream: bool = True) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def rows(path: Path) -> list[Any]:
    jobs = arrow_jobs(str(path))
    found = [[row for batch in arrow_batches(str(path), job) for row in batch.to_pylist()] for job in jobs]
    firsts = [sum(map(len, found[:number])) for number in range(len(found))]
    assert [job["first"] for job in jobs] == firsts
    return [row for part in found for row in part]


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 200),
    size=st.integers(1, 60),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    stream=st.booleans(),
    coded=st.booleans(),
    chunk=st.sampled_from([1, 3000, 1 << 22]),
    mapped=st.booleans(),
)
def test_rows_are_those_of_pyarrow_in_chunks_of_any_size(
    count: int,
    size: int,
    compression: str | None,
    stream: bool,
    coded: bool,
    chunk: int,
    mapped: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = TABLE.slice(0, count)
    if coded:
        table = table.set_column(2, "kind", table["kind"].dictionary_encode())
    path = write(tmp_path_factory.mktemp("arrow") / "a.arrow", table, size, compression, stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_files, "CHUNK_BYTES", chunk)
        patch.setattr(arrow_files, "READ_BYTES", 0 if mapped else 1 << 28)
        assert rows(path) == table.to_pylist()
        assert arrow_schema(str(path)) == table.schema
        assert all(job["mapped"] == mapped for job in arrow_jobs(str(path)))
        if chunk == 1 and count and not (stream and coded):
            assert len(arrow_jobs(str(path))) == -(-count // size)


def test_only_heads_are_read_to_find_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a data set of any size is looked through in a moment: what lies between the heads may be anything."""
    monkeypatch.setattr(arrow_files, "CHUNK_BYTES", 1)
    path = write(tmp_path / "a.arrow", pa.table({"a": pa.array([0] * (1 << 16), pa.int64())}), 1 << 14)
    jobs = arrow_jobs(str(path))
    assert [job["first"] for job in jobs] == [0, 1 << 14, 2 << 14, 3 << 14]
    body = bytearray(path.read_bytes())
    for job in jobs:
        start, stop = job["span"]
        body[start + 4096 : stop] = b"\xff" * (stop - start - 4096)
    path.write_bytes(body)
    assert arrow_jobs(str(path)) == jobs


@pytest.mark.parametrize("stream", [True, False])
def test_cut_anywhere_it_is_an_error_or_ends_as_a_stream_may(stream: bool, tmp_path: Path) -> None:
    whole = write(tmp_path / "a.arrow", TABLE.slice(0, 20), 7, None, stream).read_bytes()
    path = tmp_path / "b.arrow"
    expected = TABLE.slice(0, 20).to_pylist()
    ended = set()
    for size in range(0, len(whole), 3 if stream else 11):
        path.write_bytes(whole[:size])
        try:
            found = rows(path)
        except StoreError as error:
            assert "whole Arrow file" in error.asked and error.found
            continue
        assert stream and found == expected[: len(found)], "a stream without its end mark ends between two batches"
        ended.add(len(found))
    assert ended <= {0, 7, 14, 20}


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """In a process of its own, which a mapped file would end by SIGBUS."""
    for name, stream in (("a.arrow", False), ("b.arrow", True)):
        write(tmp_path / name, pa.table({"a": list(range(400_000))}), 100_000, None, stream)
    code = """
import os, sys
from cloison.errors import StoreError
from cloison.text import arrow_files
arrow_files.CHUNK_BYTES = 1
for path in sys.argv[1:]:
    jobs = arrow_files.arrow_jobs(path)
    first = next(arrow_files.arrow_batches(path, jobs[0]))
    os.truncate(path, 5000)
    assert first.column(0)[99_999].as_py() == 99_999
    for job in jobs[:2]:
        try:
            list(arrow_files.arrow_batches(path, job))
        except StoreError as error:
            print(error.found)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "a.arrow"), str(tmp_path / "b.arrow")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) == 4


def test_a_large_batch_is_mapped_and_read_through_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"a": list(range(400_000))}), 400_000)
    monkeypatch.setattr(arrow_files, "READ_BYTES", 1 << 20)
    (job,) = arrow_jobs(str(path))
    assert job["mapped"] and sum(batch.num_rows for batch in arrow_batches(str(path), job)) == 400_000
    with path.open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(StoreError, match="It does not read: it ends at byte 100,000"):
        list(arrow_batches(str(path), job))


def test_a_footer_that_lists_a_batch_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", TABLE, 100, None, False)
    first, second = (struct.pack("<q", start) for start in _starts(path))
    body = path.read_bytes()
    assert body.count(second) == 1
    path.write_bytes(body.replace(second, first))
    with pytest.raises(StoreError, match="twice"):
        arrow_jobs(str(path))


def _starts(path: Path) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_files, "CHUNK_BYTES", 1)
        return [job["span"][0] for job in arrow_jobs(str(path))]


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (0, b"\xff\xff\xff\x7f", "names bytes"),
        (4, b"\xff\xff\xff\x7f", "names bytes"),
        (8, b"\xff\xff\xff\xff", "unpack_from|outside"),
    ],
)
def test_heads_that_lie_are_told(offset: int, value: bytes, why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", TABLE)
    start = _starts(path)[1]
    body = bytearray(path.read_bytes())
    body[start + offset : start + offset + 4] = value
    path.write_bytes(body)
    with pytest.raises(StoreError, match=why):
        arrow_jobs(str(path))


def test_what_is_no_arrow_file_is_told(tmp_path: Path) -> None:
    for content in (b"", b"ARROW1", b"ARROW1\x00\x00" * 9, b"FEA1" + b"\x00" * 99, b"\xff" * 64, b"\x00" * 64, b"PAR1"):
        (tmp_path / "a.arrow").write_bytes(content)
        with pytest.raises(StoreError, match="must be a whole Arrow file"):
            arrow_jobs(str(tmp_path / "a.arrow"))
