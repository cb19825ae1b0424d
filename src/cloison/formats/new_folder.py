"""A new folder of files that appear when all of them are there, in the order in which they are named.

They are written in the hidden folder ``.work`` inside it, since a place beside it may be on another disk or not be ours. What
a killed run left there is removed by the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloison.errors import StoreError
from cloison.places import remove_tree
from cloison.store.claims import alone_in
from cloison.store.files import claim, store_errors, sync_folder

__all__ = ["publish", "writing_into"]

_WORK = ".work"


@contextmanager
def writing_into(folder: Path) -> Iterator[Path]:
    """Give an empty folder to write in, for `publish`; when the block ends, well or not, it is gone, and so is ``folder``
    where it was made here and is empty.

    Raises:
        StoreError: ``folder`` is a file or holds something, cannot be written to, or another run is writing into it.
    """
    created = not folder.exists()
    _refuse_used(folder)
    work = folder / _WORK
    claim(work)
    with store_errors(f"{folder} cannot be used"), alone_in(work, folder):
        _refuse_used(folder)  # another run may have ended meanwhile
        remove_tree(work / "files")
        claim(work / "files")
        try:
            yield work / "files"
        finally:
            remove_tree(work)
            if created and not any(folder.iterdir()):
                folder.rmdir()


def publish(work: Path, folder: Path, names: Sequence[str]) -> None:
    """Move the files ``names`` (with ``/`` where they lie in folders) from ``work`` to ``folder``, in this order, durably."""
    for name in names:
        with store_errors(f"{folder / name} cannot be written"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(work / name, folder / name)
    for parent in {(folder / name).parent for name in names}:
        sync_folder(parent)


def _refuse_used(folder: Path) -> None:
    with store_errors(f"{folder} cannot be used"):
        if folder.exists() and (not folder.is_dir() or any(path.name != _WORK for path in folder.iterdir())):
            raise StoreError(f"{folder} must be a new or empty folder.", "Something is there.", "Name another.")
