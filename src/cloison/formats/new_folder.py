"""A new folder of files that appear when all of them are there, in the order in which they are named.

On the local disk they are written in the hidden folder ``.work`` inside it, since a place beside it may be on another disk or
not be ours, and moved. For other file systems, where nothing is moved, they are written among temporary files, and put when
all are there; while that lasts ``.work`` in the folder says which. What a killed run left is removed by the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cloison.errors import StoreError
from cloison.places import Place, Remote, below, put, remove, remove_tree, scratch, size, sizes, together
from cloison.store.claims import alone_in
from cloison.store.files import claim, store_errors, sync_folder
from cloison.store.records import read_record, write_record

__all__ = ["NewFolder", "publish", "writing_into"]

_WORK = ".work"
_PUBLISHING = "publishing.json"


@dataclass(frozen=True)
class NewFolder:
    """A folder that is being made.

    Attributes:
        place: where its files will be.
        work: an empty folder on the local disk, to write them in.
        verify: raises a StoreError when another run has taken over.
    """

    place: Place
    work: Path
    verify: Callable[[], None]


@contextmanager
def writing_into(folder: Place) -> Iterator[NewFolder]:
    """Give an empty folder to write in, for `publish`; when the block ends, well or not, it is gone, and so is ``folder``
    where it was made here and is empty.

    Raises:
        StoreError: ``folder`` is a file or holds something, cannot be written to, or another run is writing into it.
    """
    created = isinstance(folder, Path) and not folder.exists()
    _leavings(folder)
    claim(folder / _WORK)
    with store_errors(f"{folder} cannot be used"), alone_in(folder / _WORK, folder) as verify:
        for name in _leavings(folder):  # looked for again: another run may have ended meanwhile
            remove(folder / name)
        local = scratch(folder / _WORK) / "files"
        remove_tree(local)
        claim(local)
        try:
            yield NewFolder(folder, local, verify)
        finally:
            remove_tree(local)
            if isinstance(folder, Path):
                remove_tree(folder / _WORK)
                if created and not any(folder.iterdir()):
                    folder.rmdir()
    if isinstance(folder, Remote):
        remove_tree(folder / _WORK)


def publish(new: NewFolder, names: Sequence[str]) -> None:
    """Move, or put, the files ``names`` (with ``/`` where they lie in folders) from the work folder, in this order, durably.

    On other file systems all but the last are put at once, and where one fails those that arrived are removed.
    """
    folder, work = new.place, new.work
    if isinstance(folder, Remote):
        _put_all(folder, new, names)
        return
    for name in names:
        with store_errors(f"{folder / name} cannot be written"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(work / name, folder / name)
    for parent in {(folder / name).parent for name in names}:
        sync_folder(parent)


def _put_all(folder: Remote, new: NewFolder, names: Sequence[str]) -> None:
    note = folder / _WORK / _PUBLISHING
    new.verify()
    write_record(note, {"names": list(names)})
    try:
        together(lambda name: put(new.work / name, folder / name), names[:-1], far=True)
        new.verify()
        for name in names[-1:]:
            put(new.work / name, folder / name)
    except BaseException:
        with suppress(StoreError):  # what stays is removed by the next run
            new.verify()  # else they are another run's
            for name in names:
                remove(folder / name)
            remove(note)
        raise
    remove(note)


def _leavings(folder: Place) -> list[str]:
    """Return the names of files that a killed run left in ``folder``, which holds nothing else.

    Raises:
        StoreError: it is a file, or holds something.
    """
    with store_errors(f"{folder} cannot be used"):
        if size(folder) is not None:
            raise _used(folder)
        if isinstance(folder, Path):
            if folder.exists() and any(path.name != _WORK for path in folder.iterdir()):
                raise _used(folder)
            return []
        there = sizes(folder)
        note = read_record(folder / _WORK / _PUBLISHING, {"names": ["text"]}) if there.get(_WORK) == -1 else None
        left = set(note["names"]) if note else set()
        if not set(there) <= {_WORK, *(name.partition("/")[0] for name in left)}:
            raise _used(folder)
        found = [name for name in below(folder) if not name.startswith(f"{_WORK}/")] if left else []
        if not set(found) <= left:
            raise _used(folder)
        return found


def _used(folder: Place) -> StoreError:
    return StoreError(f"{folder} must be a new or empty folder.", "Something is there.", "Name another.")
