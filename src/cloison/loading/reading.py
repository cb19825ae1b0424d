"""Blocks by index from what a loader may be given: a packed data set, a token store with its plan, or a list.

A source has ``len``, ``source[b] -> Block``, ``fingerprint``, ``group`` (blocks that are decoded together),
``bucket_groups`` (how many groups are shuffled among themselves), ``file_groups`` (groups of a file; 0: no files) and
``segments()``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.forms.joining import listed, segments_of
from cloison.segments import IGNORE, Segments
from cloison.store.packed import Packed

__all__ = ["Blocks", "PackedReader", "Source", "filler", "source_of"]

BUCKET_TOKENS = 1 << 23
"""Token positions that are shuffled among themselves, and that a reader of shuffled blocks keeps decoded (8 bytes each)."""


class Source(Protocol):
    """Blocks by index."""

    fingerprint: str
    group: int
    bucket_groups: int
    file_groups: int

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Block: ...
    def segments(self) -> Segments: ...
    def epoch(self, number: int) -> Source: ...


def filler(like: Block) -> Block:
    """Return the block that a rank without data gets: one token, no target, sample id -1. Its weight in any loss is 0.

    Its token is the first one of ``like``, so that it is in the vocabulary, and it has the columns of ``like``: a batch with
    or without it has the same keys.
    """
    return Block(
        like.input_ids[:1],
        np.full(1, IGNORE, np.int32),
        Segments.from_lengths([[1]], like.segments.capacity),
        np.full(1, -1, np.int64),
        np.zeros(1, np.int32),
        None if like.loss_weights is None else np.zeros(1, np.float32),
        {name: column[:1] for name, column in like.token_columns.items()},
        {name: column[:1] for name, column in like.segment_columns.items()},
    )


class PackedReader:
    """A packed data set with enough decoded row groups kept for a shuffled order; each is decoded about once an epoch."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.fingerprint = packed.fingerprint
        self.group = packed.manifest.blocks_per_group
        self.bucket_groups = max(1, BUCKET_TOKENS // (self.group * packed.capacity))
        self.file_groups = packed.manifest.shards[0].num_blocks // self.group if packed.manifest.shards else 0
        # A bucket's groups are in use together; a few more, where a step lies across the edge of two.
        self._groups = packed.groups(self.bucket_groups + 8)
        self._segments: Segments | None = None

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Block:
        return self._groups.block(index)

    def fetch(self, indices: Iterable[int]) -> None:
        """Make blocks ready together where the data set is elsewhere than on disk: one wait in place of one for each."""
        self._groups.fetch(indices)

    def segments(self) -> Segments:
        """Return the boundaries of all blocks, a row each; read once."""
        if self._segments is None:
            self._segments = self.packed.segments()
        return self._segments

    def epoch(self, number: int) -> Source:
        """Return itself: packed blocks keep their pairings, and only their order changes."""
        return self

    def __reduce__(self) -> tuple[type[PackedReader], tuple[Packed]]:
        return PackedReader, (self.packed,)


class Blocks:
    """A list of blocks in memory."""

    group = 1
    bucket_groups = 1
    file_groups = 0

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = listed(blocks)
        digest = hashlib.sha256()
        for block in self.blocks:
            for array in (block.input_ids, block.labels, block.segments.seq_lengths):
                digest.update(len(array).to_bytes(8, "little") + np.ascontiguousarray(array).tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Block:
        return self.blocks[index]

    def segments(self) -> Segments:
        """Return the boundaries, a row each."""
        return segments_of(self.blocks)

    def epoch(self, number: int) -> Source:
        """Return itself."""
        return self


def source_of(data: Any) -> Source:
    """Return the source of ``data``: a `Packed`, a list of blocks, or a source already (`cloison.pair_anew` makes one).

    Raises:
        InputError: anything else.
    """
    if isinstance(data, Packed):
        return PackedReader(data)
    if isinstance(data, (list, tuple)):
        return Blocks(data)
    if all(
        hasattr(data, name)
        for name in ("fingerprint", "group", "bucket_groups", "file_groups", "segments", "epoch", "__getitem__")
    ):
        found: Source = data
        return found
    raise InputError(
        "a loader reads a packed data set, a token store that is paired anew, or a list of blocks.",
        f"It was given a {type(data).__name__}.",
        "Pass cloison.open(path), cloison.pair_anew(packed), or blocks of cloison.pack_samples.",
    )
