"""What a run notes when it begins, for the run that goes on after it: the day that templates see, and what the sources were."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cloison.errors import ChangedError, StoreError
from cloison.packing.folder import WORK
from cloison.places import Place, remove, size
from cloison.spec import PackSpec
from cloison.store.files import claim
from cloison.store.manifest import MANIFEST, read_manifest
from cloison.store.records import read_record, write_record

__all__ = ["forget_beginning", "note_beginning", "with_its_day"]

_BEGUN = "begun.json"


def with_its_day(folder: Place, spec: PackSpec) -> PackSpec:
    """Return ``spec`` with the day of the run of it that ``folder`` holds, finished or not: it goes on as it began."""
    if spec.date is not None:
        return spec
    begun = read_manifest(folder).spec if size(folder / MANIFEST) is not None else _spec_of(folder)
    return begun if begun is not None and begun.with_(date=None) == spec else spec


def note_beginning(folder: Place, spec: PackSpec, sources: Sequence[tuple[str, str]]) -> None:
    """Note in ``folder`` what is packed into it.

    Args:
        sources: path and sha256 of each file.

    Raises:
        ChangedError: a run of this spec was interrupted here, and its sources were others.
    """
    if size(folder / MANIFEST) is not None:
        return
    hashes = [found for _, found in sources]
    plain = {"spec": spec.to_dict(), "sources": hashes}
    known = _read(folder)
    if known == plain:
        return
    if known is not None and known["spec"] == plain["spec"]:
        before = known["sources"]
        differ = [path for path, found in sources if found not in before] or [path for path, _ in sources]
        raise ChangedError(
            f"the run that was interrupted in {folder} goes on with the sources that it began with.",
            f"{len(differ):,} of {len(sources):,} files changed since, {differ[0]} among them."
            if len(before) == len(sources)
            else f"It began with {len(before):,} files, and there are {len(sources):,}.",
            f"Restore them, or remove {folder} to pack them as they are now.",
        )
    claim(folder / WORK)
    write_record(folder / WORK / _BEGUN, plain)


def forget_beginning(folder: Place) -> None:
    """Remove the note: the run ended with an error, and what it complained of may be mended in the sources."""
    with suppress(OSError):
        remove(folder / WORK / _BEGUN)


def _read(folder: Place) -> dict[str, Any] | None:
    try:
        return read_record(folder / WORK / _BEGUN, {"spec": {}, "sources": ["hash"]})
    except StoreError:  # damaged: it begins anew
        return None


def _spec_of(folder: Place) -> PackSpec | None:
    known = _read(folder)
    return None if known is None else PackSpec.from_dict(known["spec"])
