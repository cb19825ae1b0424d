"""Remote: a place on a file system that is not the local disk, named by a URL, and calls to it that are tried again.

File systems come from fsspec, with its own ways to configure them (environment variables such as ``AWS_PROFILE`` or
``FSSPEC_S3_ENDPOINT_URL``, ``~/.config/fsspec``). Nothing here needs more than object stores have: reading ranges, listing,
putting whole objects, deleting. No rename, no append, no folders that exist by themselves.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cloison.errors import CloisonError, InputError, MissingDependencyError, StoreError, require

__all__ = ["Place", "Remote", "filesystem", "on_disk", "place", "tried"]

T = TypeVar("T")

_WAITS_S = (0.05, 0.2, 0.8, 3.2)
"""Waits before a failed request is made again; the libraries below have their own, for what they know as passing."""

_PACKAGES = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "gcs": ("gcsfs", "gs")}
"""Protocol to the package that speaks it, and the extra that brings that."""

_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError, TypeError)
"""What is no better the second time."""

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG))
"""What the local disk says of a copy, which is no fault of the store."""


@dataclass(frozen=True)
class Remote:
    """A file or folder by its URL, as ``s3://bucket/folder/name``; made by `place`. It is no path: `open` does not take it.

    >>> folder = place("memory://bucket/packed/")
    >>> str(folder / "manifest.json"), folder.name, str(folder.parent)
    ('memory://bucket/packed/manifest.json', 'packed', 'memory://bucket')
    """

    url: str

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}{'' if self.url.endswith('://') else '/'}{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def protocol(self) -> str:
        """What comes before ``://``."""
        return self.url.partition("://")[0]

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.partition("://")[2].rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The folder that it lies in; of a bucket, ``protocol://``."""
        start, _, rest = self.url.partition("://")
        return Remote(f"{start}://{rest.rpartition('/')[0]}")


Place = Path | Remote
"""A file or folder."""


def place(where: str | os.PathLike[str] | Remote) -> Place:
    """Return the place that ``where`` names: a Remote for a URL (``protocol://...``), else a local path.

    ``file://`` is the local disk. Nothing is opened.
    """
    if isinstance(where, Remote):
        return where
    text = os.fspath(where)
    protocol, parted, rest = text.partition("://")
    if not parted or not protocol.replace("+", "").replace(":", "").isalnum():
        return Path(text)
    if protocol in ("file", "local"):
        return Path(rest)
    return Remote(f"{protocol}://{rest.rstrip('/')}")


def on_disk(where: str | os.PathLike[str] | Remote, what: str) -> Path:
    """Return the local path that ``where`` names, for what is read or written on the local disk only.

    Raises:
        InputError: it is a URL, which as a path would be a folder of a strange name.
    """
    at = place(where)
    if isinstance(at, Remote):
        raise InputError(f"{what} must be on the local disk.", f"{at} is not.", "Name a path, and copy it.")
    return at


def filesystem(at: Remote) -> tuple[Any, str]:
    """Return the fsspec file system of a place and its path there. Made anew for each call: threads and forks share nothing.

    Raises:
        MissingDependencyError: fsspec, or the package for this protocol, is not installed.
        InputError: a protocol that fsspec does not know.
    """
    require("fsspec", "remote")
    from fsspec.core import url_to_fs

    try:
        # Other processes write too, so that a listing that was kept would be a wrong one.
        found: tuple[Any, str] = url_to_fs(at.url, use_listings_cache=False)
    except ImportError as error:
        if at.protocol in _PACKAGES:
            require(*_PACKAGES[at.protocol])
        raise MissingDependencyError(
            f"{at.protocol}:// needs a package of its own.", f"fsspec says: {error}.", "Install it and run again."
        ) from error
    except ValueError as error:
        raise InputError(f"{at} must be a URL that fsspec knows.", f"It says: {error}.", "Check its beginning.") from error
    return found


def tried(doing: str, at: Remote, request: Callable[[Any, str], T]) -> T:
    """Return ``request(file system, path)``, made again after a failure that may pass.

    Args:
        doing: the end of "URL cannot be ...", for the error.

    Raises:
        FileNotFoundError: there is nothing at that place.
        FileExistsError: for requests that create.
        StoreError: it failed to the last, or with what does not pass.
    """
    for wait in (*_WAITS_S, None):
        try:
            return request(*filesystem(at))
        except (CloisonError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # the libraries below raise what they like
            local = isinstance(error, OSError) and error.errno in _FULL
            final = isinstance(error, _FINAL) or local or "Credentials" in type(error).__name__
            if wait is None or final:
                tries = "" if final else f"{len(_WAITS_S) + 1} times "
                said = (str(error).splitlines() or [""])[0][:300]
                remedy = "Free space where temporary files lie (TMPDIR)" if local else "Check the store and the rights to it"
                raise StoreError(
                    f"{at} cannot be {doing}.",
                    f"The request failed {tries}with {type(error).__name__}: {said}.",
                    f"{remedy}, and run again: what is finished is kept.",
                ) from error
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")
