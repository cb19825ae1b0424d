"""The folder of a data set while it is made: whose it is, what an earlier run left, and one writer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloison.errors import ManifestError, StoreError
from cloison.places import Place, forget, remove, remove_tree, size, sizes
from cloison.spec import PackSpec
from cloison.store.claims import alone_in
from cloison.store.files import claim, store_errors, sweep
from cloison.store.manifest import MANIFEST, read_manifest
from cloison.store.records import read_record, write_record

__all__ = ["WORK", "Work", "refuse_foreign", "working_in"]

WORK = ".work"
"""What a run keeps in the data set's folder until the manifest is there; readers of data sets pass over hidden names."""


@dataclass(frozen=True)
class Work:
    """The work folder of a run.

    Attributes:
        place: the folder.
        verify: raises a StoreError when another run has taken over; to be called before anything is published.
    """

    place: Place
    verify: Callable[[], None]


def refuse_foreign(folder: Place, spec: PackSpec) -> None:
    """Return when ``folder`` is new, empty, or of a run with this spec, finished or not, or with another spec, unfinished.

    Raises:
        StoreError: it holds something else, another data set, or cannot be written to.
    """
    claim(folder)
    if isinstance(folder, Path) and (folder / WORK).is_symlink():
        raise StoreError(
            f"{folder / WORK} must be a folder.",
            "It is a link: what a run writes and removes there would be elsewhere.",
            "Remove the link, or name another folder.",
        )
    there = sizes(folder)
    if MANIFEST in there:
        made_with = read_manifest(folder).spec
        if made_with.with_(date=spec.date) != spec:
            raise _another(folder)
    elif there and there.get(WORK) != -1:
        found = sorted(there)
        raise StoreError(
            f"{folder} must be empty or an unfinished packed data set.",
            f"It holds {found[0]!r} ({len(found)} in all).",
            "Name another folder.",
        )


@contextmanager
def working_in(folder: Place, fingerprint: str) -> Iterator[Work | None]:
    """Give the work folder of a run, with what an earlier one with this fingerprint left; None where the data set is whole.

    When the block ends well the work folder is gone. Only one run at a time may be inside.

    Raises:
        StoreError: the folder holds another data set, or another run is in it.
    """
    work = folder / WORK
    if size(folder / MANIFEST) is not None:
        if read_manifest(folder).fingerprint != fingerprint:
            raise _another(folder)
        _clear(work)
        yield None
        return
    claim(work)
    with alone_in(work, folder) as verify:
        with store_errors(f"{folder} cannot be cleared of what an earlier run left"):
            sweep(folder, alone=True)
            sweep(work, alone=True)
            mine = _begun(work) == fingerprint
            for path in () if mine else _leavings(folder, work):
                remove(path)
        if not mine:
            write_record(work / "job.json", {"fingerprint": fingerprint})
        yield Work(work, verify)
    _clear(work)


def _leavings(folder: Place, work: Place) -> list[Place]:
    """Return what a run of another fingerprint left."""
    blocks = [folder / name for name in sizes(folder) if name.startswith("blocks-") and name.endswith(".parquet")]
    records = [name for name in sizes(work) if name.startswith("blocks-") and name.endswith(".json")]
    return [*blocks, *(work / name for name in records), *(work / name for name in sizes(work) if name.startswith("plan-"))]


def _begun(work: Place) -> str | None:
    try:
        job = read_record(work / "job.json", {"fingerprint": "text"})
    except StoreError:  # damaged: what it spoke of is written anew
        return None
    return None if job is None else str(job["fingerprint"])


def _clear(work: Place) -> None:
    with store_errors(f"{work} cannot be removed"):
        remove_tree(work)
        forget(work)


def _another(folder: Place) -> ManifestError:
    return ManifestError(
        f"{folder} must be new, or the data set of the same sources, tokenizer and spec.",
        "It holds a whole data set of other ones.",
        "Name another folder, or remove that one.",
    )
