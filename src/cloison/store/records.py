"""Records: what cloison notes of its own files, as JSON with a seal, so that no damage to one passes for what was noted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from cloison.errors import StoreError
from cloison.places import Place
from cloison.spec import canonical_hash
from cloison.store.files import read_json, write_json

__all__ = ["SEAL", "each", "misfit", "read_record", "sealed", "unsealed", "write_record"]

SEAL = "seal"
"""The field that holds the hash of all others."""

_MOST = 1 << 63


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record`` with its seal, in place of one that it has."""
    bare = {name: value for name, value in record.items() if name != SEAL}
    return {**bare, SEAL: canonical_hash(bare)}


def unsealed(plain: Any) -> dict[str, Any] | None:
    """Return the record in ``plain`` without its seal; None where it is no record, or not the one that was sealed."""
    if not isinstance(plain, dict):
        return None
    record = {name: value for name, value in plain.items() if name != SEAL}
    try:
        return record if plain.get(SEAL) == canonical_hash(record) else None
    except ValueError:  # a number that JSON does not have, as NaN
        return None


def write_record(path: Place, record: Mapping[str, Any]) -> None:
    """Put ``record`` and its seal at ``path``, whole or not at all."""
    write_json(path, sealed(record))


def read_record(path: Place, pattern: Any) -> dict[str, Any] | None:
    """Return the record at ``path``, or None where there is none.

    Args:
        pattern: what it looks like, see `misfit`: a seal only proves that nothing was damaged.

    Raises:
        StoreError: it cannot be read, is damaged, or is no such record.
    """
    plain = read_json(path)
    if plain is None:
        return None
    record = unsealed(plain)
    why = "Its seal does not fit: it was changed" if record is None else misfit(record, pattern)
    if record is None or why:
        raise StoreError(f"{path} must be as cloison wrote it.", f"{why}.", f"Remove {path.parent} and run again.")
    return record


def each(pattern: Any) -> tuple[str, Any]:
    """Return the pattern of a mapping whose every value is as ``pattern``."""
    return ("each", pattern)


def misfit(value: Any, pattern: Any, place: str = "") -> str:
    """Return where ``value`` is not as ``pattern`` says, "" where it is.

    A pattern is "count" (an integer from 0), "number" (finite), "text", "hash" (64 hexadecimal digits), "name" (of a file, no
    path), "any", "maybe" (a count, or null), a dict (these fields at least), a list of one (of such), or `each`.

    >>> misfit({"a": [{"b": 1}, {"b": None}]}, {"a": [{"b": "count"}]})
    'a[1].b is None, no count'
    """
    if isinstance(pattern, str):
        return "" if _fits(value, pattern) else f"{place or 'it'} is {ascii(value)[:60]}, no {pattern}"
    inside: Any
    if isinstance(pattern, list):
        if not isinstance(value, list):
            return f"{place or 'it'} is no list"
        inside = ((f"{place}[{number}]", item, pattern[0]) for number, item in enumerate(value))
    elif not isinstance(value, dict):
        return f"{place or 'it'} is no object"
    elif isinstance(pattern, tuple):
        inside = ((f"{place}.{name}".lstrip("."), item, pattern[1]) for name, item in value.items())
    else:
        missing = [name for name in pattern if name not in value]
        if missing:
            return f"{place or 'it'} lacks {', '.join(missing)}"
        inside = ((f"{place}.{name}".lstrip("."), value[name], part) for name, part in pattern.items())
    return next((why for where, item, part in inside if (why := misfit(item, part, where))), "")


def _fits(value: Any, kind: str) -> bool:
    if kind == "count":
        return type(value) is int and 0 <= value < _MOST
    if kind == "maybe":
        return value is None or _fits(value, "count")
    if kind == "number":
        return type(value) in (int, float) and math.isfinite(value)
    if kind == "any":
        return True
    if not isinstance(value, str):
        return False
    if kind == "hash":
        return len(value) == 64 and not set(value) - set("0123456789abcdef")
    return kind == "text" or (value not in ("", ".", "..") and PurePosixPath(value).name == value and "\0" not in value)
