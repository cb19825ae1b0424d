"""MosaicML Streaming (MDS): rows of fixed width out, rows of tokens in. Read from mosaicml-streaming 0.13 and tested with
it.

A shard is uint32 n, uint32 offsets [n + 1] into the file, the JSON that describes the columns, then the samples: for each,
the uint32 sizes of its columns of variable size, then the columns' bytes in the order of their names. ``index.json`` lists
the shards.

Written are ``tokens``, ``labels`` (index of tokens, -100 where not a target) and ``sequence_id`` (0, 1, ... in a row, -1 at
padding), all ``ndarray:int32:CAPACITY``, and ``loss_weights`` (``ndarray:float32:CAPACITY``) where there are any.
llm-foundry's own text data set reads ``tokens`` alone and guesses the rest from end-of-text ids; a collator that takes the
three columns is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.checking.ragged import Ragged
from cloison.errors import CloisonError, InputError, StoreError
from cloison.formats.flat import TARGETED, Piece, each_shard, has_weights, pieces
from cloison.places import Place
from cloison.segments import IGNORE
from cloison.store.files import read_json, replacing, store_errors
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = ["INDEX", "USAGE", "USAGE_FAR", "column_names", "read", "write"]

USAGE = (
    'streaming.StreamingDataset(local="{dest}", batch_size=...): rows of tokens, labels, sequence_id [{capacity}]; give '
    "the model "
    "tokens as input_ids, labels as they are (it shifts), and boundaries from sequence_id"
)
USAGE_FAR = USAGE.replace('local="{dest}"', 'remote="{dest}", local=...')
INDEX = "index.json"

_SIZE_LIMIT = 1 << 26
_OFFSET_LIMIT = 1 << 32
_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def write(packed: Packed, folder: Path, home: Place, pad_token_id: int) -> list[str]:
    """Write shards of at most 64 MiB (or one row), as many for each of the data set's files as it takes, and their index.

    Raises:
        InputError: a row is so wide that the 32-bit offsets of a shard cannot hold it.
    """
    width = packed.capacity
    columns: dict[str, str] = {"labels": "<i4", "sequence_id": "<i4", "tokens": "<i4"}
    if has_weights(packed):
        columns["loss_weights"] = "<f4"
    names = sorted(columns)
    layout = np.dtype([(name, columns[name], (width,)) for name in names])
    config = {
        "column_encodings": [f"ndarray:{'float32' if columns[name] == '<f4' else 'int32'}:{width}" for name in names],
        "column_names": names,
        "column_sizes": [4 * width] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": _SIZE_LIMIT,
        "version": 2,
    }
    head = json.dumps(config, sort_keys=True).encode()
    if layout.itemsize + len(head) + 12 > _OFFSET_LIMIT:
        raise InputError(
            "a row of an MDS shard is smaller than 4 GiB.",
            f"One of {width:,} tokens has {layout.itemsize:,} bytes.",
            "Pack with a smaller capacity, or choose another format.",
        )
    most = max(1, (_SIZE_LIMIT - len(head) - 8) // (layout.itemsize + 4))
    asked = (*TARGETED, "loss_weights") if "loss_weights" in columns else TARGETED
    counts = [_even(shard.num_blocks, most) for shard in packed.manifest.shards]
    first = np.concatenate([[0], np.cumsum([len(one) for one in counts])])

    def one(index: int, shard: Shard) -> list[dict[str, Any]]:
        written = []
        rows = _Rows(pieces(packed, shard, asked), layout, pad_token_id)
        for number, count in enumerate(counts[index]):
            name = f"shard.{first[index] + number:05d}.mds"
            begin = 4 + 4 * (count + 1) + len(head)
            offsets = np.arange(count + 1, dtype=np.uint64) * layout.itemsize + begin
            with replacing(folder / name) as part, part.open("wb") as file:
                file.write(np.uint32(count).tobytes() + offsets.astype("<u4").tobytes() + head)
                for cells in rows.take(count):
                    file.write(cells.data)
            raw = {"basename": name, "bytes": int(offsets[-1]), "hashes": {}}
            written.append(config | {"raw_data": raw, "samples": count, "zip_data": None})
        rows.end()
        return written

    shards = [one for written in each_shard(packed, one) for one in written]
    with replacing(folder / INDEX) as part:
        part.write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True), encoding="utf-8")
    return [*(str(shard["raw_data"]["basename"]) for shard in shards), INDEX]


def _even(blocks: int, most: int) -> list[int]:
    """Return the rows of as few shards as hold at most ``most`` each, as even as can be."""
    parts = -(-blocks // most)
    return [blocks // parts + (number < blocks % parts) for number in range(parts)]


class _Rows:
    """Rows of a file, made of its pieces and given out in any number; the memory of rows is used again for later ones."""

    def __init__(self, found: Iterator[Piece], layout: np.dtype[Any], pad_token_id: int) -> None:
        self._found, self._layout, self._pad = found, layout, pad_token_id
        self._cells_there = self._held = np.empty(0, layout)

    def take(self, count: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the next ``count`` rows, in parts."""
        while count:
            if not self._held.size:
                self._held = self._cells(next(self._found))
            part, self._held = self._held[:count], self._held[count:]
            count -= part.size
            yield part

    def end(self) -> None:
        """Return when there are no more, else raise what the pieces say of it."""
        for _ in self._found:
            pass

    def _cells(self, piece: Piece) -> npt.NDArray[Any]:
        from cloison.formats.rows import lay, number

        if self._cells_there.size < piece.block_segments.size:
            self._cells_there = np.empty(piece.block_segments.size, self._layout)
        cells = self._cells_there[: piece.block_segments.size]
        lengths, counts = piece.seq_lengths, piece.block_segments
        lay(piece.input_ids, lengths, counts, self._pad, cells["tokens"])
        lay(piece.labels, lengths, counts, IGNORE, cells["labels"])
        number(lengths, counts, 0, -1, cells["sequence_id"])
        if piece.loss_weights is not None:
            lay(piece.loss_weights, lengths, counts, 0.0, cells["loss_weights"])
        return cells


