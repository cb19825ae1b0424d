"""The sha256 of source files, remembered for those that are elsewhere than on disk: they are read once to be hashed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cloison.errors import StoreError
from cloison.packing.engines import IN_THIS_PROCESS, Engine
from cloison.places import Place, Remote, place, remove_tree, sizes, together
from cloison.store.files import claim, file_sha256, lives, read_json, write_json, writer
from cloison.text.sources import SourceFile

__all__ = ["HASHES", "prepare", "run", "source_hashes"]

_SCRATCH = ".hashing-"
"""In the folder of token stores: what workers are fed with, and by which driver."""

HASHES = ".hashes.json"
"""In the folder of token stores, hidden so that it is no source.

URL to [size, what the store says of the object (`cloison.places.stamp`), sha256].
"""


def prepare(setup: Mapping[str, Any]) -> None:
    """Do nothing: hashing needs nothing shared."""


def run(state: None, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sha256 of the file at ``job["path"]``."""
    return {"index": job["index"], "sha256": file_sha256(place(job["path"]))}


def source_hashes(files: Sequence[SourceFile], folder: Place, engine: Engine = IN_THIS_PROCESS) -> list[str]:
    """Return the sha256 of the content of each file; workers that are apart read them, a file each.

    A file that is elsewhere than on disk, and was hashed before as the object that it still is, is not read again: ``folder``
    keeps what was found. Files on the local disk are always read, since their time says less.
    """
    far = [file for file in files if isinstance(place(file.path), Remote)]
    known = _known(folder) if far else {}

    hashes = {
        file.path: known[file.path][2]
        for file in far
        if file.path in known and tuple(known[file.path][:2]) == (file.size_bytes, file.mtime_ns)
    }
    unread = [file.path for file in files if file.path not in hashes]
    if engine.apart and unread:
        read = _on_workers(unread, folder, engine)
    else:
        read = together(lambda path: file_sha256(place(path)), unread, far=bool(far), near=2)
    hashes |= dict(zip(unread, read, strict=True))
    new = {file.path: [file.size_bytes, file.mtime_ns, hashes[file.path]] for file in far}
    if any(known.get(path) != entry for path, entry in new.items()):
        write_json(folder / HASHES, {**known, **new})
    return [hashes[file.path] for file in files]


def _on_workers(paths: Sequence[str], folder: Place, engine: Engine) -> list[str]:
    for name in sizes(folder):  # of drivers that were killed
        node, _, process = name.removeprefix(_SCRATCH).rpartition("-")
        ours = f"{node}-{os.getpid()}" == writer() and process.isdigit()
        if name.startswith(_SCRATCH) and ours and not lives(int(process)):
            remove_tree(folder / name)
    scratch = folder / f"{_SCRATCH}{writer()}"
    claim(scratch)
    try:
        jobs = [{"index": index, "path": path} for index, path in enumerate(paths)]
        records = engine.run({"step": "hash", "named_from": os.getcwd()}, jobs, scratch=scratch)
        found = {record["index"]: record["sha256"] for record in records}
    finally:
        remove_tree(scratch)
    return [found[index] for index in range(len(paths))]


def _known(folder: Place) -> dict[str, Any]:
    try:
        found = read_json(folder / HASHES)
    except StoreError:
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {path: entry for path, entry in entries if isinstance(entry, list) and len(entry) == 3}
