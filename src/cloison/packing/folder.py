"""The folder of a data set while it is made: whose it is, what an earlier run left, and one writer at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cloison.errors import ManifestError, StoreError
from cloison.spec import PackSpec
from cloison.store.files import claim, read_json, store_errors, sweep, write_json
from cloison.store.manifest import MANIFEST, read_manifest

__all__ = ["WORK", "refuse_foreign", "working_in"]

WORK = ".work"
"""What a run keeps in the data set's folder until the manifest is there; readers of data sets pass over hidden names."""


def refuse_foreign(folder: Path, spec: PackSpec) -> None:
    """Return when ``folder`` is new, empty, or of a run with this spec, finished or not, or with another spec, unfinished.

    Raises:
        StoreError: it holds something else, another data set, or cannot be written to.
    """
    claim(folder)
    if (folder / MANIFEST).exists():
        made_with = read_manifest(folder).spec
        if made_with.with_(date=spec.date) != spec:
            raise _another(folder)
    elif not (folder / WORK).is_dir() and (found := sorted(path.name for path in folder.iterdir())):
        raise StoreError(
            f"{folder} must be empty or an unfinished packed data set.",
            f"It holds {found[0]!r} ({len(found)} in all).",
            "Name another folder.",
        )


@contextmanager
def working_in(folder: Path, fingerprint: str) -> Iterator[Path | None]:
    """Give the work folder of a run, with what an earlier one with this fingerprint left; None where the data set is whole.

    When the block ends well the work folder is gone. Only one run at a time may be inside.

    Raises:
        StoreError: the folder holds another data set, or another run is in it.
    """
    work = folder / WORK
    if (folder / MANIFEST).exists():
        if read_manifest(folder).fingerprint != fingerprint:
            raise _another(folder)
        _clear(work)
        yield None
        return
    claim(work)
    with (work / "lock").open("wb") as lock:
        _hold(lock, folder)
        sweep(folder, alone=True)
        sweep(work, alone=True)
        if _begun(work) != fingerprint:
            for path in (*folder.glob("blocks-*.parquet"), *work.glob("blocks-*.json"), *work.glob("*.npy")):
                path.unlink()
            write_json(work / "job.json", {"fingerprint": fingerprint})
        yield work
    _clear(work)


def _begun(work: Path) -> str | None:
    try:
        job = read_json(work / "job.json")
    except StoreError:
        return None
    return job.get("fingerprint") if isinstance(job, dict) else None


def _clear(work: Path) -> None:
    with store_errors(f"{work} cannot be removed"):
        if work.exists():
            shutil.rmtree(work)


def _hold(lock: IO[bytes], folder: Path) -> None:
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(
            f"{folder} takes one run at a time.", "Another one is packing into it.", "Wait for it, or name another folder."
        ) from error


def _another(folder: Path) -> ManifestError:
    return ManifestError(
        f"{folder} must be new, or the data set of the same sources, tokenizer and spec.",
        "It holds a whole data set of other ones.",
        "Name another folder, or remove that one.",
    )
