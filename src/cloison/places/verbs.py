"""What is done with places: measured, read, put, removed; one verb for the local disk and all other file systems."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from cloison.errors import InputError
from cloison.places.listing import below
from cloison.places.ordinary import open_ordinary
from cloison.places.remote import Place, Remote, filesystem, tried

__all__ = [
    "absolute",
    "beside",
    "create",
    "put",
    "read",
    "remove",
    "remove_tree",
    "size",
    "stamp",
    "together",
]


_IDENTITY = (
    *("size", "ETag", "etag", "md5Hash", "crc32c", "content_md5", "generation", "VersionId"),
    *("LastModified", "last_modified", "mtime", "modified", "created", "updated"),
)
"""What stores say of an object that is another when the object is."""

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16


def together(do: Callable[[T], R], things: Sequence[T], *, far: bool, near: int = 1) -> list[R]:
    """Return ``do(thing)`` of each, in order; several at once, on threads, since what is far away is waited for.

    Args:
        far: whether places are asked that are not on the local disk; if not, ``near`` threads do it.
    """
    threads = min(_AT_ONCE if far else near, len(things))
    if threads <= 1:
        return [do(thing) for thing in things]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(do, things))


def size(at: Place) -> int | None:
    """Return the bytes of the file at a place; None where there is no file."""
    if isinstance(at, Path):
        return at.stat().st_size if at.is_file() else None
    found = _info(at)
    return None if found is None or found["type"] != "file" else int(found["size"])


def stamp(at: Place) -> tuple[int, int]:
    """Return (size in bytes, an integer that is another one when the file was written since).

    It is the time of the last change on the local disk, and elsewhere made of all that the store says of the object (its
    ETag, say).

    Raises:
        FileNotFoundError: there is no file.
    """
    if isinstance(at, Path):
        state = os.stat(at)
        return state.st_size, state.st_mtime_ns
    found = _info(at)
    if found is None:
        raise FileNotFoundError(f"there is no {at}")
    # Not all of it: some fields are another in a listing than in an answer of its own, or change as one looks.
    said = repr([(name, str(found[name])) for name in _IDENTITY if found.get(name) is not None])
    return int(found["size"] or 0), int.from_bytes(hashlib.sha256(said.encode()).digest()[:6], "little")


def read(at: Place) -> bytes:
    """Return the whole content at a place.

    Raises:
        FileNotFoundError: there is no file.
    """
    if isinstance(at, Path):
        with open_ordinary(at) as file:
            return file.read()

    def request(system: Any, path: str) -> bytes:
        expected, content = system.info(path)["size"], bytes(system.cat_file(path))
        if expected is not None and len(content) != expected:
            raise ConnectionError(f"{len(content):,} of {expected:,} bytes arrived")
        return content

    return tried("read", at, request)


def put(local: Path, at: Remote) -> None:
    """Put the local file ``local`` at ``at``, by one put: object stores show an object whole or not at all."""
    expected = local.stat().st_size

    def request(system: Any, path: str) -> None:
        system.put_file(str(local), path)
        found = system.info(path)["size"]
        if found is not None and int(found) != expected:
            raise ConnectionError(f"{found:,} of {expected:,} bytes arrived")

    tried("written", at, request)


def create(at: Remote, content: bytes) -> bool:
    """Put ``content`` where nothing is, and return True; return False, and change nothing, where something is.

    Of two that create at once one gets False on stores with conditional writes (S3, GCS); on others that is likely only.
    """

    def request(system: Any, path: str) -> bool:
        try:
            system.pipe_file(path, content, mode="create")
        except FileExistsError:
            return read(at) == content  # ours: an earlier try arrived, and its answer was lost
        return True

    return tried("written", at, request)


def remove(at: Place) -> None:
    """Remove the file at a place, if there is one."""
    if isinstance(at, Path):
        at.unlink(missing_ok=True)
        return
    with suppress(FileNotFoundError):
        tried("removed", at, lambda system, path: system.rm_file(path))


def remove_tree(folder: Place) -> None:
    """Remove a folder and all below it, if it is there."""
    if isinstance(folder, Path):
        if folder.exists():
            shutil.rmtree(folder)
        return

    if inside := below(folder):
        # At once where the store can do that; each that is left has its own tries, or a store that fails some requests would
        # nearly always fail one of many.
        with suppress(Exception):
            system, path = filesystem(folder)
            system.rm([f"{path.rstrip('/')}/{name}" for name in inside])
        together(lambda name: remove(folder / name), below(folder), far=True)

    def request(system: Any, path: str) -> None:
        if system.exists(path):  # where folders are there without files
            system.rm(path, recursive=True)

    with suppress(FileNotFoundError):
        tried("removed", folder, request)


def absolute(at: Place) -> Place:
    """Return the place so that every process and machine that sees its file system finds it: the resolved path, or the URL."""
    return at.resolve() if isinstance(at, Path) else at


def beside(at: Place, name: str) -> Place:
    """Return the place called ``name`` in the folder that ``at`` lies in.

    Raises:
        InputError: it is the top of its file system: a bucket, say.
    """
    above = absolute(at).parent
    if isinstance(above, Remote) and above.url.endswith("://"):
        raise InputError(
            f"{name} is looked for, and kept, beside the data set.",
            f"{at} is at the top of its file system.",
            f"Name a folder inside, as {at}/{name}, or pass tokens= (--tokens).",
        )
    return above / name


def _info(at: Remote) -> dict[str, Any] | None:
    try:
        return dict(tried("read", at, lambda system, path: system.info(path)))
    except FileNotFoundError:
        return None
