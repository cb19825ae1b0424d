"""What is in folders: one listing, all that lies below, and what a glob matches."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloison.places.remote import Place, Remote, tried

__all__ = ["below", "found", "sizes"]

_MAGIC = re.compile(r"[*?\[]")


def sizes(folder: Place) -> dict[str, int]:
    """Return the names and sizes in bytes of the files in ``folder``, and its folders' names with -1; {} for none.

    Cost: one listing.
    """
    if isinstance(folder, Path):
        out = {}
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # a link to nothing
                    out[entry.name] = -1 if entry.is_dir() else entry.stat().st_size
        return out
    return dict(sorted(_listed(folder), key=lambda entry: entry[1]))  # of a file and a folder of one name, the file


def _listed(folder: Remote) -> list[tuple[str, int]]:
    """Return names and sizes, -1 for folders; a store of objects may hold a file and a folder of one name."""

    def request(system: Any, path: str) -> list[tuple[str, int]]:
        within = f"{path.strip('/')}/"
        out = []
        for one in system.ls(path, detail=True):
            name = str(one["name"]).strip("/")
            if name.startswith(within):  # some hold an object in place of the folder itself
                out.append((name[len(within) :], -1 if one["type"] == "directory" else int(one["size"] or 0)))
        return out

    try:
        return tried("listed", folder, request)
    except FileNotFoundError:
        return []


def below(folder: Remote, depth: int | None = None) -> list[str]:
    """Return the paths, below a remote folder and relative to it, of its files; [] for none.

    Folder by folder, each listing tried again if it fails: the walks of fsspec leave out what they cannot list.

    Args:
        depth: parts that a path has at most; None: any number.
    """
    out: list[str] = []
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        for name, size in _listed(folder / inner if inner else folder):
            path = f"{inner}/{name}" if inner else name
            if size >= 0:
                out.append(path)
            elif depth is None or path.count("/") + 1 < depth:
                waiting.append(path)
    return sorted(out, key=lambda path: path.split("/"))


def found(pattern: str) -> list[str]:
    """Return the URLs of the files below a remote folder, or of those that a remote glob matches, by path; [] for none."""
    protocol, _, rest = pattern.rstrip("/").partition("://")
    parts = rest.split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    top = Remote(f"{protocol}://{'/'.join(parts[:plain])}")
    wild = parts[plain:]
    if not wild:
        return [f"{top}/{path}" for path in below(top)]
    from fsspec.utils import glob_translate

    matches = re.compile(glob_translate("/".join(wild))).match
    depth = None if any("**" in part for part in wild) else len(wild)
    return [str(top / path) for path in below(top, depth) if matches(path)]
