"""The blocks of a packed data set in large flat pieces, as every writer wants them, and several of its files at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cloison.checking.ragged import Ragged
from cloison.errors import StoreError
from cloison.formats.pages import plain_groups, read_groups
from cloison.places import Place, Remote, random_access
from cloison.segments import IGNORE
from cloison.store.files import store_errors
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = [
    "TARGETED",
    "Piece",
    "block_offsets",
    "each_shard",
    "ends_in_one_id",
    "first_tokens",
    "has_weights",
    "pieces",
    "rolled_mask",
]

_PIECE_TOKENS = 1 << 20
_THREADS = 4
"""Files that are exported at once at most: each holds some pieces in memory."""

TARGETED = ("input_ids", "labels", "seq_lengths")
"""The columns of blocks that most formats are made of."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Piece:
    """Some blocks, flat.

    Attributes:
        block_segments: int64 [blocks], how many segments each block has.
        seq_lengths: int32 [segments].
        input_ids: int32 [tokens].
        labels: int32 [tokens]; without entries where it was not asked for.
        loss_weights: float32 [tokens], or None where it was not asked for.
    """

    block_segments: npt.NDArray[np.int64]
    seq_lengths: npt.NDArray[np.int32]
    input_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    loss_weights: npt.NDArray[np.float32] | None = None


def each_shard(packed: Packed, work: Callable[[int, Shard], T]) -> list[T]:
    """Return what ``work`` gives for each file of the data set, in order; some are worked on at once, each in a thread.

    Decoding, shaping and writing leave Python's lock free. There are two threads a core, since a file that is whole waits for
    the disk. The first error is raised once the files in hand are through; no further ones are begun.
    """
    shards = packed.manifest.shards
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(_THREADS, 2 * cores, len(shards))), "export") as pool:
        return list(pool.map(work, range(len(shards)), shards))


def pieces(packed: Packed, shard: Shard, columns: tuple[str, ...] = TARGETED) -> Iterator[Piece]:
    """Yield the blocks of one file in pieces of about a million tokens, with these ``columns``; only they are decoded."""
    path = packed.path / shard.name
    size = max(1, _PIECE_TOKENS // packed.capacity)
    with store_errors(f"{path} cannot be read", damage="Restore the file, or pack again."):
        rows = 0
        for found in _read(path, shard.size_bytes, columns, size, packed.capacity):
            flat: dict[str, Any] = {"labels": np.zeros(0, np.int32)} | {name: one.values for name, one in found.items()}
            piece = Piece(block_segments=found["seq_lengths"].sizes, **flat)
            _refuse_unsound(piece, found, path, packed.capacity)
            rows += piece.block_segments.size
            yield piece
        if rows != shard.num_blocks:
            raise _unsound(path, f"It has {rows:,} blocks, and its manifest says {shard.num_blocks:,}")


def _read(path: Place, size_bytes: int, columns: Sequence[str], rows: int, capacity: int) -> Iterator[dict[str, Ragged]]:
    """Yield the columns of about ``rows`` rows at a time: page by page on the local disk, where that goes, else by pyarrow."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(random_access(path, size_bytes), pre_buffer=isinstance(path, Remote)) as file:
        if isinstance(path, Path):
            with path.open("rb") as raw:
                groups = plain_groups(raw, file.metadata, columns)
                while groups:
                    count = int(np.searchsorted(np.cumsum([group[0].rows for group in groups]), rows, "right"))
                    part, groups = groups[: max(1, count)], groups[max(1, count) :]
                    dtypes = ["<f4" if name == "loss_weights" else "<i4" for name in columns]
                    yield dict(zip(columns, read_groups(raw, part, dtypes, capacity), strict=True))
                if groups is not None:
                    return
        # Without Arrow's threads, which all files would share, and which OMP_NUM_THREADS=1 makes one.
        for batch in file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False):
            yield {name: _ragged(batch.column(name), name, path) for name in columns}


def _refuse_unsound(piece: Piece, found: Mapping[str, Ragged], path: Place, capacity: int) -> None:
    """Raise where the boundaries are not those of the tokens: what is written would be wrong without a sign of it."""
    if piece.seq_lengths.min(initial=1) < 1 or piece.block_segments.min(initial=1) < 1:
        raise _unsound(path, "A segment or block is empty")
    offsets = block_offsets(piece)
    if np.diff(offsets).max(initial=0) > capacity:
        raise _unsound(path, f"A block has more than {capacity:,} tokens")
    for name, one in found.items():
        if name != "seq_lengths" and not np.array_equal(one.offsets, offsets):
            raise _unsound(path, f"The lengths of a block's segments do not sum to its {name}")


def _ragged(column: Any, name: str, path: Place) -> Ragged:
    values = column.flatten()
    if str(values.type) != ("float" if name == "loss_weights" else "int32") or column.null_count or values.null_count:
        raise _unsound(path, f"Its {name} are {column.type}, or some are null")
    offsets = column.offsets.to_numpy().astype(np.int64)
    return Ragged(np.asarray(values.to_numpy()), offsets - offsets[0])


def _unsound(path: Place, found: str) -> StoreError:
    return StoreError(f"{path} must hold the blocks that were packed.", f"{found}.", "Pack again, or restore the file.")


def has_weights(packed: Packed) -> bool:
    """Return whether the blocks hold loss weights. Cost: the footer of the first file."""
    import pyarrow.parquet as pq

    if not packed.manifest.shards:
        return False
    path = packed.path / packed.manifest.shards[0].name
    with store_errors(f"{path} cannot be read", damage="Restore the file, or pack again."):
        return "loss_weights" in pq.read_schema(random_access(path)).names


def ends_in_one_id(packed: Packed) -> bool:
    """Return whether all segments end in the same id, and hold it nowhere else: a reader may then find them by it.

    Cost: the tokens, decoded, up to the first that says no.
    """
    found: set[int] = set()

    def one(_: int, shard: Shard) -> None:
        for piece in pieces(packed, shard, ("input_ids", "seq_lengths")):
            if len(found) > 1:
                return
            last = piece.input_ids[first_tokens(piece) + piece.seq_lengths - 1]
            found.update(np.unique(last).tolist())
            if np.count_nonzero(piece.input_ids == last[0]) != last.size:
                found.update((-1, -2))

    each_shard(packed, one)
    return len(found) == 1


def first_tokens(piece: Piece) -> npt.NDArray[np.int64]:
    """Return int64 [segments], the index of each segment's first token."""
    return np.cumsum(piece.seq_lengths, dtype=np.int64) - piece.seq_lengths


def block_offsets(piece: Piece) -> npt.NDArray[np.int64]:
    """Return int64 [blocks + 1], the tokens of block b are ``[offsets[b]:offsets[b + 1]]``."""
    ends = np.concatenate([[0], np.cumsum(piece.seq_lengths, dtype=np.int64)])
    return np.asarray(ends[np.concatenate([[0], np.cumsum(piece.block_segments)])])


def rolled_mask(piece: Piece) -> npt.NDArray[np.bool_]:
    """Return bool [tokens], True where the *next* token of the same segment is a target; never at a segment's last token."""
    asked = np.zeros(piece.labels.size, bool)
    np.not_equal(piece.labels[1:], IGNORE, out=asked[:-1])
    asked[first_tokens(piece) + piece.seq_lengths - 1] = False
    return asked
