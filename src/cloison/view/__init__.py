"""The same findings for the eye: terminal and pages."""

from __future__ import annotations

from functools import cache

__all__ = ["version"]


@cache
def version() -> str:
    """Return the version of the installed cloison."""
    from importlib.metadata import version as installed

    return installed("cloison")
