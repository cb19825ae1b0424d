"""The token store: every sample of the sources as ids and spans, once, memory-mapped, so that nothing is tokenised twice.

A store is one folder, named by its key, of chunk files (Arrow IPC, uncompressed, of bounded record batches called units) and a
``store.json`` that is written last. Sample i of the sources is row i, over all units in order; records that were skipped and
empty ones are rows of length 0. The columns of a unit: ``input_ids`` list<int32>; ``spans`` list<fixed_size_binary> of
`SPAN_LAYOUT`; ``across`` list<int32>, the tokens that lie across an edge of a span; ``shape`` uint8; and the carried columns
under ``carry:NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloison.errors import ChangedError, StoreError
from cloison.places import Place, fetched, size, together
from cloison.store.files import file_sha256, replacing, store_errors
from cloison.store.records import each, read_record, write_record
from cloison.store.widening import CARRY, write_batches

__all__ = ["SPAN_LAYOUT", "UNIT_TOKENS", "TokenStore", "Unit", "chunk_is_whole", "open_token_store", "raw_rows", "write_chunk"]

UNIT_TOKENS = 1 << 22
"""Tokens after which a unit is closed: what writing and reading a store holds at once."""

_ERROR = dict.fromkeys(("type", "asked", "found", "remedy"), "text")
_CHUNK = {
    **dict.fromkeys(("index", "num_samples", "num_tokens", "num_spans", "size_bytes"), "count"),
    "name": "name",
    "sha256": "hash",
    "schema": "text",
    "skipped": [{"index": "count", "where": "text", "error": _ERROR}],
    "skipped_further": ["count"],
    "per_token": each("any"),
}
_STORE = {
    "tokenizer": {},
    "sources": [{"sha256": "hash", "size_bytes": "count", "records": "count"}],
    "chunks": [_CHUNK],
}

SPAN_LAYOUT = np.dtype(
    [
        ("start", "<i4"),
        ("stop", "<i4"),
        ("message", "<i4"),
        ("weight", "<f4"),
        ("role", "u1"),
        ("terminator", "?"),
        ("unused", "<u2"),
    ]
)
"""A span on disk, 20 bytes."""


@dataclass(frozen=True, eq=False)
class Unit:
    """Some samples one after the other, flat.

    Attributes:
        input_ids: int32 [tokens].
        lengths: int64 [samples], 0 for empty and skipped ones.
        spans: SPAN_LAYOUT [spans], offsets inside the sample.
        span_counts: int64 [samples].
        shapes: uint8 [samples], the record's shape by code.
        across: int32, the tokens of each sample that lie across an edge of a span.
        across_counts: int64 [samples]; empty where there are none at all.
        columns: carried column to an Arrow array of [samples].
    """

    input_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    spans: npt.NDArray[np.void]
    span_counts: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.uint8]
    across: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    across_counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Mapping[str, pa.Array] = field(default_factory=lambda: MappingProxyType({}))


def _offsets(counts: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _batch(unit: Unit) -> pa.RecordBatch:
    raw = np.ascontiguousarray(unit.spans)
    spans = pa.Array.from_buffers(pa.binary(SPAN_LAYOUT.itemsize), raw.size, [None, pa.py_buffer(raw.tobytes())])
    columns = {
        "input_ids": pa.ListArray.from_arrays(_offsets(unit.lengths), pa.array(unit.input_ids, pa.int32())),
        "spans": pa.ListArray.from_arrays(_offsets(unit.span_counts), spans),
        "across": pa.ListArray.from_arrays(
            _offsets(unit.across_counts if unit.across_counts.size else np.zeros(unit.lengths.size, np.int64)),
            pa.array(unit.across, pa.int32()),
        ),
        "shape": pa.array(unit.shapes, pa.uint8()),
    }
    return pa.RecordBatch.from_pydict(columns | {CARRY + name: array for name, array in unit.columns.items()})


def write_chunk(folder: Place, index: int, units: Iterable[Unit], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Put chunk ``index`` of a store into ``folder``, whole or not at all, and return its record (also kept beside it).

    Args:
        units: the chunk's samples in order; all with the same columns.
        facts: what else the record shall say (plain data; evaluated after the units, so that they may fill it).
    """
    path = folder / f"chunk-{index:06d}.arrow"
    samples = tokens = spans = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal samples, tokens, spans
        for unit in units:
            yield _batch(unit)
            samples += unit.lengths.size
            tokens += unit.input_ids.size
            spans += unit.spans.size

    with replacing(path, keep=True) as part:
        layout = write_batches(part, batches())
        size_bytes, sha256 = part.stat().st_size, file_sha256(part)
    record = {
        "index": index,
        "name": path.name,
        "num_samples": samples,
        "num_tokens": tokens,
        "num_spans": spans,
        "size_bytes": size_bytes,
        "sha256": sha256,
        "schema": layout.serialize().to_pybytes().hex(),
        **facts,
    }
    write_record(folder / f"chunk-{index:06d}.json", record)
    return record


