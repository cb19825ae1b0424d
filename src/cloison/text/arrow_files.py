"""Arrow files and streams: where their record batches lie, and the batches, which are read and not mapped.

Of a mapped file, what its disk cannot give, or another process cut off, ends the process that looks at it (SIGBUS); of one that
is read it is an error. So a batch is read when it is its turn, and where all lie is taken from their heads alone: what a job
does not need is passed over, also in streams. A batch that is too large to be held (`READ_BYTES`) is mapped, once its bytes
were read through; then only a disk that fails, or a file that is cut, just between the two is the end of the process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloison.errors import CloisonError, StoreError
from cloison.places import fetched, place
from cloison.text.arrow_heads import MAGIC, in_file, in_stream

__all__ = ["CHUNK_BYTES", "READ_BYTES", "arrow_batches", "arrow_jobs", "arrow_schema", "damaged"]

CHUNK_BYTES = 1 << 22
"""Small batches, up to so many bytes, are one job."""

READ_BYTES = 1 << 28
"""A batch of more bytes is mapped."""


def arrow_jobs(path: str) -> list[dict[str, Any]]:
    """Return jobs for the record batches of an Arrow file or stream, several small ones in one job.

    A job has ``start`` and ``stop`` (batches), ``first`` (the row that it begins with), ``span`` (bytes) and ``mapped``.

    Raises:
        StoreError: it cannot be read, or is none.

    Cost: a read of some hundred bytes a batch. A stream with dictionaries is one job: they are read in its order only.
    """
    try:
        arrow_schema(path)
        local = fetched(place(path))
        with local.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_file = file.read(len(MAGIC)) == MAGIC
            batches, enterable = (in_file(file, size), True) if is_file else in_stream(file, size)
    except CloisonError:
        raise
    except Exception as error:
        raise damaged(path, "Arrow", error) from error
    jobs: list[dict[str, Any]] = []
    start = first = rows = size_bytes = largest = 0
    for stop, batch in enumerate(batches, 1):
        rows += batch.rows
        size_bytes += batch.stop - batch.start
        largest = max(largest, batch.stop - batch.start)
        if stop == len(batches) or (enterable and size_bytes >= CHUNK_BYTES):
            span = [batches[start].start, batch.stop] if enterable else [0, size]
            jobs.append({"start": start, "stop": stop, "first": first, "span": span, "mapped": largest > READ_BYTES})
            start, first = stop, first + rows
            rows = size_bytes = largest = 0
    return jobs


def arrow_batches(path: str, job: Mapping[str, Any], columns: Collection[str] | None = None) -> Iterator[Any]:
    """Yield the record batches of a job of `arrow_jobs`, with these ``columns`` only, proven sound.

    Raises:
        StoreError: it cannot be read to its end.

    Cost: memory of one batch.
    """
    import pyarrow as pa

    try:
        local = fetched(place(path))
        if job["mapped"]:
            _read_through(local, *job["span"])
        with (pa.memory_map if job["mapped"] else pa.OSFile)(str(local)) as file:
            batches = _from(file, job["start"], job["stop"], job["span"][0])
            for number in range(job["start"], job["stop"]):
                batch = next(batches, None)
                if batch is None:
                    raise ValueError(f"it ends after {number:,} of {job['stop']:,} batches")
                kept = batch if columns is None else batch.select([name for name in batch.schema.names if name in columns])
                kept.validate(full=True)  # Arrow follows offsets from a file without a look at where they lead
                yield kept
    except CloisonError:
        raise
    except Exception as error:
        raise damaged(path, "Arrow", error) from error


def arrow_schema(path: str) -> Any:
    """Return the schema of an Arrow file or stream."""
    import pyarrow as pa

    with pa.OSFile(str(fetched(place(path)))) as file:
        return _reader(file).schema


def damaged(path: str, kind: str, error: Exception) -> StoreError:
    """Return the error for a columnar file that does not read."""
    return StoreError(f"{path} must be a whole {kind} file.", f"It does not read: {error}.", "Replace the file.")


def _from(file: Any, start: int, stop: int, byte: int) -> Iterator[Any]:
    """Return the batches [start, stop), the first of which lies at ``byte``; 0 where a stream is read from its beginning."""
    reader = _reader(file)
    if hasattr(reader, "get_batch"):
        return map(reader.get_batch, range(start, stop))
    if byte:
        file.seek(byte)  # the reader has the schema, and reads on from here
    return iter(reader)


def _reader(file: Any) -> Any:
    import pyarrow as pa

    magic = bytes(file.read(len(MAGIC)))
    file.seek(0)
    return pa.ipc.open_file(file) if magic == MAGIC else pa.ipc.open_stream(file)


def _read_through(path: Path, start: int, stop: int) -> None:
    """Read the bytes [start, stop) once: what a disk cannot give is an error here."""
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < stop:
            read = file.readinto(buffer[: stop - start])
            if not read:
                raise ValueError(f"it ends at byte {start:,} and must have {stop:,}")
            start += read
