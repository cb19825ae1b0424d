"""Sources: files and folders as one list of logical chunks, which the input alone decides (never the number of workers).

Lines, row groups and record batches are chunks of their own. What cannot be entered in the middle (a JSON array, a table of
text, a compressed file, a text) is one chunk a file; to use several workers on such data, give several files, JSONL or
Parquet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from cloison.errors import ChangedError, InputError, RecordError
from cloison.parts import PARTS
from cloison.places import Remote, opened, place, stamp, together
from cloison.places.ordinary import in_utf8
from cloison.spec import PackSpec
from cloison.text.arrow_files import arrow_jobs
from cloison.text.columnar import parquet_jobs, read_arrow, read_parquet
from cloison.text.finding import KINDS, Spool, kind_of, paths_of
from cloison.text.jsonfiles import read_array, read_lines
from cloison.text.packed_rows import BOUNDARIES, SIGNS
from cloison.text.shapes import Reading, recognise
from cloison.text.streams import MOST_BYTES, guarded, open_stream
from cloison.text.tables import DELIMITERS, read_table

__all__ = ["CHUNK_BYTES", "Source", "SourceFile", "Where", "open_sources", "read_chunk"]

CHUNK_BYTES = 1 << 21
"""A chunk of lines holds those that begin in one stretch of this many bytes."""


_LAST_LINE_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a record: ``str()`` gives ``train.jsonl, line 17``.

    Attributes:
        path: of the file, or its URL.
        unit: "line" (from 1), "row" (from 0) or "" for a file that is one document.
        number: of the line in its chunk, or of the row in the file.
        offset: the byte at which the chunk of lines begins.
    """

    path: str
    unit: str = ""
    number: int = 0
    offset: int = 0

    def __str__(self) -> str:
        if not self.unit:
            return self.path
        number = self.number + (_lines_before(self.path, self.offset) if self.offset else 0)
        return f"{self.path}, {self.unit} {number}"


@lru_cache(maxsize=64)
def _lines_before(path: str, offset: int) -> int:
    """Return how many lines begin before ``offset``: counted only when a place is shown."""
    count, left, last = 0, offset, b"\n"
    with opened(place(path)) as file:
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            count += piece.count(b"\n")
            left -= len(piece)
            last = piece[-1:]
    return count + (last != b"\n")


@dataclass(frozen=True)
class SourceFile:
    """A file that is read: its path or URL, kind (a value of `KINDS`), codec ("", "gz", "zst"), state.

    ``mtime_ns`` is the time of its last change, or what `cloison.places.stamp` gives in its place for files elsewhere.
    """

    path: str
    kind: str
    codec: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Source:
    """What is read.

    Attributes:
        files: in order.
        jobs: the chunks in order, each a job for `read_chunk` made of plain data.
        skipped: paths inside folders that are not read, each with why.
        reading: how the first record is read; None where it cannot be.
        problem: why it cannot be.
    """

    files: tuple[SourceFile, ...]
    jobs: tuple[dict[str, Any], ...]
    skipped: tuple[str, ...] = ()
    reading: Reading | None = None
    problem: str = ""

    def describe(self) -> str:
        """Return what was found, for the user: one line, and one for what is passed over."""
        kinds = sorted({f"{file.kind}.{file.codec}" if file.codec else file.kind for file in self.files})
        size = sum(file.size_bytes for file in self.files)
        count = f"{len(self.files)} file{'s' * (len(self.files) != 1)}"
        lines = [f"{count} ({', '.join(kinds)}, {size:,} bytes): {self.reading.describe() if self.reading else self.problem}"]
        if self.skipped:
            lines.append(f"{len(self.skipped)} not read, as {self.skipped[0]}")
        return "\n".join(lines)


def open_sources(
    sources: Sequence[str | os.PathLike[str]],
    spec: PackSpec | None = None,
    spool: Spool = None,
) -> Source:
    """Return the Source of files, folders, globs, URLs of each (``s3://bucket/data/*.jsonl.gz``), and "-" (standard input).

    Folders are read in the order of their paths; links that lead out of them are not followed. A folder that
    ``datasets.save_to_disk`` wrote is one data set. Standard input goes to a file in ``spool``, named by its hash, first.

    Raises:
        InputError: a source that is not there, of a kind that is not known, or empty of records.
        StoreError: a file that cannot be read.
    """
    skipped: list[str] = []
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    paths = [path for source in listed for path in paths_of(str(source), spool, skipped)]
    far = any(isinstance(place(path), Remote) for path in paths)
    files = together(_file, paths, far=far)
    if not files:
        found = f"There are none; not read: {', '.join(skipped[:3])}." if skipped else "There are none."
        raise InputError(f"the source {', '.join(map(str, sources))} must have files.", found, f"Kinds: {', '.join(KINDS)}.")
    jobs = [job for found in together(lambda file: _jobs(file, spec), files, far=far) for job in found]
    reading, problem = _first_reading(jobs, spec)
    if reading is None:  # what is wrong is said with all that the records have
        jobs = [{**job, "columns": None} if "columns" in job else job for job in jobs]
    return Source(tuple(files), tuple(jobs), tuple(skipped), reading, problem)


