"""Sources: files and folders as one list of logical chunks, which the input alone decides (never the number of workers)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloison.errors import RecordError

__all__ = ["CHUNK_BYTES", "Source", "Where", "open_sources", "read_chunk"]

CHUNK_BYTES = 1 << 21
"""A chunk of lines holds those that begin in one stretch of this many bytes."""


@dataclass(frozen=True)
class Where:
    """The place of a record: a file, and the line (from 1) or row (from 0) in it.

    ``str()`` gives ``train.jsonl, line 17``.
    """

    path: str
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"


@dataclass(frozen=True)
class Source:
    """What is read: the files in order, and the jobs, each a chunk for `read_chunk` made of plain data."""

    files: tuple[str, ...]
    jobs: tuple[dict[str, Any], ...]


def open_sources(sources: Sequence[str], spec: Any = None) -> Source:
    """Return the Source of files."""
    chunks = []
    for path in sources:
        size = Path(path).stat().st_size
        chunks += [
            {"path": path, "kind": "jsonl", "start": start, "stop": min(size, start + CHUNK_BYTES)}
            for start in range(0, size, CHUNK_BYTES)
        ]
    return Source(tuple(sources), tuple(chunks))


def read_chunk(job: Mapping[str, Any]) -> Iterator[tuple[Where, dict[str, Any] | RecordError]]:
    """Yield the records of one chunk with their places, in order."""
    with open(job["path"], "rb") as file:
        position = job["start"]
        if position:
            file.seek(position - 1)
            position = position - 1 + len(file.readline())
        number = 0
        while position < job["stop"]:
            line = file.readline()
            position += len(line)
            number += 1
            if line.strip():
                where = Where(job["path"], "line", number)
                try:
                    yield where, json.loads(line)
                except ValueError as error:
                    yield where, RecordError("a line must be JSON.", str(error), "Mend it.")
