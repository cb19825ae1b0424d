"""Ordinary files of the local disk: a pipe or a device in the place of one is an error, and nothing waits for it."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from cloison.errors import StoreError

__all__ = ["in_utf8", "open_ordinary"]


def in_utf8(name: object) -> bool:
    """Return whether the name of a file or folder is UTF-8; pyarrow opens no others."""
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in str(name))  # how Python shows other bytes


def open_ordinary(path: Path) -> BufferedReader:
    """Return the file opened for reading bytes.

    Raises:
        OSError: it cannot be opened.
        StoreError: it is a pipe, a socket or a device, which would be waited for, or have no end.
    """
    file = open(path, "rb", opener=_at_once)  # noqa: SIM115 (the caller's)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise StoreError(f"{path} must be an ordinary file.", "It is not.", "Remove it, or name another.")


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
