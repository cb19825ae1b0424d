"""Parquet files of lists: pyarrow reads what was given, and the footer says what is in the file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloison.errors import InputError
from cloison.formats import parquet
from cloison.formats.parquet import Column, ListFile, writing

COLUMNS = Column("a", plain=True), Column("b", bits=8), Column("c"), Column("d", plain=True), Column("e", bits=8, plain=True)
LENGTHS = st.integers(1, 5) | st.sampled_from([64, 65, 66, 8192, 8193, 8194])  # where a run's length takes a byte more


def _column(lengths: list[int], bits: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.integer]]:
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    edge = 1 << (bits - 1)
    values = np.random.default_rng(seed).integers(-edge, edge, ends[-1]).astype(np.int8 if bits == 8 else np.int32)
    values[0], values[-1] = -edge, edge - 1
    return ends, values


@settings(max_examples=30, deadline=None)
@given(batches=st.lists(st.lists(LENGTHS, min_size=1, max_size=8), min_size=1, max_size=3), most=st.integers(1, 9))
@example(batches=[[1]], most=1)
@example(batches=[[1 << 20, 1, 1 << 21]], most=2)
def test_pyarrow_reads_what_was_given(batches: list[list[int]], most: int) -> None:
    out = io.BytesIO()
    file = ListFile(out, COLUMNS)
    wanted: dict[str, list[list[int]]] = {column.name: [] for column in COLUMNS}
    groups = 0
    for number, lengths in enumerate(batches):
        cells = [_column(lengths if k != 2 else lengths[::-1], column.bits, number) for k, column in enumerate(COLUMNS)]
        cells[3] = cells[0]  # the same arrays again
        file.write([ends for ends, _ in cells], [values for _, values in cells], most)
        groups += -(-len(lengths) // most)
        for column, (ends, values) in zip(COLUMNS, cells, strict=True):
            wanted[column.name] += [one.tolist() for one in np.split(values, ends[1:-1])]
    file.end()
    content = out.getvalue()
    found = pq.ParquetFile(io.BytesIO(content))
    kinds = {column.name: pa.int8() if column.bits == 8 else pa.int32() for column in COLUMNS}
    assert found.schema_arrow == pa.schema(
        [pa.field(name, pa.list_(pa.field("element", kind, nullable=False)), nullable=False) for name, kind in kinds.items()]
    )
    table = found.read()
    table.validate(full=True)
    assert table.to_pydict() == wanted
    assert found.num_row_groups == groups
    rows = [found.read_row_group(number).num_rows for number in range(groups)]
    assert max(rows) <= most and sum(rows) == table.num_rows


def test_the_footer_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    lengths = [3, 1, 4000, 17]
    with writing(tmp_path / "x.parquet", COLUMNS) as file:
        cells = [_column(lengths, column.bits, 0) for column in COLUMNS]
        file.write([ends for ends, _ in cells], [values for _, values in cells], 3)
    metadata = pq.read_metadata(tmp_path / "x.parquet")
    at = 4
    for number in range(2):
        group = metadata.row_group(number)
        chunks = [group.column(k) for k in range(len(COLUMNS))]
        whole = 0
        for column, chunk in zip(COLUMNS, chunks, strict=True):
            assert chunk.data_page_offset == at and chunk.num_values == sum((lengths[:3], lengths[3:])[number])
            assert column.plain is (chunk.compression == "UNCOMPRESSED")
            assert not column.plain or chunk.total_compressed_size == chunk.total_uncompressed_size
            assert chunk.total_uncompressed_size > 4 * chunk.num_values
            at += chunk.total_compressed_size
            whole += chunk.total_uncompressed_size
        assert group.total_byte_size == whole
    assert at + metadata.serialized_size + 8 == (tmp_path / "x.parquet").stat().st_size


def test_an_unfinished_file_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "x.parquet", COLUMNS):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_row_that_a_page_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_PAGE_LIMIT", 100)
    with writing(tmp_path / "x.parquet", [Column("a")]) as file:
        file.write([np.array([0, 20])], [np.arange(20, dtype=np.int32)], 1)
        with pytest.raises(InputError, match="smaller than 2 GiB"):
            file.write([np.array([0, 25])], [np.arange(25, dtype=np.int32)], 1)
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"a": [list(range(20))]}
