"""datatrove and nanotron: ``.ds`` token files. Read from datatrove 0.10 and tested with it.

``NAME.ds`` is raw uint16 or uint32, little-endian; ``NAME.ds.index`` the uint64 ends of its documents, in tokens;
``NAME.ds.loss``, where there is one, a bool for each token, True where it is a target.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cloison.errors import StoreError
from cloison.formats.token_pieces import RawArray, TokenPiece, cut
from cloison.store.files import store_errors

__all__ = ["files", "read"]


def files(name: str) -> tuple[str, ...]:
    """Return the names of the files of a store of one."""
    return name, f"{name}.index", f"{name}.loss"


def read(source: Path) -> Iterator[TokenPiece]:
    """Yield the documents of a ``.ds`` file, or of all of a folder (and the folders in it); all of them have masks, or none.

    The bytes of an id follow from the index: its last end is the file's tokens.

    Raises:
        StoreError: no index, or a file that does not fit its index.
    """
    found = [source] if source.is_file() else sorted(source.rglob("*.ds"))
    if not found:
        raise StoreError(f"{source} must hold .ds files.", "There are none.", "Name the file or its folder.")
    for file in found:
        _, index, loss = (file.with_name(name) for name in files(file.name))
        with store_errors(f"{index} cannot be read"):
            ends = np.fromfile(index, "<u8").astype(np.int64)
            size = file.stat().st_size
        tokens = int(ends[-1]) if ends.size else 0
        width = size // tokens if tokens else 2
        if tokens * width != size or width not in (2, 4) or (np.diff(ends, prepend=0) < 0).any():
            raise StoreError(
                f"{file} must hold the {tokens:,} tokens of its index, of 2 or 4 bytes.",
                f"It has {size:,} bytes.",
                "Copy both again.",
            )
        ids = RawArray(file, np.dtype("<u2" if width == 2 else "<u4"))
        targets = None
        if loss.is_file():
            targets = RawArray(loss, np.dtype(np.bool_))
            if targets.size != tokens:
                raise StoreError(f"{loss} must have {tokens:,} entries.", f"It has {targets.size:,}.", "Copy it again.")
        yield from cut(ids, np.diff(ends, prepend=0), targets)
