"""What wrote the bytes: the libraries that shape them, by version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["versions"]

_WRITERS = ("cloison", "jinja2", "numpy", "pyarrow", "tokenizers")


def versions() -> dict[str, str]:
    """Return the versions of the libraries that shape the bytes."""
    out = {}
    for name in _WRITERS:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    return out
