"""What wrote the bytes: the libraries that shape them, by version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["versions"]

_WRITERS = ("cloison", "jinja2", "numpy", "pyarrow", "tokenizers")
_SOLVED = ("auto", "mixed", "optimal")
"""Policies whose plans are rounded from what scipy's solver answers, which another version may answer otherwise."""


def versions(policy: str | None = None) -> dict[str, str]:
    """Return the versions of the libraries that shape the bytes; with the plan's ``policy``, those that shape the plan too."""
    out = {}
    for name in (*_WRITERS, "scipy") if policy in _SOLVED else _WRITERS:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    return out
