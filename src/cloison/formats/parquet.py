"""Parquet files of lists, as exports write them: tokens as they are, what counts or flags them compressed.

Token ids hardly compress at the speed of a disk (LZ4 and Snappy save half and take three times as long), and readers that
take rows in random order would decompress a row group for each. Masks, numbers and positions shrink to a few percent, which
is written faster than they are.

The pages are made here, and not by pyarrow, for their levels: Parquet says of each entry of a list whether it begins a row,
and whether it is there. pyarrow finds and encodes both entry by entry, which takes three times as long as all else. Here no
list is null or empty and no entry is null, so that the levels of a row are a few bytes that follow from its length, and
tokens go to the file from where they lie. A column of a row group is one page: levels (RLE), then values (PLAIN).
Source: https://parquet.apache.org/docs/file-format, format version 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.formats.compact import TRUE, Value, i8, i32, i64, many, struct, text, varint
from cloison.places import Place
from cloison.store.files import replacing

__all__ = ["Column", "ListFile", "rows_per_group", "writing"]

_GROUP_TOKENS = 1 << 17
_MAGIC = b"PAR1"
_INT32, _LIST, _INT_8 = 1, 3, 15  # a physical type, two converted types
_REQUIRED, _REPEATED = 0, 2
_PLAIN, _RLE = 0, 3
_UNCOMPRESSED, _LZ4_RAW = 0, 7
_PAGE_LIMIT = 1 << 31


def rows_per_group(capacity: int) -> int:
    """Return how many rows of ``capacity`` tokens a row group has: what a reader decodes to give one."""
    return max(1, _GROUP_TOKENS // capacity)


@dataclass(frozen=True)
class Column:
    """Lists of signed integers, none of which is null or empty.

    Attributes:
        name: the column's.
        bits: of an entry as readers see it, 8 or 32.
        plain: not compressed.
    """

    name: str
    bits: int = 32
    plain: bool = False


@contextmanager
def writing(path: Place, columns: Sequence[Column]) -> Iterator[ListFile]:
    """Give a file to write rows to; when the block ends well it is at ``path``, whole."""
    with replacing(path) as part, part.open("wb") as file:
        found = ListFile(file, columns)
        yield found
        found.end()


class ListFile:
    """A Parquet file that is being written, by row groups.

    Args:
        file: an empty file.
        columns: of its rows, in order.
    """

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        self._file, self._columns = file, columns
        self._groups: list[Value] = []
        self._at = self._rows = 0
        self._put(_MAGIC)

    def write(self, ends: Sequence[npt.NDArray[np.int64]], values: Sequence[npt.NDArray[Any]], most: int) -> None:
        """Append rows, in row groups of at most ``most``; arrays that are given for several columns are encoded once.

        Args:
            ends: of each column, int64 [rows + 1]: row r has the values ``[ends[r]:ends[r + 1]]``, at least one.
            values: of each column, its rows' values one after the other.

        Raises:
            InputError: a row is so wide that a page cannot hold it.
        """
        rows = ends[0].size - 1
        for first in range(0, rows, most):
            last = min(rows, first + most)
            made: dict[tuple[int, int, bool], _Page] = {}
            start, chunks, whole = self._at, [], 0
            for column, edges, cells in zip(self._columns, ends, values, strict=True):
                key = id(edges), id(cells), column.plain
                if key not in made:
                    part = cells[edges[first] : edges[last]]
                    made[key] = _page(np.diff(edges[first : last + 1]), part, column.plain)
                chunks.append(_chunk(column, made[key], self._at))
                self._put(*made[key].parts)
                whole += made[key].whole
            fields = {1: many(chunks), 2: i64(whole), 3: i64(last - first), 5: i64(start), 6: i64(self._at - start)}
            self._groups.append(struct(fields))
            self._rows += last - first

    def end(self) -> None:
        """Write the footer: the file is whole."""
        schema = [struct({4: text("schema"), 5: i32(len(self._columns))})]
        for column in self._columns:
            lists = {6: i32(_LIST), 10: struct({3: struct({})})}
            entry = {1: i32(_INT32), 3: i32(_REQUIRED), 4: text("element")}
            if column.bits == 8:
                entry |= {6: i32(_INT_8), 10: struct({10: struct({1: i8(8), 2: TRUE})})}
            schema.append(struct({3: i32(_REQUIRED), 4: text(column.name), 5: i32(1)} | lists))
            schema.append(struct({3: i32(_REPEATED), 4: text("list"), 5: i32(1)}))
            schema.append(struct(entry))
        fields = {1: i32(2), 2: many(schema), 3: i64(self._rows), 4: many(self._groups), 6: text("cloison")}
        footer = struct(fields)[1]
        self._put(footer, len(footer).to_bytes(4, "little"), _MAGIC)

    def _put(self, *parts: Any) -> None:
        for part in parts:
            self._at += self._file.write(part)


@dataclass(frozen=True, eq=False)
class _Page:
    """A page, which is all that a row group has of a column.

    Attributes:
        parts: its bytes, one part after the other; values that are not compressed lie where they lay.
        count: values.
        size: bytes.
        whole: bytes without compression.
    """

    parts: tuple[Any, ...]
    count: int
    size: int
    whole: int


def _page(lengths: npt.NDArray[np.int64], values: npt.NDArray[Any], plain: bool) -> _Page:
    """Return the page of rows of these lengths."""
    import pyarrow as pa

    there = varint(values.size << 1) + b"\1"  # one run: all entries are there
    levels = b"".join(len(part).to_bytes(4, "little") + part for part in (_repetition(lengths), there))
    cells = values.astype("<i4", copy=False)
    unpacked = packed = len(levels) + cells.nbytes
    if unpacked >= _PAGE_LIMIT:
        raise InputError(
            "a page of a Parquet file is smaller than 2 GiB.",
            f"One of {values.size:,} tokens has {unpacked:,} bytes.",
            "Pack with a smaller capacity, or choose another format.",
        )
    body: tuple[Any, ...] = levels, cells.data
    if not plain:
        body = (pa.Codec("lz4_raw").compress(b"".join(body)),)
        packed = body[0].size
    about = struct({1: i32(values.size), 2: i32(_PLAIN), 3: i32(_RLE), 4: i32(_RLE)})
    head = struct({1: i32(0), 2: i32(unpacked), 3: i32(packed), 5: about})[1]
    return _Page((head, *body), values.size, len(head) + packed, len(head) + unpacked)


def _chunk(column: Column, page: _Page, at: int) -> Value:
    """Return what the footer says of a column of a row group, whose page is ``at`` that byte of the file."""
    about = {
        1: i32(_INT32),
        2: many([i32(_PLAIN), i32(_RLE)]),
        3: many([text(part) for part in (column.name, "list", "element")]),
        4: i32(_UNCOMPRESSED if column.plain else _LZ4_RAW),
        5: i64(page.count),
        6: i64(page.whole),
        7: i64(page.size),
        9: i64(at),
    }
    return struct({2: i64(0), 3: struct(about)})


def _repetition(lengths: npt.NDArray[np.int64]) -> bytes:
    """Return the repetition levels of rows of these lengths: for each, a run of one 0, and one of 1s for what follows it.

    A run is twice its length, seven bits a byte with the lowest first, and the level.
    """
    more = (lengths - 1) << 1
    cells = np.zeros((lengths.size, 2 + 5 + 1), np.uint8)
    kept = np.zeros(cells.shape, bool)
    cells[:, 0], kept[:, :2] = 1 << 1, True
    for place in range(5):
        bits = more >> 7 * place
        cells[:, 2 + place] = bits & 0x7F | (bits > 0x7F) << 7
        kept[:, 2 + place] = bits > 0
    cells[:, -1], kept[:, -1] = 1, more > 0
    return cells[kept].tobytes()