def chunk_is_whole(folder: Place, index: int) -> dict[str, Any] | None:
    """Return the record of chunk ``index`` when it is finished and its content is as recorded, else None."""
    path = folder / f"chunk-{index:06d}.arrow"
    try:
        record = read_record(folder / f"chunk-{index:06d}.json", _CHUNK)
    except StoreError:  # a damaged record: what it speaks of is made anew
        return None
    with store_errors(f"{path} cannot be read"):
        if record is None or size(path) != record["size_bytes"]:
            return None
    if isinstance(path, Path):
        return record if file_sha256(path) == record["sha256"] else None
    return record  # its content is proven by the copy that the next steps read


@dataclass(frozen=True, eq=False)
class _Mapped:
    """A unit in a mapped file, and the flat values and offsets of its lists."""

    batch: pa.RecordBatch
    ids: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
    spans: tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]
    across: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


class TokenStore:
    """A whole token store. Samples are found by index; nothing is copied until it is gathered, nor mapped before.

    Of a store on another file system, local copies of its chunks are mapped (`cloison.places.fetched`).
    """

    def __init__(self, folder: Place, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.chunks: Sequence[Mapping[str, Any]] = facts["chunks"]
        for path, chunk in zip(_copies(folder, self.chunks), self.chunks, strict=True):
            _refuse_changed(path, chunk)

    @cached_property
    def _units(self) -> list[_Mapped]:
        return list(_mapped(self.folder, self.chunks))

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *(unit.batch.num_rows for unit in self._units)])

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return int64 [samples], the tokens of each."""
        return np.concatenate([np.zeros(0, np.int64), *(lengths for lengths, *_ in self.each_unit())])

    def shapes(self, sample_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return uint8 [n], the shape code of each of ``sample_ids``."""
        units, rows = self._locate(sample_ids)
        out = np.zeros(sample_ids.size, np.uint8)
        for unit in np.unique(units):
            here = units == unit
            out[here] = self._units[unit].batch.column("shape").to_numpy()[rows[here]]
        return out

    def each_unit(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.void], npt.NDArray[np.int64], npt.NDArray[np.uint8]]]:
        """Yield (lengths, spans, span_counts, shapes) of each unit in order, for decisions over all samples.

        Chunks are mapped one after the other, apart from the maps that the store keeps: what was read does not stay in memory.
        """
        for unit in _mapped(self.folder, self.chunks):
            spans, offsets = unit.spans
            lengths = np.diff(unit.ids[1]).astype(np.int64)
            yield lengths, spans, np.diff(offsets).astype(np.int64), unit.batch.column("shape").to_numpy()

    def gather_ids(
        self, sample_ids: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """Return int32 [tokens], ``lengths`` tokens from ``starts`` of each of ``sample_ids``, one after the other."""
        units, rows = self._locate(sample_ids)
        parts = [unit.ids for unit in self._units]
        begins = self._begins(parts, units, rows) + starts
        places = zip(units.tolist(), begins.tolist(), (begins + lengths).tolist(), strict=True)
        pieces = [parts[unit][0][a:b] for unit, a, b in places]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def gather_spans(self, sample_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """Return all spans of each of ``sample_ids``, one after the other, and how many each has."""
        units, rows = self._locate(sample_ids)
        parts = [unit.spans for unit in self._units]
        begins, ends = self._begins(parts, units, rows), self._begins(parts, units, rows + 1)
        values = [raw_rows(values) for values, _ in parts]
        pieces = [values[unit][a:b] for unit, a, b in zip(units.tolist(), begins.tolist(), ends.tolist(), strict=True)]
        joined = np.concatenate(pieces) if pieces else np.zeros((0, SPAN_LAYOUT.itemsize), np.uint8)
        return joined.reshape(-1).view(SPAN_LAYOUT), ends - begins

    def gather_across(self, sample_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return the tokens of each of ``sample_ids`` that lie across an edge of a span, and how many each has."""
        units, rows = self._locate(sample_ids)
        parts = [unit.across for unit in self._units]
        begins, ends = self._begins(parts, units, rows), self._begins(parts, units, rows + 1)
        some = np.flatnonzero(ends > begins)  # few have any
        pieces = [parts[units[i]][0][begins[i] : ends[i]] for i in some.tolist()]
        return np.concatenate([np.zeros(0, np.int32), *pieces]), ends - begins

    def gather_column(self, name: str, kind: pa.DataType, sample_ids: npt.NDArray[np.int64]) -> pa.Array:
        """Return the carried column's value for each of ``sample_ids``, as ``kind``."""
        units, rows = self._locate(sample_ids)
        order = np.argsort(units, kind="stable")
        taken = []
        for unit in np.unique(units):
            here = order[units[order] == unit]
            taken.append(self._units[unit].batch.column(CARRY + name).take(pa.array(rows[here])).cast(kind))
        if not taken:
            return pa.array([], kind)
        back = np.empty(order.size, np.int64)
        back[order] = np.arange(order.size)
        return pa.concat_arrays(taken).take(pa.array(back))

    def _locate(self, sample_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        units = np.searchsorted(self._firsts, sample_ids, side="right") - 1
        return units, sample_ids - self._firsts[units]

    @staticmethod
    def _begins(
        parts: list[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]],
        units: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        out = np.zeros(units.size, np.int64)
        for unit in np.unique(units):
            here = units == unit
            out[here] = parts[unit][1][rows[here]]
        return out


def raw_rows(structured: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """Return structured rows as bytes [rows, itemsize]: numpy joins those in no time, and structured ones field by field."""
    return np.ascontiguousarray(structured).view(np.uint8).reshape(structured.size, structured.dtype.itemsize)


def open_token_store(folder: Place) -> TokenStore | None:
    """Return the store at ``folder``, or None when it is not whole (never made, or its making was interrupted).

    Raises:
        ChangedError: it is whole and a chunk is missing or has another size.
        StoreError: what is noted of it is damaged.
    """
    facts = read_record(folder / "store.json", _STORE)
    return None if facts is None else TokenStore(folder, facts)


def _copies(folder: Place, chunks: Sequence[Mapping[str, Any]]) -> Iterable[Path]:
    if isinstance(folder, Path):
        return [folder / chunk["name"] for chunk in chunks]
    return together(lambda chunk: _copy(folder / chunk["name"], chunk), chunks, far=True)


def _copy(path: Place, chunk: Mapping[str, Any]) -> Path:
    try:
        return fetched(path, chunk["sha256"])
    except FileNotFoundError as error:
        raise ChangedError(f"{path} must be there.", "It is missing.", f"Remove {path.parent} and run again.") from error


def _refuse_changed(path: Path, chunk: Mapping[str, Any]) -> None:
    if not path.is_file() or path.stat().st_size != chunk["size_bytes"]:
        raise ChangedError(
            f"{path} must have {chunk['size_bytes']:,} bytes.",
            "It is missing or changed.",
            f"Remove {path.parent} and run again.",
        )


def _mapped(folder: Place, chunks: Sequence[Mapping[str, Any]]) -> Iterator[_Mapped]:
    """Yield the units of a store, chunk after chunk; a chunk is mapped as long as one of its units is held."""
    for path, chunk in zip(_copies(folder, chunks), chunks, strict=True):
        _refuse_changed(path, chunk)
        with store_errors(f"{path} cannot be read as a chunk of tokens", damage=f"Remove {folder} and run again."):
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            units = []
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                ids, across = (_flat(batch.column(name)) for name in ("input_ids", "across"))
                units.append(_Mapped(batch, ids, _flat_spans(batch.column("spans")), across))
        yield from units


def _flat(column: pa.ListArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    return column.values.to_numpy(), column.offsets.to_numpy()


def _flat_spans(column: pa.ListArray) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]:
    values = column.values
    raw = values.buffers()[1]
    flat = np.frombuffer(raw, SPAN_LAYOUT, count=len(values)) if raw is not None and len(values) else np.zeros(0, SPAN_LAYOUT)
    return flat, column.offsets.to_numpy()
