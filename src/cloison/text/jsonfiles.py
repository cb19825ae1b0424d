"""JSON files: one record a line, or one array of records, as records or as the errors of those that are broken."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from cloison.errors import RecordError
from cloison.text.streams import MOST_BYTES, lines

__all__ = ["read_array", "read_lines"]

_BLANK = " \t\r\n"


def read_lines(stream: BinaryIO, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any] | RecordError]]:
    """Yield (line number from 1 in the chunk, record) for the lines that begin in [start, stop); blank lines are none."""
    for number, line in lines(stream, start, stop):
        if line is None:
            yield number, RecordError(f"a line may have {MOST_BYTES:,} bytes.", "This one is longer.", "Split the record.")
            continue
        if number == 1 and start == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield number, _parsed(line)


def _parsed(line: bytes) -> dict[str, Any] | RecordError:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        found = f"Byte {error.start} of the line is 0x{line[error.start]:02x}."
        return RecordError("a line must be valid UTF-8.", found, "Convert the file to UTF-8.")
    except RecursionError:
        return RecordError("a line must be one JSON object.", "It nests too deep to be parsed.", "Flatten the record.")
    except ValueError as error:
        shown = line[:60].decode("utf-8", "replace").strip()
        remedy = "Mend the line." if shown[:1] != "[" else "Mend the line, or name the file .json if it is one array."
        return RecordError("a line must be one JSON object.", f"It does not parse: {error}: {shown!r}.", remedy)
    return _object(record)


def _object(record: Any) -> dict[str, Any] | RecordError:
    if isinstance(record, dict):
        return record
    found = f"It is {repr(record)[:80]} ({type(record).__name__})."
    return RecordError("a record must be a JSON object.", found, "Give {column: value, ...}.")


def read_array(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | RecordError]]:
    """Yield (row from 0, record) for the elements of a JSON array, holding one element and one buffer at a time.

    Where the array itself is broken, so that nobody can tell where the next record begins, the last one is an error that says
    so.
    """
    row = -1
    try:
        for row, record in _elements(stream):
            yield row, record
    except RecordError as error:
        yield row + 1, error


def _elements(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | RecordError]]:
    decode = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = json.JSONDecoder()
    buffer, place, ended, row = "", 0, False, 0

    def more(size: int) -> None:
        nonlocal buffer, place, ended
        piece = stream.read(size)
        ended = not piece
        try:
            buffer = buffer[place:] + decode.decode(piece, final=ended)
        except UnicodeDecodeError as error:
            raise broken(f"It is no valid UTF-8: {error.reason}") from error
        place = 0

    def next_mark() -> str:
        """Return the next character that is not blank, "" at the end."""
        nonlocal place
        while True:
            while place < len(buffer) and buffer[place] in _BLANK:
                place += 1
            if place < len(buffer) or ended:
                return buffer[place : place + 1]
            more(1 << 16)

    def broken(found: str) -> RecordError:
        return RecordError(
            "the file must hold one JSON array of records.",
            f"{found} (row {row}); what follows cannot be read.",
            "Mend the file.",
        )

    if next_mark() != "[":
        raise broken(f"It begins with {buffer[place : place + 20]!r}")
    place += 1
    if next_mark() == "]":
        place += 1
    else:
        while True:
            next_mark()
            while True:
                try:
                    record, end = decoder.raw_decode(buffer, place)
                    if end < len(buffer) or ended:
                        break
                    why = "it ends too early"
                except RecursionError as error:
                    raise broken("A record nests too deep to be parsed") from error
                except ValueError as error:
                    why = str(error)
                if ended or len(buffer) - place > MOST_BYTES:
                    raise broken(f"A record does not parse or has over {MOST_BYTES:,} characters: {why}")
                more(max(1 << 16, len(buffer) - place))
            place = end
            yield row, _object(record)
            row += 1
            mark = next_mark()
            place += 1
            if mark == "]":
                break
            if mark != ",":
                raise broken(f"A comma or the end must follow a record, not {mark!r}")
    if next_mark():
        raise broken(f"Something follows the array: {buffer[place : place + 20]!r}")