# ---------------------------------------------------------------------- reading


def read(folder: Path, names: tuple[str, ...]) -> Iterator[dict[str, Ragged]]:
    """Yield the integer columns ``names`` of the data set at ``folder``, those that are there, a shard at a time.

    Columns are ``ndarray`` of any static or dynamic type and one axis, or ``bytes`` (int64, as llm-foundry wrote tokens).

    Raises:
        StoreError: a damaged or foreign index or shard, or a name that leaves the folder.
    """
    for shard in _shards(folder):
        yield _read_shard(folder, shard, names)


def column_names(folder: Path) -> list[str]:
    """Return the names of the columns that any shard has, sorted.

    Raises:
        StoreError: a damaged or foreign index.
    """
    found: set[str] = set()
    for shard in _shards(folder):
        names = shard.get("column_names") if isinstance(shard, dict) else None
        if not isinstance(names, list):
            raise StoreError(f"{folder} must hold MDS shards.", "One has no columns.", "Download it again.")
        found.update(map(str, names))
    return sorted(found)


def _shards(folder: Path) -> list[Any]:
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise StoreError(f"{folder} must be an MDS data set.", f"There is no {INDEX} that lists shards.", "Name its folder.")
    return list(index["shards"])


def _read_shard(folder: Path, shard: Any, names: tuple[str, ...]) -> dict[str, Ragged]:
    try:
        columns = [str(name) for name in shard["column_names"]]
        encodings = [str(encoding) for encoding in shard["column_encodings"]]
        sizes, count = list(shard["column_sizes"]), int(shard["samples"])
        content = _content(folder, shard)
        offsets = np.frombuffer(content, "<u4", count + 1, 4).astype(np.int64)
        if (
            int(np.frombuffer(content, "<u4", 1)[0]) != count
            or (np.diff(offsets) < 0).any()
            or int(offsets[-1]) != len(content)
        ):
            raise StoreError(
                "an MDS shard must hold what its index says.", "Its sample offsets do not fit.", "Download it again."
            )
        variable = [size is None for size in sizes]
        kept = [k for k, name in enumerate(columns) if name in names]
        if not any(variable):
            return _fixed(content, offsets, columns, encodings, sizes, kept)
        parts: dict[int, list[npt.NDArray[Any]]] = {k: [] for k in kept}
        for row in range(count):
            at = int(offsets[row])
            stated = np.frombuffer(content, "<u4", sum(variable), at)
            at += 4 * sum(variable)
            lengths = iter(stated.tolist())
            for k, size in enumerate(sizes):
                length = next(lengths) if size is None else int(size)
                if k in parts:
                    parts[k].append(_decoded(content[at : at + length], encodings[k]))
                at += length
            if at != int(offsets[row + 1]):
                raise StoreError("an MDS sample must fill its place.", f"Sample {row} does not.", "Download the shard again.")
    except CloisonError:
        raise
    except Exception as error:  # what numpy and the index's own values raise is of many kinds
        raise StoreError(f"{folder} must hold MDS shards.", f"One does not parse: {error!r}.", "Download it again.") from error
    return {columns[k]: _joined(rows) for k, rows in parts.items()}


