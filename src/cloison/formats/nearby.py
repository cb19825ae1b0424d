"""nearby: a token store on the local disk, while it is read; one that lies elsewhere is copied to be read at random."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloison.errors import CloisonError, StoreError
from cloison.places import Place, below, download, scratch, size, sizes, together
from cloison.store.records import misfit

__all__ = ["nearby"]


@contextmanager
def nearby(source: Place, inside: str, beside: Sequence[str]) -> Iterator[Path]:
    """Give the path of ``source``, or of a copy of it that is gone when the block ends; errors in the block name the URL.

    Args:
        source: a folder; or a file, or what names of files begin with.
        inside: a regular expression for the paths, in a folder, of its files; "" where a store is no folder.
        beside: names of the files of a store that is none, those that may be there.

    Raises:
        StoreError: none of them is there, or the name of one would lead out of the folder.

    Cost: of what lies elsewhere, its bytes on the local disk, among the temporary files.
    """
    if isinstance(source, Path):
        yield source
        return
    if inside and sizes(source):
        folder, name = source, ""
        names = [path for path in below(source) if re.fullmatch(inside, path)]
    else:
        folder, name = source.parent, source.name
        names = [other for other in beside if size(folder / other) is not None]
    if not names:
        raise StoreError(f"{source} must be a token store.", "None of its files is there.", "Check the URL, and the format.")
    odd = [path for path in names if any(misfit(part, "name") for part in path.split("/"))]
    if odd:
        raise StoreError(f"{folder} must hold files of plain names.", f"There is {odd[0]!a}.", "Rename or remove it.")
    with tempfile.TemporaryDirectory(dir=scratch(source), prefix="import-") as made:
        home = Path(made)
        for path in names:
            (home / path).parent.mkdir(parents=True, exist_ok=True)
        together(lambda path: download(folder / path, home / path), names, far=True)
        try:
            yield home / name if name else home
        except CloisonError as error:
            parts = (part.replace(str(home), str(folder)) for part in (error.asked, error.found, error.remedy))
            raise type(error)(*parts) from error
