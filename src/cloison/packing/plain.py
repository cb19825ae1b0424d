"""Errors as plain data, so that they cross processes and rest in files with their three parts."""

from __future__ import annotations

from collections.abc import Mapping

from cloison import errors
from cloison.errors import CloisonError

__all__ = ["error_from_plain", "error_to_plain"]


def error_to_plain(error: CloisonError) -> dict[str, str]:
    """Return an error as plain data."""
    return {"type": type(error).__name__, "asked": error.asked, "found": error.found, "remedy": error.remedy}


def error_from_plain(plain: Mapping[str, str]) -> CloisonError:
    """Return the error that `error_to_plain` wrote; of a type that is unknown here, a plain CloisonError."""
    kind: type[CloisonError] = getattr(errors, plain["type"], CloisonError)
    return kind(plain["asked"], plain["found"], plain["remedy"])
