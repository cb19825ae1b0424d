"""Standard input as a file: spooled and hashed first, so that a run over it can be repeated and resumed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cloison.errors import InputError
from cloison.store.files import PART, claim, store_errors

__all__ = ["spooled"]

_MAGIC = ((b"\x1f\x8b", ".jsonl.gz"), (b"\x28\xb5\x2f\xfd", ".jsonl.zst"), (b"PAR1", ".parquet"), (b"ARROW1", ".arrow"))


@contextmanager
def spooled(sources: Sequence[str], folder: Path, stdin: IO[bytes] | None = None) -> Iterator[list[str]]:
    """Give ``sources`` with "-" replaced by a file of what standard input holds, named by its content, in ``folder``.

    The file stays when the block ends with an error, so that the same input goes on where it stopped; else it is removed.
    """
    if "-" not in sources:
        yield list(sources)
        return
    if sources.count("-") > 1:
        raise InputError("standard input can be read once.", f'"-" is there {sources.count("-")} times.', "Name it once.")
    claim(folder)
    path = _spool(stdin or sys.stdin.buffer, folder)
    yield [str(path) if source == "-" else source for source in sources]
    path.unlink(missing_ok=True)


def _spool(stream: IO[bytes], folder: Path) -> Path:
    part = folder / f"stdin.{os.getpid()}{PART}"
    digest = hashlib.sha256()
    head = b""
    with store_errors(f"standard input cannot be kept in {folder}"):
        try:
            with part.open("wb") as out:
                while piece := stream.read(1 << 20):
                    head = head or piece[:64]
                    digest.update(piece)
                    out.write(piece)
            path = folder / f"stdin-{digest.hexdigest()[:16]}{_suffix(head)}"
            shutil.move(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return path


def _suffix(head: bytes) -> str:
    for magic, suffix in _MAGIC:
        if head.startswith(magic):
            return suffix
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return ".jsonl" if text.startswith(b"{") else ".json" if text.startswith(b"[") else ".txt"