def read_chunk(job: Mapping[str, Any]) -> Iterator[tuple[Where, dict[str, Any] | RecordError]]:
    """Yield the records of one chunk with their places, in order; a record that is broken is a RecordError in its place.

    Memory: one record, or 256 rows of a columnar file.

    Raises:
        ChangedError: the file is not the one that `open_sources` saw.
        StoreError: the file cannot be read to its end.
    """
    path, kind, start, stop = job["path"], job["kind"], job["start"], job["stop"]
    with guarded(path):
        state = stamp(place(path))
        if state != (job["size_bytes"], job["mtime_ns"]):
            raise ChangedError(
                f"{path} must stay as it was when packing began.",
                f"It had {job['size_bytes']:,} bytes and now has {state[0]:,}, or was written since.",
                "Start again with the file as it is.",
            )
        if kind == "parquet":
            numbered = enumerate(read_parquet(path, start, job["columns"]), job["first"])
            yield from ((Where(path, "row", row), record) for row, record in numbered)
        elif kind == "arrow":
            numbered = enumerate(read_arrow(path, job, job["columns"]), job["first"])
            yield from ((Where(path, "row", row), record) for row, record in numbered)
        else:
            # What a chunk of lines reads, with the end of its last line; text and arrays are read from end to end.
            stretch = min(stop - start + _LAST_LINE_BYTES, _WHOLE_BYTES)
            with open_stream(path, job["codec"], stretch) as stream:
                if kind == "jsonl":
                    for number, record in read_lines(stream, start, None if job["codec"] else stop):
                        yield Where(path, "line", number, start), record
                elif kind == "json":
                    for row, record in read_array(stream):
                        yield Where(path, "row", row), record
                elif kind in DELIMITERS:
                    for number, record in read_table(stream, DELIMITERS[kind]):
                        yield Where(path, "line", number), record
                else:
                    yield Where(path), _document(stream, path)


def _document(stream: BinaryIO, path: str) -> dict[str, Any] | RecordError:
    text = stream.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        return RecordError(f"a document may have {MOST_BYTES:,} bytes.", "It is longer.", "Give JSONL with a text column.")
    try:
        return {"text": text.decode("utf-8-sig"), "path": path}
    except UnicodeDecodeError as error:
        return RecordError(
            "a document must be valid UTF-8.", f"Byte {error.start} is 0x{text[error.start]:02x}.", "Convert it."
        )


def _file(path: str) -> SourceFile:
    kind, codec = kind_of(path)
    at = place(path)
    with guarded(path):
        state = stamp(at)
        if isinstance(at, Path) and not at.is_file():
            raise InputError(f"{path} must be an ordinary file.", "It is not.", "Pass it as standard input, with -.")
        if kind in ("json", ""):
            with open_stream(path, codec, 1 << 16) as stream:
                head = stream.read(1 << 12).removeprefix(b"\xef\xbb\xbf").lstrip()
            if not kind and head[:1] not in (b"{", b"["):
                raise InputError(f"{path} must be of a known kind.", "Its name does not tell.", f"Kinds: {', '.join(KINDS)}.")
            kind = "json" if head.startswith(b"[") else "jsonl"
        elif codec and kind in ("parquet", "arrow"):
            raise InputError(f"{path} must not be compressed as a whole.", f"It is {kind}.{codec}.", "Unpack it.")
        elif kind in ("parquet", "arrow") and not in_utf8(path):
            raise InputError(f"{path} must have a name in UTF-8.", "Columnar files of others are not opened.", "Rename it.")
    return SourceFile(path, kind, codec, *state)


def _jobs(file: SourceFile, spec: PackSpec | None) -> list[dict[str, Any]]:
    base = {"path": file.path, "kind": file.kind, "codec": file.codec, "size_bytes": file.size_bytes, "mtime_ns": file.mtime_ns}
    if file.kind in ("parquet", "arrow"):
        columns = None if spec is None else sorted({*PARTS, *BOUNDARIES, *SIGNS, *spec.columns.values(), *spec.carry})
        parts = parquet_jobs(file.path) if file.kind == "parquet" else arrow_jobs(file.path)
        return [{**base, **job, "columns": columns} for job in parts]
    if file.kind == "jsonl" and not file.codec:
        starts = range(0, file.size_bytes, CHUNK_BYTES)
        return [{**base, "start": start, "stop": min(file.size_bytes, start + CHUNK_BYTES)} for start in starts]
    return [{**base, "start": 0, "stop": file.size_bytes}] if file.size_bytes else []


def _first_reading(jobs: Sequence[Mapping[str, Any]], spec: PackSpec | None) -> tuple[Reading | None, str]:
    for job in jobs[:8]:
        try:
            for where, record in read_chunk({**job, "columns": None} if "columns" in job else job):
                if isinstance(record, RecordError):
                    return None, f"{where}: {record}"
                return recognise(record, spec.columns if spec else {}, spec.carry if spec else ()), ""
        except RecordError as error:
            return None, f"{job['path']}: {error}"
    return None, "no records"
