"""Numbers and tables as plain data, for pages: every cell already formatted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["counted", "number", "percent", "table"]


def number(value: float | None, digits: int = 2) -> str:
    """Return ``value`` for people: thousands with commas, fractions with ``digits``, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.{digits}f}"


def counted(count: int, noun: str) -> str:
    """Return "1 block", "1,234 blocks"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(share: float | None, digits: int = 2) -> str:
    """Return ``share`` (0 to 1) as a percentage, a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def table(said: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> dict[str, Any]:
    """Return a table: its name for screen readers, its heads, its rows; columns in ``numbers`` are aligned to the right."""
    return {
        "said": said,
        "heads": [{"text": head, "number": index in numbers} for index, head in enumerate(heads)],
        "rows": [list(row) for row in rows],
    }
