"""Files that are whole or not there: written under another name on the local disk, and then moved, or put, into their place.

On the local disk a file is written beside its place, synced and moved into it. On other file systems (`cloison.places`) it is
written among temporary files and then put by one request: stores of objects show an object whole or not at all, and none need
know how to rename. A reader never sees half a file under its real name. What a killed writer leaves behind ends in ``.part``
and is removed by `sweep`. Every operating-system error becomes a StoreError that says what to do about it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloison.errors import CloisonError, StoreError
from cloison.places import Place, Remote, opened, put, read, remove, scratch
from cloison.places.copies import copy_of
from cloison.places.ordinary import in_utf8

__all__ = [
    "PART",
    "claim",
    "file_sha256",
    "lives",
    "read_json",
    "replacing",
    "store_errors",
    "sweep",
    "sync_folder",
    "write_json",
    "writer",
]

PART = ".part"
"""The suffix of files that are not finished."""

_HASHED_BYTES = 1 << 23
"""Bytes of a request where a file on another file system is read from end to end."""

_CLOCKS_DIFFER_S = 5.0

_SILENT_S = 3600.0
"""A writer on another machine of a shared disk is gone when it wrote nothing for so long."""

_REMEDIES = {
    errno.ENOSPC: "Free space on that disk and run again: what is finished is kept.",
    errno.EDQUOT: "Free space within the quota and run again: what is finished is kept.",
    errno.EACCES: "Give this user the right to it, or name another.",
    errno.EPERM: "Give this user the right to it, or name another.",
    errno.EROFS: "The file system is read-only: name a folder elsewhere.",
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "A part of the path is a file: name another folder.",
    errno.ELOOP: "Remove the link, or name another folder.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n), or lower workers.",
}


@contextmanager
def store_errors(doing: str, *, damage: str = "") -> Iterator[None]:
    """Turn an OSError inside the block into a StoreError that begins with ``doing``; errors of ours pass unchanged.

    Args:
        damage: turn every other error too, with this remedy: readers of columnar files raise many kinds where a file lies.
    """
    try:
        yield
    except CloisonError:
        raise
    except Exception as error:
        if damage and not (isinstance(error, OSError) and error.errno):
            why = (str(error).splitlines() or [""])[0][:300]
            raise StoreError(f"{doing}.", f"It is damaged: {type(error).__name__}: {why}.", damage) from error
        if not isinstance(error, OSError):
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = _REMEDIES.get(error.errno or 0, "Run again once that is mended: what is finished is kept.")
        raise StoreError(f"{doing}.", f"The system says: {reason}.", remedy) from error


@contextmanager
def replacing(path: Place, *, durable: bool = True, keep: bool = False) -> Iterator[Path]:
    """Give a local path to write to; when the block ends well, what was written is at ``path``, synced, else nothing is.

    Args:
        durable: False for what the next run makes anew anyway: it outlives this process, and a loss of power may cost it.
        keep: of what goes to another file system, leave the local copy that `cloison.places.fetched` finds.
    """
    if isinstance(path, Remote):
        with _sending(path, keep) as part:
            yield part
        return
    part = path.with_name(f"{path.name}.{writer()}{PART}")
    with store_errors(f"{path} cannot be written"):
        try:
            yield part
            if durable:
                descriptor = os.open(part, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            os.replace(part, path)
            if durable:
                sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def _sending(path: Remote, keep: bool) -> Iterator[Path]:
    part = scratch(path.parent) / f"{path.name}.{writer()}{PART}"
    with store_errors(f"{path} cannot be written"):
        try:
            yield part
            put(part, path)
            if keep:
                os.replace(part, copy_of(path, file_sha256(part)))
        finally:
            part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a system without folder handles
        return
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems
        pass
    finally:
        os.close(descriptor)


def write_json(path: Place, value: Any) -> None:
    """Put ``value`` at ``path`` as JSON with sorted keys, whole or not at all."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as part:
        part.write_text(text + "\n", encoding="utf-8", errors="surrogatepass")


def read_json(path: Place) -> Any:
    """Return the JSON at ``path``, or None when there is no such file.

    Raises:
        StoreError: it cannot be read, or is no JSON.
    """
    with store_errors(f"{path} cannot be read"):
        try:
            content = read(path)
        except FileNotFoundError:
            return None
    try:
        return json.loads(content.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise StoreError(f"{path} must be JSON.", f"It does not parse: {error}.", "Remove it and run again.") from error


def file_sha256(path: Place) -> str:
    """Return the sha256 (hex) of the content at ``path``. Cost: one read, about 2 GB a second on the local disk."""
    with store_errors(f"{path} cannot be read"), opened(path, _HASHED_BYTES) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def claim(folder: Place) -> None:
    """Make ``folder`` (with its parents) and prove that it can be written to."""
    if isinstance(folder, Remote):
        probe_there = folder / f".probe.{writer()}{PART}"
        with replacing(probe_there) as part:
            part.write_bytes(b"cloison")
        remove(probe_there)
        return
    if not in_utf8(folder):
        raise StoreError(f"{folder} must have a name in UTF-8.", "Parquet is written to no other.", "Name another folder.")
    with store_errors(f"{folder} cannot be used"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{writer()}{PART}"
        try:
            probe.write_bytes(b"cloison")
        finally:
            probe.unlink(missing_ok=True)


def sweep(folder: Place, *, alone: bool = False) -> None:
    """Remove the unfinished files of writers that are gone; of all writers where the caller is ``alone`` (holds the lock).

    On other file systems nothing unfinished has a place; what is removed are the local files of writers that are gone.
    """
    if isinstance(folder, Remote):
        sweep(scratch(folder))
    elif folder.is_dir():
        for path in folder.glob(f"*{PART}"):
            node, _, process = path.name.removesuffix(PART).rpartition(".")[2].rpartition("-")
            if alone or not process.isdigit():
                gone = True
            elif node == _node():
                gone = not _writes(int(process), path)
            else:
                gone = _silent(path)
            if gone:
                path.unlink(missing_ok=True)


def writer() -> str:
    """Return the name of this process among all that write to a shared disk: of its machine, and its number there."""
    return f"{_node()}-{os.getpid()}"


def _node() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", platform.node())


def _silent(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _SILENT_S
    except FileNotFoundError:  # it was finished, or removed, just now
        return False


def _writes(process: int, path: Path) -> bool:
    """Return whether ``process`` may still write ``path``: it runs, and began before the file was last written.

    A killed writer may stay as a zombie until its parent looks, and its number goes to another process sooner or later.
    """
    try:
        state, *rest = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        began = time.time() - uptime + int(rest[18]) / os.sysconf("SC_CLK_TCK")
        return state not in "ZX" and began <= path.stat().st_mtime + _CLOCKS_DIFFER_S
    except (OSError, ValueError, IndexError):  # it is gone, or this is no Linux
        return lives(process)


def lives(process: int) -> bool:
    """Return whether there is a process of this number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True
