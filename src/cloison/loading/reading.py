"""Blocks by index from what a loader may be given: a packed data set, a token store with its plan, or a list.

A source has ``len``, ``source[b] -> Block``, ``fingerprint``, ``group`` (blocks that are decoded together),
``bucket_groups`` (how many groups are shuffled among themselves) and ``segments()``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.forms.joining import listed, segments_of
from cloison.packing.targets import choose, fill_targets
from cloison.segments import IGNORE, Segments
from cloison.store.packed import Packed

if TYPE_CHECKING:
    from cloison.packing.planned import Planned

__all__ = ["Blocks", "FromPlan", "PackedReader", "Source", "filler", "source_of"]

BUCKET_TOKENS = 1 << 23
"""Token positions that are shuffled among themselves, and that a reader of shuffled blocks keeps decoded (8 bytes each)."""


class Source(Protocol):
    """Blocks by index."""

    fingerprint: str
    group: int
    bucket_groups: int

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Block: ...
    def segments(self) -> Segments: ...
    def epoch(self, number: int) -> Source: ...


def filler() -> Block:
    """Return the block that a rank without data gets: one token, no target, sample id -1. Its weight in any loss is 0."""
    return Block(np.zeros(1, np.int32), np.full(1, IGNORE, np.int32), Segments.from_lengths([[1]]), np.full(1, -1, np.int64))


class PackedReader:
    """A packed data set with enough decoded row groups kept for a shuffled order; each is decoded about once an epoch."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.fingerprint = packed.fingerprint
        self.group = packed.manifest.blocks_per_group
        self.bucket_groups = max(1, BUCKET_TOKENS // (self.group * packed.capacity))
        # A bucket's groups are in use together; a few more, where a step lies across the edge of two.
        self._groups = packed.groups(self.bucket_groups + 8)
        self._segments: Segments | None = None

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Block:
        return self._groups.block(index)

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


class FromPlan:
    """Blocks gathered from a token store by its plan: new pairings each epoch, nothing packed on disk.

    Epoch 0 is what `cloison.pack` writes; every other epoch pairs the samples anew (`Plan.epoch`).

    Args:
        planned: a token store and its plan (`cloison.packing.planned.plan_tokens`).
        number: the epoch.
    """

    group = 1
    bucket_groups = 1

    def __init__(self, planned: Planned, number: int = 0) -> None:
        self.planned = planned
        self.number = number
        self.fingerprint = planned.tokens.spec.fingerprint(planned.tokens.key)
        self._epoch = planned.plan.epoch(number)
        self._segments: Segments | None = None

    def __len__(self) -> int:
        return len(self._epoch)

    def __getitem__(self, index: int) -> Block:
        spec, store = self.planned.tokens.spec, self.planned.tokens.store
        places, starts, lengths = self._epoch[index]
        ids = self.planned.sample_ids[places.astype(np.int64)]
        begins, sizes = starts.astype(np.int64), lengths.astype(np.int64)
        input_ids = store.gather_ids(ids, begins, sizes)
        chosen = choose(*store.gather_spans(ids), store.shapes(ids), spec.train_on)
        found = fill_targets(input_ids, begins, sizes, chosen, weighted=self.planned.weighted)
        segments = Segments.from_lengths([lengths], spec.capacity)
        return Block(input_ids, found.labels, segments, ids, starts, found.loss_weights)

    def segments(self) -> Segments:
        """Return the boundaries of all blocks of this epoch, a row each."""
        if self._segments is None:
            rows = [self._epoch[b][2] for b in range(len(self))]
            self._segments = Segments.from_lengths(rows, self.planned.tokens.spec.capacity)
        return self._segments

    def epoch(self, number: int) -> Source:
        """Return the same tokens in the pairings of epoch ``number``."""
        return self if number == self.number else FromPlan(self.planned, number)


class Blocks:
    """A list of blocks in memory."""

    group = 1
    bucket_groups = 1

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
    """Return the source of ``data``: a `Packed`, a `Planned`, a list of blocks, or a source already.

    Raises:
        InputError: anything else.
    """
    from cloison.packing.planned import Planned

    if isinstance(data, Packed):
        return PackedReader(data)
    if isinstance(data, Planned):
        return FromPlan(data)
    if isinstance(data, (list, tuple)):
        return Blocks(data)
    if all(hasattr(data, name) for name in ("fingerprint", "group", "segments", "epoch", "__getitem__")):
        found: Source = data
        return found
    raise InputError(
        "a loader reads a packed data set, a planned token store, or a list of blocks.",
        f"It was given a {type(data).__name__}.",
        "Pass cloison.open(path), or blocks of cloison.pack_samples.",
    )
