"""Tables of text: CSV and TSV, whose first row names the columns. Every cell is a string."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from typing import BinaryIO

from cloison.errors import RecordError
from cloison.text.streams import MOST_BYTES, lines

__all__ = ["DELIMITERS", "read_table"]

DELIMITERS = {"csv": ",", "tsv": "\t"}


def read_table(stream: BinaryIO, delimiter: str) -> Iterator[tuple[int, dict[str, str] | RecordError]]:
    """Yield (line that it begins in, from 1; record) for the rows of a table; blank lines are none.

    Cells may be quoted with ``"`` and then hold delimiters, line ends and doubled quotes (RFC 4180). A row with another number
    of cells than the first is a RecordError in its place. Where quotes or the encoding are broken, so that nobody can tell
    where the next row begins, the last one is an error that says so.

    Memory: one row, of at most `MOST_BYTES`.
    """
    text = _Lines(stream)
    csv.field_size_limit(max(csv.field_size_limit(), MOST_BYTES))  # the module's own, for the process: 128 KiB is a short text
    table = csv.reader(text, delimiter=delimiter, strict=True)
    begins = 1
    try:
        names = next((cells for cells in table if cells), [])
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise RecordError("the first row must name each column once.", f"It has {twice!r} twice.", "Rename one.")
        while True:
            begins = text.next_row()
            cells = next(table, None)
            if cells is None:
                return
            if len(cells) == len(names):
                yield begins, dict(zip(names, cells, strict=True))
            elif cells:
                yield (
                    begins,
                    RecordError(
                        f"a row must have {len(names)} cells, as the first row has.",
                        f"It has {len(cells)}: {str(cells)[:80]}.",
                        'Quote cells that hold the delimiter or a line end ("...", quotes inside doubled).',
                    ),
                )
    except csv.Error as error:
        yield begins, _broken(f"It does not parse: {error}")
    except RecordError as error:
        yield begins, error


class _Lines:
    """The lines of a stream as text with their ends, and where the row under way began."""

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = lines(stream, 0, None)
        self._number = 0
        self._held = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        number, line = next(self._lines)
        self._number = number
        self._held += MOST_BYTES + 1 if line is None else len(line)
        if line is None or self._held > MOST_BYTES:
            raise _broken(f"It has more than {MOST_BYTES:,} bytes; a quote may be missing")
        try:
            return (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _broken(f"Byte {error.start} of line {number:,} is 0x{line[error.start]:02x}, no valid UTF-8") from error

    def next_row(self) -> int:
        """Return the line in which the next row begins, and count its bytes anew."""
        self._held = 0
        return self._number + 1


def _broken(found: str) -> RecordError:
    return RecordError(
        "a row must be one of a CSV or TSV table.", f"{found}; what follows cannot be read.", "Mend the file, as UTF-8."
    )
