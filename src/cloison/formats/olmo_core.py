"""OLMo-core: raw token arrays with document metadata and label masks, and the packing it would otherwise do itself.

Read from olmo-core 3.0 and tested with it. ``NAME.npy`` is a raw array without a header (uint8 to uint64); ``NAME.csv.gz``
has a line ``start,end`` for each document; label masks are raw bool arrays of the same index, True where a token is a
target. The trainer makes labels by shifting, so the mask is False at the first token of every document.
``NumpyPackedFSLDataset`` keeps its packing in ``WORK_DIR/dataset-common`` under names that hash the path as given, the
file's size, the strategy and, with ``use_array_if_local=False`` (boundaries from the metadata and not from a scan for
end-of-text ids), the metadata: existing files are used as they are, which is how the blocks of a data set reach it
unchanged.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError, StoreError
from cloison.formats.flat import each_shard, first_tokens, pieces
from cloison.formats.token_pieces import RawArray, TokenPiece, cut
from cloison.places import Place
from cloison.segments import IGNORE
from cloison.store.files import file_sha256, replacing, store_errors
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = ["DTYPES", "USAGE", "USAGE_FAR", "files", "read", "write", "write_packing"]

USAGE = (
    'NumpyPackedFSLDatasetConfig(paths=["{dest}/tokens-*.npy"], label_mask_paths=["{dest}/label_mask-*.npy"], sequence_length='
    '{capacity}, dtype="uint32", use_array_if_local=False, generate_doc_lengths=True, work_dir="{dest}/work", ...) with '
    "the paths "
    "absolute; after moving the folder, cloison.formats.olmo_core.write_packing renames its packing"
)
USAGE_FAR = USAGE.partition("with the paths absolute")[0].replace('"{dest}/work"', "WORK") + (
    "with {dest}/work copied to WORK on the local disk, which its packing is read from"
)
DTYPES = ("uint8", "uint16", "uint32", "uint64")

_COMMON = "work/dataset-common"
_PACKING = ("document-indices", "instance-offsets", "documents-by-instance")


def write(packed: Packed, folder: Path, home: Place, pad_token_id: int) -> list[str]:
    """Write tokens, metadata and label mask for each of the data set's files, and the packing of each."""

    def one(number: int, shard: Shard) -> list[str]:
        tokens, mask, metadata = f"tokens-{number:05d}.npy", f"label_mask-{number:05d}.npy", f"tokens-{number:05d}.csv.gz"
        lengths, counts = [], []
        with ExitStack() as stack:
            ids, asked = (stack.enter_context(_filling(folder / name)) for name in (tokens, mask))
            for piece in pieces(packed, shard):
                ids.write(piece.input_ids.astype("<u4", copy=False).data)
                flags = piece.labels != IGNORE
                flags[first_tokens(piece)] = False
                asked.write(flags.data)
                lengths.append(piece.seq_lengths)
                counts.append(piece.block_segments)
        ends = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
        lines = "".join(map("%d,%d\n".__mod__, zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))).encode()
        metadata_bytes = _gzipped(lines)
        with _filling(folder / metadata) as file:
            file.write(metadata_bytes)
        sha256 = hashlib.sha256(metadata_bytes).hexdigest()
        packing = _Packing(home / tokens, int(ends[-1]) * 4, sha256, packed.capacity)
        return [tokens, mask, metadata, *_write_packing(folder, packing, ends, np.concatenate(counts))]

    return [name for names in each_shard(packed, one) for name in names]


def write_packing(tokens: Path, capacity: int, block_segments: npt.NDArray[np.int64] | None = None) -> list[Path]:
    """Write, or after a move rename, the packing of ``tokens`` into ``work/dataset-common`` beside it, for its absolute path.

    Args:
        tokens: a token file that `export` wrote, with its metadata beside it.
        capacity: tokens of an instance.
        block_segments: int [blocks], documents of each instance, in order; None: taken from the packing that lies there.
    """
    tokens = tokens.absolute()
    if block_segments is None:
        mapping = tokens.with_name(_mapping(tokens.name))
        with store_errors(f"{mapping} cannot be read"):
            block_segments = np.fromfile(mapping, "<u8").astype(np.int64)
    edges = np.array(list(_metadata(tokens)), np.int64).reshape(-1, 2)
    with store_errors(f"{tokens} cannot be read"):
        size = tokens.stat().st_size
    sha256 = file_sha256(tokens.with_name(tokens.name.replace(".npy", ".csv.gz")))
    ends = np.concatenate([[0], edges[:, 1]])
    names = _write_packing(tokens.parent, _Packing(tokens, size, sha256, capacity), ends, block_segments)
    return [tokens.parent / name for name in names]


@contextmanager
def _filling(path: Path) -> Iterator[BinaryIO]:
    with replacing(path) as part, part.open("wb") as file:
        yield file


def _gzipped(content: bytes) -> bytes:
    """Return the same bytes for the same content, whatever the time and the name."""
    out = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, out, mtime=0) as file:
        file.write(content)
    return out.getvalue()


