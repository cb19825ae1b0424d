"""Local copies of remote files, for what must be mapped: one download a machine, proven, shared by its processes.

They lie in ``cloison-USER`` where temporary files lie (``TMPDIR`` moves them), a folder for each remote folder; it may be
removed whenever no run is at work. `cloison.pack` removes those of its run when it ends well.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloison.errors import ChangedError, StoreError
from cloison.places.listing import sizes
from cloison.places.remote import Place, Remote, tried
from cloison.places.verbs import stamp

__all__ = ["borrowed", "copy_of", "download", "fetched", "forget", "local_folder", "scratch"]


def scratch(folder: Place) -> Path:
    """Return the local folder for what belongs to ``folder``: itself where it is local.

    Raises:
        StoreError: it cannot be made, or is another user's.
    """
    if isinstance(folder, Path):
        return folder
    owner = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    home = Path(tempfile.gettempdir()) / f"cloison-{owner}"
    found = home / hashlib.sha256(folder.url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found.mkdir(exist_ok=True)
        state = home.lstat()
    except OSError as error:
        raise StoreError(f"{home} must be writable.", f"The system says: {error.strerror}.", "Set TMPDIR elsewhere.") from error
    if hasattr(os, "getuid") and (state.st_uid != os.getuid() or not home.is_dir() or home.is_symlink()):
        raise StoreError(f"{home} must be this user's own folder.", "It is another's.", "Set TMPDIR elsewhere.")
    return found


def forget(folder: Place) -> None:
    """Remove the local copies of what lies in a remote ``folder``; who has mapped one keeps it."""
    if isinstance(folder, Remote):
        for file in scratch(folder).iterdir():
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            elif not file.name.endswith(".part"):  # of another run, which is at work
                file.unlink(missing_ok=True)


def copy_of(at: Remote, key: str) -> Path:
    """Return where the local copy of the content ``key`` at ``at`` lies, or would lie."""
    return scratch(at.parent) / f"{key[:16]}-{at.name}"


def fetched(at: Place, sha256: str = "") -> Path:
    """Return a local file with the content of ``at``: itself where it is local, else a copy, made now if there is none.

    Args:
        sha256: of the content, where it is known; a copy is then proven by it. Else the copy is of the object that is there
            now (`stamp`).

    Raises:
        FileNotFoundError: there is no file.
        ChangedError: its content is another.
        StoreError: it cannot be read.
    """
    if isinstance(at, Path):
        return at
    copy = copy_of(at, sha256 or f"{stamp(at)[1]:016x}")
    if copy.exists():
        return copy
    with _alone(copy):
        if not copy.exists():
            part = copy.with_name(f"{copy.name}.{os.getpid()}.part")
            try:
                tried("read", at, lambda system, path: _download(system, path, part, at, sha256))
                os.replace(part, copy)
            finally:
                part.unlink(missing_ok=True)
    return copy


@contextmanager
def borrowed(at: Place) -> Iterator[Path]:
    """Give a local file with the content of ``at``: itself, or a copy that is gone when the block ends.

    Raises:
        FileNotFoundError: there is no file.
    """
    if isinstance(at, Path):
        yield at
        return
    copy = fetched(at)
    try:
        yield copy
    finally:
        copy.unlink(missing_ok=True)
        copy.with_name(f"{copy.name}.lock").unlink(missing_ok=True)


def download(at: Remote, to: Path) -> None:
    """Put the whole content of ``at`` into the local file ``to``.

    Raises:
        FileNotFoundError: there is no file.
    """
    tried("read", at, lambda system, path: _download(system, path, to, at, ""))


def local_folder(folder: Place) -> Path:
    """Return a local folder with the files that lie directly in ``folder``, or the local copy of it where it is a file.

    Raises:
        FileNotFoundError: there is nothing.
    """
    if isinstance(folder, Path):
        return folder
    names = [name for name, size in sizes(folder).items() if size >= 0]
    if not names:
        return fetched(folder)
    copies = [fetched(folder / name) for name in names]
    # Under their own names, in a folder for just this content.
    content = hashlib.sha256("".join(sorted(copy.name for copy in copies)).encode()).hexdigest()[:16]
    home = scratch(folder) / content
    home.mkdir(exist_ok=True)
    for name, copy in zip(names, copies, strict=True):
        if not (home / name).exists():
            part = home / f"{name}.{os.getpid()}.part"
            shutil.copyfile(copy, part)
            os.replace(part, home / name)
    return home


def _download(system: Any, path: str, part: Path, at: Remote, sha256: str) -> None:
    system.get_file(path, str(part))
    size, arrived = system.info(path)["size"], part.stat().st_size
    if size is not None and arrived != size:
        raise ConnectionError(f"{arrived:,} of {size:,} bytes arrived")
    if sha256:
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise ChangedError(
                f"{at} must have the sha256 {sha256[:16]}...", f"It is {found[:16]}...", f"Remove {at.parent} and run again."
            )


@contextmanager
def _alone(copy: Path) -> Iterator[None]:
    """Let one process of this machine at a time make ``copy``."""
    try:
        import fcntl
    except ImportError:  # not posix: two may download, and the last stays
        yield
        return
    with copy.with_name(f"{copy.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
