"""import_tokens: the token stores that people have, as samples that pack reads without tokenising again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cloison.errors import InputError, StoreError
from cloison.formats import datatrove, mds, megatron, olmo_core
from cloison.formats.nearby import nearby
from cloison.formats.new_folder import publish, writing_into
from cloison.formats.token_pieces import TokenPiece, write_samples
from cloison.places import Place, Remote, place
from cloison.segments import IGNORE

__all__ = ["FORMATS", "Imported", "import_tokens"]

Format = Literal["megatron", "olmo-core", "datatrove", "mds"]
FORMATS: tuple[Format, ...] = ("megatron", "olmo-core", "datatrove", "mds")

_MDS_COLUMNS = ("tokens", "input_ids", "labels", "sequence_id")


@dataclass(frozen=True)
class Imported:
    """What an import wrote.

    Attributes:
        path: the folder, a path or a `Remote`; it is a source for ``cloison.pack``.
        files: Parquet files of ``input_ids``, and ``labels`` where the store says which tokens are targets.
        samples, tokens: what is in them.
        masked: whether it says.
        left_out: the store's columns that were not taken (of MDS; the others have none).
    """

    path: Place
    files: tuple[Place, ...]
    samples: int
    tokens: int
    masked: bool
    left_out: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        lists = {"files": [str(file) for file in self.files], "left_out": list(self.left_out)}
        return {**vars(self), "path": str(self.path), **lists}


def import_tokens(
    source: str | Path | Remote,
    dest: str | Path | Remote,
    format: Format,
    *,
    dtype: str | None = None,
    eos_token_id: int | None = None,
    lose: Sequence[str] = (),
) -> Imported:
    """Write the documents of a token store into ``dest`` as samples for ``cloison.pack``, in their order.

    The files appear in ``dest`` when all of them are written, as those of `cloison.export` do.

    Args:
        source: megatron: the prefix of ``.bin`` and ``.idx``; olmo-core: a raw ``.npy`` file or a folder of them; datatrove: a
            ``.ds`` file or a folder of them; mds: the folder with ``index.json``. A URL will do: its files are copied among
            the temporary ones for as long as they are read.
        dest: a folder or URL that is new or empty.
        format: one of `FORMATS`.
        dtype: olmo-core only, and needed there: the type of the ids, which a raw array does not state.
        eos_token_id: olmo-core without metadata, and mds rows without ``sequence_id``: documents end in it. For mds without
            either, each row is one sample.
        lose: "weights" where the loss weights of tokens (``loss_weights`` of mds) may be lost: samples hold none by token.

    Raises:
        InputError: an unknown format, or something that must be said, or weights would be lost that ``lose`` does not name.
        StoreError: a store that is damaged, or ``dest`` is not empty.

    Cost: one pass, a piece of a million tokens (of mds: a shard) in memory.
    """
    if format not in FORMATS:
        raise InputError(f"a format is one of {', '.join(FORMATS)}.", f"It is {format!r}.", "Pick one of them.")
    if set(lose) - {"weights"}:
        raise InputError(
            "what an import may lose is weights.", f"There is {', '.join(sorted(lose))}.", 'Pass lose=["weights"].'
        )
    at, folder = place(source), place(dest)
    with nearby(at, *_files(at.name, format)) as path:
        if format == "megatron":
            found = megatron.read(path)
        elif format == "olmo-core":
            found = olmo_core.read(path, dtype, eos_token_id)
        elif format == "datatrove":
            found = datatrove.read(path)
        else:
            found = _mds_documents(path, eos_token_id)
        left_out = [name for name in mds.column_names(path) if name not in _MDS_COLUMNS] if format == "mds" else []
        if "loss_weights" in left_out and "weights" not in lose:
            raise InputError(
                "samples hold no loss weights by token.",
                f"{path} has loss_weights, which would be lost.",
                'Say so if that is meant: lose=["weights"] (--lose weights).',
            )
        first = next(found, None)
        masked = first is not None and first.targets is not None
        with writing_into(folder) as new:
            written, samples, tokens = write_samples(_alike(first, found, masked), new.work)
            names = [file.name for file in written]
            publish(new, names)
    return Imported(folder, tuple(folder / name for name in names), samples, tokens, masked, tuple(left_out))


def _files(name: str, format: Format) -> tuple[str, tuple[str, ...]]:
    """Return which files a store of this name has: a regular expression for those in its folder, or the names beside it."""
    if format == "megatron":
        return "", megatron.files(name)
    if format == "olmo-core":
        return r"[^/]*\.(npy|csv\.gz)", olmo_core.files(name)
    if format == "datatrove":
        return r".*\.ds(\.index|\.loss)?", datatrove.files(name)
    return r"[^/]+", ()


def _alike(first: TokenPiece | None, rest: Iterator[TokenPiece], masked: bool) -> Iterator[TokenPiece]:
    """Yield all pieces; where one says which tokens are targets and another does not, raise."""
    if first is not None:
        yield first
    for piece in rest:
        if (piece.targets is not None) is not masked:
            raise StoreError(
                "all files of a store must have a label mask, or none.",
                "Some have one and others do not.",
                "Import them one by one, or write the masks that are missing.",
            )
        yield piece


def _mds_documents(folder: Path, eos_token_id: int | None) -> Iterator[TokenPiece]:
    """Yield the samples of MDS rows: the runs of ``sequence_id`` (-1 is padding), else cut behind the end-of-text id, "
    "else rows."""
    for columns in mds.read(folder, _MDS_COLUMNS):
        rows = columns.get("tokens", columns.get("input_ids"))
        if rows is None:
            raise StoreError(f"{folder} must have a column tokens.", "It has none of that name.", "Import it by other means.")
        ids = rows.values
        row = np.repeat(np.arange(rows.num_rows), rows.sizes)
        edges = np.ones(ids.size, bool)
        edges[1:] = row[1:] != row[:-1]
        keep = np.ones(ids.size, bool)
        if "sequence_id" in columns:
            numbers = columns["sequence_id"].values
            if numbers.size != ids.size:
                raise StoreError("sequence_id must have an entry a token.", f"It has {numbers.size:,}.", "Write it again.")
            edges[1:] |= numbers[1:] != numbers[:-1]
            keep = numbers >= 0
        elif eos_token_id is not None:
            edges[1:] |= ids[:-1] == eos_token_id
        targets = None
        if "labels" in columns:
            labels = columns["labels"].values
            if labels.size != ids.size or not np.isin(labels[labels != ids], IGNORE).all():
                raise StoreError("labels must be the tokens, or -100.", "Others are there.", "Import the tokens alone.")
            targets = (labels != IGNORE)[keep]
        starts = np.flatnonzero(edges & keep)
        lengths = np.add.reduceat(keep, starts).astype(np.int64) if starts.size else np.zeros(0, np.int64)
        yield TokenPiece(ids[keep].astype(np.int32), lengths, targets)
