"""Columns of packed blocks, page by page: the values as they lie, and of the levels no more than where rows begin.

pyarrow decodes two levels for each entry and makes validity of them, which takes as long as all decompression. In blocks no
entry is null and no list empty, so that levels only say where rows begin. Read here are pages as pack writes them: zstd,
PLAIN, of data page version 1. What others wrote anew is pyarrow's to read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cloison.checking.ragged import Ragged
from cloison.formats.compact import parse

__all__ = ["Chunk", "plain_groups", "read_groups"]

_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_HEADER_BYTES = 256
_LEVELS = (1, 3)  # repetition and definition: lists that may be null, of entries that may be


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group: where its bytes are, how many, its entries, the group's rows."""

    at: int
    size: int
    entries: int
    rows: int


def plain_groups(file: BinaryIO, metadata: Any, columns: Sequence[str]) -> list[list[Chunk]] | None:
    """Return the ``columns`` of each row group of a Parquet file; None where their pages are of another kind than these.

    It is looked at what the footer says of all pages, and at the first header.
    """
    schema = metadata.schema
    kinds = {schema.column(k).path: (k, schema.column(k)) for k in range(metadata.num_columns)}
    found = [kinds.get(f"{name}.list.element") for name in columns]
    end = os.fstat(file.fileno()).st_size
    for name, one in zip(columns, found, strict=True):
        if one is None or (one[1].max_repetition_level, one[1].max_definition_level) != _LEVELS:
            return None
        if one[1].physical_type != ("FLOAT" if name == "loss_weights" else "INT32") or one[1].logical_type.type != "NONE":
            return None
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(one[0]) for one in found if one]
        for chunk in chunks:
            if chunk.compression != "ZSTD" or chunk.has_dictionary_page or set(chunk.encodings) != {"PLAIN", "RLE"}:
                return None
            if not 0 <= chunk.data_page_offset <= end - chunk.total_compressed_size <= end:
                return None
        groups.append([Chunk(c.data_page_offset, c.total_compressed_size, c.num_values, group.num_rows) for c in chunks])
    if groups:
        file.seek(groups[0][0].at)
        if parse(file.read(_HEADER_BYTES), 0)[0].get(1) != _DATA_PAGE:
            return None
    return groups


def read_groups(file: BinaryIO, groups: Sequence[Sequence[Chunk]], dtypes: Sequence[str], capacity: int) -> list[Ragged]:
    """Return the columns of some row groups, one after the other.

    Args:
        dtypes: of the columns' entries, of 4 bytes.
        capacity: entries that a row has at most.

    Raises:
        ValueError: a page is none, an entry is null or a list empty. A damaged header may raise others, see `parse`.
    """
    odd = [chunk for group in groups for chunk in group if not 0 < chunk.rows <= chunk.entries <= chunk.rows * capacity]
    if odd:
        raise ValueError(f"{odd[0].entries:,} entries in {odd[0].rows:,} rows")
    out = []
    for chunks, dtype in zip(zip(*groups, strict=True), dtypes, strict=True):
        ends = np.concatenate([[0], np.cumsum([chunk.entries for chunk in chunks])])
        values = np.empty(ends[-1], dtype)
        offsets = [np.zeros(1, np.int64)]
        for chunk, start, end in zip(chunks, ends[:-1], ends[1:], strict=True):
            file.seek(chunk.at)
            starts = _fill(values[start:end], file.read(chunk.size), chunk)
            offsets.append(np.append(starts[1:], chunk.entries) + start)
        out.append(Ragged(values, np.concatenate(offsets)))
    return out


def _fill(values: npt.NDArray[Any], content: bytes, chunk: Chunk) -> npt.NDArray[np.int64]:
    """Put the values of a chunk there, and return the entries that rows begin with."""
    import pyarrow as pa

    from cloison.formats.rows import starts

    codec = pa.Codec("zstd")
    found = np.empty(chunk.rows, np.int64)
    at = done = rows = 0
    while done < chunk.entries:
        head, at = parse(content, at)
        size, held, about = head[2], head[3], head[5]
        entries = about[1]
        if (head[1], about[2], about[4]) != (_DATA_PAGE, _PLAIN, _RLE) or not 0 < entries <= chunk.entries - done:
            raise ValueError("a page of another kind")
        if not (0 < held <= len(content) - at and 0 < size <= 8 * entries + 64):  # 4 bytes an entry, and 3 bits of levels
            raise ValueError(f"{held:,} bytes, {size:,} unpacked, for {entries:,} entries")
        page = np.frombuffer(codec.decompress(memoryview(content)[at : at + held], size), np.uint8)
        at += held
        repetition, page = _parted(page)
        _, page = _parted(page)
        if page.size != 4 * entries:
            raise ValueError(f"{entries:,} entries, of which some are null, or lists empty")
        more = starts(repetition, entries, found[rows:])
        if more < 0:
            raise ValueError(f"other rows than the {chunk.rows:,} of the footer")
        found[rows : rows + more] += done
        values[done : done + entries] = page.view(values.dtype)
        rows += more
        done += entries
    if rows != chunk.rows or found[0] != 0:
        raise ValueError(f"{rows:,} rows, and the footer says {chunk.rows:,}")
    return found


def _parted(page: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the levels that a page begins with, behind their size in 4 bytes, and the rest."""
    end = 4 + int.from_bytes(page[:4].tobytes(), "little")
    if end > page.size:
        raise ValueError("levels that are longer than their page")
    return page[4:end], page[end:]
