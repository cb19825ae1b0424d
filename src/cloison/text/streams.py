"""Streams: files opened as plain bytes, whatever compresses them, and read in pieces of bounded size."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from cloison.errors import StoreError
from cloison.places import opened, place

__all__ = ["MOST_BYTES", "guarded", "lines", "open_stream"]

MOST_BYTES = 1 << 26
"""A record (a line, an element of an array, a document) may have this many bytes (64 MiB)."""


_WHOLE_BYTES = 1 << 23
"""Bytes of a request for a file that is elsewhere than on disk and is read from end to end."""


def open_stream(path: str, codec: str, stretch_bytes: int = 1 << 20) -> BinaryIO:
    """Return ``path`` opened for reading bytes, expanded as they are read.

    Args:
        path: a file, by path or URL.
        codec: "" (none), "gz" or "zst"; files of several members or frames are read to their end.
        stretch_bytes: how much of a file without codec will be read: one request where it is elsewhere than on disk.
    """
    at = place(path)
    if not codec:
        return opened(at, stretch_bytes)
    if codec == "gz":
        return cast(BinaryIO, gzip.open(at if isinstance(at, Path) else opened(at, _WHOLE_BYTES), "rb"))
    import pyarrow as pa

    source = pa.OSFile(str(at)) if isinstance(at, Path) else pa.PythonFile(opened(at, _WHOLE_BYTES), "r")
    return io.BufferedReader(cast(Any, pa.CompressedInputStream(source, "zstd")), 1 << 16)


class guarded:
    """A context in which what a damaged or vanished file raises becomes a StoreError that names the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (EOFError, zlib.error, OSError)) and not isinstance(error, StoreError):
            raise StoreError(
                f"{self._path} must be readable to its end.",
                f"It is not: {type(error).__name__}: {error}.",
                "Replace the file, or name it correctly (.gz, .zst).",
            ) from error


def lines(stream: BinaryIO, start: int, stop: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number from 1, line) for the lines that begin in [start, stop) of ``stream``; None for one that is too long.

    A line belongs to the chunk in which it begins; memory holds one line of at most `MOST_BYTES`.

    Args:
        stream: at position 0; where ``start`` is not 0 it must seek.
        start: in bytes.
        stop: in bytes; None: to the end.
    """
    position = start
    if start:
        stream.seek(start - 1)
        position = start - 1
        while (piece := stream.readline(1 << 16)) and (position := position + len(piece)) and not piece.endswith(b"\n"):
            if stop is not None and position >= stop:
                return  # one line covers the whole chunk
    number = 0
    while stop is None or position < stop:
        line = stream.readline(MOST_BYTES + 1)
        if not line:
            return
        number += 1
        position += len(line)
        if len(line) <= MOST_BYTES:
            yield number, line
            continue
        yield number, None
        while line and not line.endswith(b"\n"):
            line = stream.readline(1 << 20)
            position += len(line)
