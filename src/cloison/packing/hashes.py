"""The sha256 of source files, remembered for those that are elsewhere than on disk: they are read once to be hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloison.errors import StoreError
from cloison.places import Place, Remote, place, together
from cloison.store.files import file_sha256, read_json, write_json
from cloison.text.sources import SourceFile

__all__ = ["HASHES", "source_hashes"]

HASHES = ".hashes.json"
"""In the folder of token stores, hidden so that it is no source.

URL to [size, what the store says of the object (`cloison.places.stamp`), sha256].
"""


def source_hashes(files: Sequence[SourceFile], folder: Place) -> list[str]:
    """Return the sha256 of the content of each file.

    A file that is elsewhere than on disk, and was hashed before as the object that it still is, is not read again: ``folder``
    keeps what was found. Files on the local disk are always read, since their time says less.
    """
    far = [file for file in files if isinstance(place(file.path), Remote)]
    known = _known(folder) if far else {}

    def found(file: SourceFile) -> str:
        size, state, sha256 = known.get(file.path, (None, None, ""))
        same = (size, state) == (file.size_bytes, file.mtime_ns)
        return sha256 if same else file_sha256(place(file.path))

    hashes = together(found, files, far=bool(far), near=2)
    new = {
        file.path: [file.size_bytes, file.mtime_ns, sha256]
        for file, sha256 in zip(files, hashes, strict=True)
        if isinstance(place(file.path), Remote)
    }
    if any(known.get(path) != entry for path, entry in new.items()):
        write_json(folder / HASHES, {**known, **new})
    return hashes


def _known(folder: Place) -> dict[str, Any]:
    try:
        found = read_json(folder / HASHES)
    except StoreError:
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {path: entry for path, entry in entries if isinstance(entry, list) and len(entry) == 3}
