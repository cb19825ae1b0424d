"""Megatron: indexed data sets, a ``.bin`` of token ids and an ``.idx`` that cuts it. Read from megatron-core 0.16 and
tested with it.

The index is b"MMIDIDX\\x00\\x00", uint64 1, uint8 type of the ids, uint64 sequences, uint64 documents + 1, int32 lengths
[sequences], int64 byte offsets [sequences], int64 document edges [documents + 1] (in sequences, from 0), int8 modes where
multimodal; all little-endian. It holds no targets and no blocks: GPTDataset joins and cuts documents itself, and resets
positions and attention behind every end-of-document id, wherever documents end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from cloison.errors import StoreError
from cloison.formats.flat import each_shard, pieces
from cloison.formats.token_pieces import RawArray, TokenPiece, cut
from cloison.places import Place
from cloison.store.files import replacing, store_errors
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = ["USAGE", "files", "read", "write"]

USAGE = (
    'GPTDatasetConfig(blend=(["{dest}/samples_text_document"], None), reset_position_ids=True, reset_attention_mask=True, '
    "eod_mask_loss=True, ...): a document is one sample, with every token a target; the reader tells samples apart by the "
    "tokenizer's end-of-document id, in which each must end"
)

_NAME = "samples_text_document"
_MAGIC = b"MMIDIDX\x00\x00"
_TYPES = MappingProxyType({1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"})
_INT32 = 4
_HEAD = len(_MAGIC) + 8 + 1 + 8 + 8


def write(packed: Packed, folder: Path, home: Place, pad_token_id: int) -> list[str]:
    """Write ``samples_text_document.bin`` and ``.idx``: one document for each segment, in the order of the blocks, int32."""
    tokens, index = f"{_NAME}.bin", f"{_NAME}.idx"
    sizes = [shard.num_tokens * 4 for shard in packed.manifest.shards]
    starts = [0, *accumulate(sizes)]
    with replacing(folder / tokens) as part:
        part.touch()

        def one(number: int, shard: Shard) -> npt.NDArray[np.int32]:
            lengths = []
            with part.open("r+b") as file:
                file.seek(starts[number])
                for piece in pieces(packed, shard, ("input_ids", "seq_lengths")):
                    file.write(piece.input_ids.astype("<i4", copy=False).data)
                    lengths.append(piece.seq_lengths)
                if file.tell() != starts[number + 1]:
                    raise StoreError(
                        f"{packed.path / shard.name} must hold {shard.num_tokens:,} tokens.", "It holds others.", "Restore it."
                    )
            return np.concatenate(lengths)

        lengths = np.concatenate(each_shard(packed, one))
    with replacing(folder / index) as part:
        part.write_bytes(_index(lengths))
    return [tokens, index]


def _index(lengths: npt.NDArray[np.int32]) -> bytes:
    """Return the index of documents of one sequence each, of these many tokens."""
    head = _MAGIC + struct.pack("<QBQQ", 1, _INT32, lengths.size, lengths.size + 1)
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
    return b"".join(
        (
            head,
            lengths.astype("<i4").tobytes(),
            pointers.astype("<i8").tobytes(),
            np.arange(lengths.size + 1, dtype="<i8").tobytes(),
        )
    )


def files(name: str) -> tuple[str, str]:
    """Return the names of the index and the tokens of a data set, named by its prefix or either file."""
    prefix = name[:-4] if name.endswith((".bin", ".idx")) else name
    return f"{prefix}.idx", f"{prefix}.bin"


def read(source: Path) -> Iterator[TokenPiece]:
    """Yield the documents of an indexed data set, named by its prefix or either file.

    Raises:
        StoreError: a file is missing or damaged, or its ids are no integers.
    """
    index, tokens = (source.with_name(name) for name in files(source.name))
    content = RawArray(index, np.dtype(np.uint8))
    head = content.read(0, min(content.size, _HEAD)).tobytes()
    if len(head) < _HEAD or not head.startswith(_MAGIC):
        raise StoreError(
            f"{index} must be a Megatron index.", "It does not begin like one.", "Name the prefix of .bin and .idx."
        )
    version, code, sequences, edges = struct.unpack("<QBQQ", head[len(_MAGIC) :])
    if version != 1 or code not in _TYPES:
        raise StoreError(
            f"{index} must be of version 1 with integer ids.", f"Its version is {version}, its type {code}.", "Convert it."
        )
    if content.size < _HEAD + 12 * sequences + 8 * edges:
        raise StoreError(
            f"{index} must hold {sequences:,} sequences.", f"It ends after {content.size:,} bytes.", "Copy it again."
        )
    longs = RawArray(index, np.dtype("<i8"))
    lengths = RawArray(index, np.dtype("<i4")).read(0, sequences, _HEAD).astype(np.int64)
    pointers = longs.read(0, sequences, _HEAD + 4 * sequences)
    documents = longs.read(0, edges, _HEAD + 12 * sequences)
    item = np.dtype(_TYPES[code]).itemsize
    expected = (np.cumsum(lengths) - lengths) * item
    if (lengths < 0).any() or not np.array_equal(pointers, expected):
        raise StoreError(f"{index} must lay sequences one after the other.", "Its offsets do not fit.", "Copy it again.")
    if edges and (documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any()):
        raise StoreError(f"{index} must cut all sequences into documents.", "Its edges do not fit.", "Copy it again.")
    total = int(lengths.sum())
    with store_errors(f"{tokens} cannot be read"):
        size = tokens.stat().st_size
        if size != total * item:
            raise StoreError(f"{tokens} must have {total * item:,} bytes.", f"It has {size:,}.", "Copy it again.")
    ids = RawArray(tokens, np.dtype(_TYPES[code]))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    yield from cut(ids, np.diff(ends[documents]) if edges else lengths)
