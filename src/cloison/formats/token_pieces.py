"""TokenPiece: documents of token ids, flat, as every import yields them; and the Parquet files that pack reads them from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import StoreError
from cloison.segments import IGNORE
from cloison.store.files import replacing, store_errors

__all__ = ["RawArray", "TokenPiece", "cut", "write_samples"]

_PIECE_TOKENS = 1 << 20
_FILE_TOKENS = 1 << 24


@dataclass(frozen=True, eq=False)
class TokenPiece:
    """Some documents.

    Attributes:
        input_ids: int32 [tokens], one document after the other.
        lengths: int64 [documents]; 0 is a document without tokens.
        targets: bool [tokens], True where a token is a target (its own index); None where all are.
    """

    input_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    targets: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class RawArray:
    """Numbers in a file without a head, read a stretch at a time: of a mapped file, a disk that fails ends the process.

    Attributes:
        path: of the file.
        dtype: of a number.
    """

    path: Path
    dtype: np.dtype[Any]

    @cached_property
    def size(self) -> int:
        """Whole numbers in the file."""
        with store_errors(f"{self.path} cannot be read"):
            return self.path.stat().st_size // self.dtype.itemsize

    def read(self, start: int, stop: int, skip_bytes: int = 0) -> npt.NDArray[Any]:
        """Return the numbers [start, stop) behind the first ``skip_bytes`` bytes.

        Raises:
            StoreError: they cannot be read, or are not there.
        """
        out = np.empty(stop - start, self.dtype)
        left = out.view(np.uint8).data
        with store_errors(f"{self.path} cannot be read"), self.path.open("rb", buffering=0) as file:
            file.seek(skip_bytes + start * self.dtype.itemsize)
            while left and (count := file.readinto(left)):
                left = left[count:]
        if left:
            raise StoreError(f"{self.path} must be whole.", f"It lacks {len(left):,} bytes.", "Copy it again.")
        return out

    def pieces(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield all of it, some megabytes at a time, each with the place of its first number."""
        return ((at, self.read(at, min(self.size, at + _PIECE_TOKENS))) for at in range(0, self.size, _PIECE_TOKENS))


def cut(ids: RawArray, lengths: npt.NDArray[np.int64], targets: RawArray | None = None) -> Iterator[TokenPiece]:
    """Yield the documents of ``lengths`` that lie one after the other in ``ids``, in pieces of about a million tokens.

    Raises:
        StoreError: an id that int32 cannot hold, or that is negative; a file that cannot be read to its end.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    first = 0
    while first < lengths.size:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _PIECE_TOKENS, "right")) - 1)
        part = int(ends[first]), int(ends[last])
        tokens = ids.read(*part)
        if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) > 2**31 - 1):
            raise StoreError(
                "token ids are from 0 to 2,147,483,647.",
                f"Documents {first:,} to {last:,} hold ids from {int(tokens.min())} to {int(tokens.max())}.",
                "Check the type of the ids (--dtype).",
            )
        asked = None if targets is None else targets.read(*part)
        yield TokenPiece(tokens.astype(np.int32), lengths[first:last], asked)
        first = last


def write_samples(found: Iterator[TokenPiece], folder: Path) -> tuple[list[Path], int, int]:
    """Write documents as rows of ``input_ids`` (and ``labels``, where a piece says which tokens are targets).

    Returns the files, the documents and the tokens. All pieces must say, or none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files: list[Path] = []
    documents = tokens = 0
    queue = _then_none(found)
    piece = next(queue)
    while piece is not None:
        names = ["input_ids"] if piece.targets is None else ["input_ids", "labels"]
        layout = pa.schema([pa.field(name, pa.list_(pa.int32())) for name in names])
        path = folder / f"samples-{len(files):05d}.parquet"
        held = 0
        with (
            replacing(path) as part,
            pq.ParquetWriter(part, layout, compression="zstd", compression_level=1, use_dictionary=False) as writer,
        ):
            while piece is not None and held < _FILE_TOKENS:
                offsets = pa.array(np.concatenate([[0], np.cumsum(piece.lengths)]).astype(np.int32))
                arrays = [pa.ListArray.from_arrays(offsets, pa.array(piece.input_ids))]
                if piece.targets is not None:
                    labels = np.where(piece.targets, piece.input_ids, np.int32(IGNORE))
                    arrays.append(pa.ListArray.from_arrays(offsets, pa.array(labels)))
                writer.write_table(pa.Table.from_arrays(arrays, schema=layout))
                held += piece.input_ids.size
                documents += piece.lengths.size
                tokens += piece.input_ids.size
                piece = next(queue)
        files.append(path)
    return files, documents, tokens


def _then_none(found: Iterator[TokenPiece]) -> Iterator[TokenPiece | None]:
    yield from found
    yield None