@dataclass(frozen=True)
class _Packing:
    """What the name of a packing states: the token file where it will be read, its bytes, its metadata, and the capacity."""

    tokens: Place
    size: int
    metadata_sha256: str
    capacity: int

    def key(self) -> str:
        parts = (
            str(self.tokens),
            str(self.size),
            "truncate",
            "uint64",
            "use_array_if_local=False",
            f"metadata={self.tokens},sha256={self.metadata_sha256}",
        )
        return hashlib.sha256("".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _write_packing(
    folder: Path, packing: _Packing, ends: npt.NDArray[np.int64], block_segments: npt.NDArray[np.int64]
) -> list[str]:
    """Write the packing of documents that end at ``ends`` [documents + 1], from 0, and return its names in ``folder``."""
    with store_errors(f"{folder} cannot be written"):
        (folder / _COMMON).mkdir(parents=True, exist_ok=True)
    edges = np.stack([ends[:-1], ends[1:]], 1)
    blocks = np.concatenate([[0], np.cumsum(block_segments)])
    arrays = (edges, np.stack([blocks[:-1], blocks[1:]], 1), np.arange(edges.shape[0]))
    key = packing.key()
    names = [_mapping(packing.tokens.name), *(f"{_COMMON}/{name}-{packing.capacity}-{key}.npy" for name in _PACKING)]
    for name, array in zip(names, (block_segments, *arrays), strict=True):
        with replacing(folder / name) as part:
            array.astype("<u8").tofile(part)
    return names


def _mapping(tokens: str) -> str:
    return tokens.replace("tokens-", "blocks-")


# ---------------------------------------------------------------------- reading


def files(name: str) -> tuple[str, ...]:
    """Return the names of the files of a store of one: tokens, metadata, and what its mask may be called."""
    stem = name.removesuffix(".npy")
    number = "".join(stem.partition("-")[1:]) if "-" in stem else stem.removeprefix("token_ids")
    masks = [f"{kind}{number}.npy" for kind in ("label_mask", "labels_mask") if number]
    return name, name.replace(".npy", ".csv.gz"), *masks


def read(source: Path, dtype: str | None = None, eos_token_id: int | None = None) -> Iterator[TokenPiece]:
    """Yield the documents of raw token arrays: a file, or all ``.npy`` files of a folder that are no masks.

    Documents are those of the ``.csv.gz`` beside a file; without one, they end in ``eos_token_id``. A mask is a raw bool file
    whose name has ``label_mask`` or ``labels_mask`` in place of the part before the number.

    Raises:
        InputError: no dtype (a raw array does not state it), or neither metadata nor an end-of-text id.
        StoreError: a file that does not fit what is said of it.
    """
    if dtype not in DTYPES:
        raise InputError(
            "a raw token array does not state the type of its ids.",
            f"dtype is {dtype!r}.",
            f"Pass dtype= (--dtype), one of {', '.join(DTYPES)}: it is in the config that trained on it.",
        )
    found = [source] if source.is_file() else sorted(source.glob("*.npy"))
    found = [file for file in found if "mask" not in file.name and not file.name.startswith("blocks-")]
    if not found:
        raise StoreError(f"{source} must hold token arrays.", "There is no .npy file.", "Name the file or its folder.")
    for file in found:
        yield from _read_file(file, np.dtype(dtype).newbyteorder("<"), eos_token_id)


def _read_file(file: Path, dtype: np.dtype[np.generic], eos_token_id: int | None) -> Iterator[TokenPiece]:
    with store_errors(f"{file} cannot be read"):
        size = file.stat().st_size
        if size % dtype.itemsize:
            raise StoreError(
                f"{file} must hold whole ids of {dtype.itemsize} bytes.", f"It has {size:,}.", "Pass another dtype."
            )
    ids = RawArray(file, dtype)
    if ids.read(0, min(ids.size, 6)).tobytes()[:6] == b"\x93NUMPY":
        raise StoreError(f"{file} must be a raw array.", "It has a numpy header.", "Save it with tofile, or as Parquet rows.")
    if file.with_name(file.name.replace(".npy", ".csv.gz")).is_file():
        edges = np.array(list(_metadata(file)), np.int64).reshape(-1, 2)
        starts, ends = edges[:, 0], edges[:, 1]
        if edges.size and (starts[0] != 0 or (starts[1:] != ends[:-1]).any() or (ends < starts).any() or ends[-1] != ids.size):
            raise StoreError(
                f"the metadata of {file} must cut all of its {ids.size:,} tokens.",
                "It does not.",
                "Check dtype, or write it again.",
            )
        lengths = ends - starts
    elif eos_token_id is None:
        raise InputError(
            f"{file} has no metadata beside it (.csv.gz).",
            "Where its documents end is not known.",
            "Pass eos_token_id= (--eos), or write the metadata.",
        )
    else:
        found = [np.flatnonzero(piece == eos_token_id) + first + 1 for first, piece in ids.pieces()]
        ends = np.concatenate([np.zeros(0, np.int64), *found])
        ends = ends if ends.size and ends[-1] == ids.size else np.append(ends, ids.size)
        lengths = np.diff(ends, prepend=0)
        lengths = lengths[: lengths.size - int(lengths.size > 0 and lengths[-1] == 0)]
    mask = _mask(file)
    targets = None
    if mask is not None:
        targets = RawArray(mask, np.dtype(np.bool_))
        if targets.size != ids.size:
            raise StoreError(f"{mask} must have {ids.size:,} entries.", f"It has {targets.size:,}.", "Write it again.")
    yield from cut(ids, lengths.astype(np.int64), targets)


def _mask(file: Path) -> Path | None:
    return next((path for name in files(file.name)[2:] if (path := file.with_name(name)) != file and path.is_file()), None)


def _metadata(tokens: Path) -> Iterator[tuple[int, int]]:
    path = tokens.with_name(tokens.name.replace(".npy", ".csv.gz"))
    number = 0
    with store_errors(f"{path} cannot be read"), gzip.open(path, "rb") as raw, io.TextIOWrapper(raw, "utf-8") as lines:
        try:
            for line in lines:
                number += 1
                start, end = (int(part) for part in line.split(",")[:2])
                if not 0 <= start <= end < 1 << 62:
                    raise ValueError(f"{start} to {end}")
                yield start, end
        except (ValueError, EOFError, zlib.error) as error:
            raise StoreError(f"{path} must hold start,end.", f"Line {number} does not: {error}.", "Write it again.") from error
