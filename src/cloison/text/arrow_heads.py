"""The heads of Arrow files and streams: where the messages lie, found without a look at what is between the heads.

They are Flatbuffers (Message.fbs and File.fbs of the Arrow columnar format, 1.0), of which a field or two is needed. pyarrow
shows them only together with the batch, which it reads for that. Where a head is false, a ValueError or struct.error says
so; what would expand beyond reason is refused before anything of it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

__all__ = ["MAGIC", "Extent", "in_file", "in_stream"]

MAGIC = b"ARROW1"
_GOES_ON = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Kinds of messages; the last two are the numbers of their lists in a footer, too."""

_BOMB_BYTES, _BOMB_RATIO = 1 << 27, 1 << 9
_BOMB_ROWS, _ROWS_A_BYTE = 1 << 20, 1 << 7


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a record batch lies in its file, in bytes, head included; and its rows."""

    start: int
    stop: int
    rows: int


def in_file(file: BinaryIO, size: int) -> list[Extent]:
    """Return where the batches of an Arrow file lie, as its footer says."""
    end = _bytes(file, size - len(MAGIC) - 4, len(MAGIC) + 4, size)
    if end[4:] != MAGIC:
        raise ValueError("it does not end as an Arrow file")
    length = _number("<i", end, 0)
    footer = _bytes(file, size - len(end) - length, length, size)
    root = _number("<I", footer, 0)
    listed = {kind: _blocks(footer, root, kind) for kind in (_DICTIONARY, _BATCH)}
    _refuse_twice((start, start + head) for blocks in listed.values() for start, head in blocks)
    found = {kind: [_at(file, size, *block) for block in blocks] for kind, blocks in listed.items()}
    if any(kind != stated for stated, messages in found.items() for kind, _ in messages):
        raise ValueError("its footer lists a message as what it is not")
    _refuse_twice((place.start, place.stop) for messages in found.values() for _, place in messages)
    return [place for _, place in found[_BATCH]]


def _blocks(footer: bytes, root: int, field: int) -> list[tuple[int, int]]:
    """Return (where it begins, bytes of its head) of each message that a footer lists, from vectors of 24 bytes an entry."""
    listed = _inner(footer, root, field)
    count = _number("<I", footer, listed) if listed else 0
    if listed + 4 + 24 * count > len(footer):
        raise ValueError(f"its footer lists {count:,} messages in {len(footer):,} bytes")
    places = range(listed + 4, listed + 4 + 24 * count, 24)
    return [(_number("<q", footer, at), _number("<i", footer, at + 8)) for at in places]


def _refuse_twice(spans: Iterable[tuple[int, int]]) -> None:
    """Raise where bytes are listed twice: a batch listed again and again would make terabytes of a megabyte."""
    for (_, before), (start, _) in pairwise(sorted(spans)):
        if start < before:
            raise ValueError(f"its footer lists byte {start:,} twice")


def in_stream(file: BinaryIO, size: int) -> tuple[list[Extent], bool]:
    """Return where the batches of an Arrow stream lie, and whether one can begin with any of them."""
    out = []
    enterable = True
    start = 0
    while size - start >= 4:
        kind, place = _at(file, size, start, None)
        if kind < 0:
            break
        if kind != _SCHEMA if start == 0 else kind not in (_DICTIONARY, _BATCH):
            raise ValueError(f"a message of kind {kind} begins at byte {start:,}")
        if kind == _BATCH:
            out.append(place)
        enterable = enterable and kind != _DICTIONARY
        start = place.stop
    return out, enterable


def _at(file: BinaryIO, size: int, start: int, head_bytes: int | None) -> tuple[int, Extent]:
    """Return kind and place of the message at ``start``; kind -1 where a stream ends.

    Raises:
        ValueError: it is none, or would expand beyond reason.
    """
    skipped = 4
    length = _number("<I", _bytes(file, start, 4, size), 0)
    if length == _GOES_ON:
        skipped = 8
        length = _number("<I", _bytes(file, start + 4, 4, size), 0)
    if length == 0:
        return -1, Extent(start, start, 0)
    if head_bytes is not None:  # what a footer says, which is what pyarrow goes by
        length = head_bytes - skipped
    head = _bytes(file, start + skipped, length, size)
    root = _number("<I", head, 0)
    kind = _value("<B", head, root, 1)
    body = _value("<q", head, root, 3)
    stop = start + skipped + length + body
    if body < 0 or stop > size:
        raise ValueError(f"it has {size:,} bytes, and a message goes on to {stop:,}")
    content = _inner(head, root, 2)
    if kind == _DICTIONARY and content:
        content = _inner(head, content, 1)
    if kind not in (_BATCH, _DICTIONARY) or not content:
        return kind, Extent(start, stop, 0)
    rows = _value("<q", head, content, 0)
    if rows < 0 or (rows > _BOMB_ROWS and rows > _ROWS_A_BYTE * (stop - start)):
        raise ValueError(f"a batch of {stop - start:,} bytes states {rows:,} rows; it looks like a bomb")
    if _slot(head, content, 3):
        _refuse_bombs(file, size, head, content, stop - body, body)
    return kind, Extent(start, stop, rows)


def _refuse_bombs(file: BinaryIO, size: int, head: bytes, content: int, start: int, body: int) -> None:
    """Raise where the compressed buffers of a batch, whose body begins at ``start``, would become too much.

    Each begins with the bytes that it will have, -1 where it is stored as it is.
    """
    listed = _inner(head, content, 2)
    expanded = 0
    for number in range(_number("<I", head, listed) if listed else 0):
        begin, length = (_number("<q", head, listed + 4 + 16 * number + skip) for skip in (0, 8))
        if length >= 8:
            expanded += max(0, _number("<q", _bytes(file, start + begin, 8, size), 0))
    if expanded > _BOMB_BYTES and expanded > _BOMB_RATIO * body:
        raise ValueError(f"a batch of {body:,} bytes would become {expanded:,}; it looks like a bomb")


def _bytes(file: BinaryIO, start: int, count: int, size: int) -> bytes:
    if start < 0 or count < 0 or start + count > size:
        raise ValueError(f"it has {size:,} bytes, and names bytes {start:,} to {start + count:,}")
    file.seek(start)
    found = file.read(count)
    if len(found) != count:
        raise ValueError(f"it ends at byte {start + len(found):,}")
    return found


def _value(form: str, head: bytes, table: int, field: int) -> int:
    at = _slot(head, table, field)
    return _number(form, head, at) if at else 0


def _inner(head: bytes, table: int, field: int) -> int:
    """Return where the table or vector that ``field`` refers to lies; 0 where there is none."""
    at = _slot(head, table, field)
    return at + _number("<I", head, at) if at else 0


def _slot(head: bytes, table: int, field: int) -> int:
    """Return where ``field`` of the Flatbuffers table at ``table`` lies; 0 where it has its default."""
    layout = table - _number("<i", head, table)
    if 4 + 2 * field >= _number("<H", head, layout):
        return 0
    skip = _number("<H", head, layout + 4 + 2 * field)
    return table + skip if skip else 0


def _number(form: str, head: bytes, at: int) -> int:
    if at < 0:
        raise ValueError("a head points outside of itself")
    found: int = struct.unpack_from(form, head, at)[0]
    return found