def _fixed(
    content: bytes, offsets: npt.NDArray[np.int64], columns: list[str], encodings: list[str], sizes: list[Any], kept: list[int]
) -> dict[str, Ragged]:
    """Return the columns of a shard in which every sample has the same size: a view on its bytes, without a loop."""
    places = np.concatenate([[0], np.cumsum([int(size) for size in sizes])])
    if (np.diff(offsets) != places[-1]).any():
        raise StoreError("an MDS sample must fill its place.", "The samples have other sizes.", "Download the shard again.")
    cells = np.frombuffer(content, np.uint8, offset=int(offsets[0])).reshape(-1, int(places[-1]))
    out = {}
    for k in kept:
        values = _decoded(np.ascontiguousarray(cells[:, places[k] : places[k + 1]]).tobytes(), encodings[k])
        width = values.size // max(1, len(cells))
        out[columns[k]] = Ragged(values, np.arange(len(cells) + 1, dtype=np.int64) * width)
    return out


def _joined(rows: list[npt.NDArray[Any]]) -> Ragged:
    ends = np.concatenate([[0], np.cumsum([row.size for row in rows])]).astype(np.int64)
    return Ragged(np.concatenate(rows) if rows else np.zeros(0, np.int64), ends)


def _content(folder: Path, shard: Any) -> bytes:
    raw, packed = shard["raw_data"], shard.get("zip_data")
    for data in (raw, packed):
        if data is not None and Path(str(data["basename"])).name != data["basename"]:
            raise StoreError("a shard lies in its data set.", f"{data['basename']!r} leaves the folder.", "Mend the index.")
    plain = folder / raw["basename"]
    content: bytes
    if plain.is_file() or packed is None:
        with store_errors(f"{plain} cannot be read"):
            content = plain.read_bytes()
    else:
        content = _unpacked(folder / packed["basename"], str(shard["compression"]), int(raw["bytes"]))
    if len(content) != int(raw["bytes"]):
        raise StoreError(
            f"{plain} must have {int(raw['bytes']):,} bytes.", f"It has {len(content):,}.", "Download the shard again."
        )
    return content


def _unpacked(path: Path, compression: str, size: int) -> bytes:
    import pyarrow as pa

    codec = compression.split(":")[0]
    codec = {"gz": "gzip", "br": "brotli", "bz2": "bz2", "zstd": "zstd", "snappy": "snappy"}.get(codec, codec)
    if size > 1 << 32:
        raise StoreError("a shard is smaller than 4 GiB.", f"The index says {size:,} bytes.", "Mend the index.")
    found: bytes
    with store_errors(f"{path} cannot be read"):
        try:
            if codec in ("gzip", "zstd", "bz2"):  # a stream is read up to the stated size and no further
                with pa.input_stream(str(path), compression=codec) as stream:
                    found = stream.read(size + 1)
                return found
            found = bytes(pa.decompress(path.read_bytes(), size, codec, asbytes=True))
            return found
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(f"{path} must be {codec}.", f"It does not decompress: {error}.", "Download it again.") from error


def _decoded(content: bytes, encoding: str) -> npt.NDArray[Any]:
    kind, _, rest = encoding.partition(":")
    if kind == "bytes":
        return np.frombuffer(content, "<i8")
    dtype, _, shape = rest.partition(":")
    if kind != "ndarray" or dtype not in _DTYPES:
        raise ValueError(f"the encoding {encoding!r}")
    at = 0
    if not shape:  # one byte: axes times four, plus the power of two of the bytes of each size
        axes, power = divmod(content[0], 4)
        if axes != 1:
            raise ValueError(f"{axes} axes in {encoding!r}")
        at = 1 + (1 << power)
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<"), offset=at)
