"""Packed: a packed data set, opened where it lies. Random access by block, nothing read before it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import ChangedError, ManifestError
from cloison.ledger import Ledger
from cloison.places import Place, Remote, place, sizes
from cloison.segments import Segments
from cloison.showing import repr_html
from cloison.spec import PackSpec
from cloison.store.files import file_sha256, store_errors
from cloison.store.groups import Groups
from cloison.store.manifest import Manifest, read_manifest
from cloison.store.records import misfit

__all__ = ["Packed", "open"]

_CACHED_GROUPS = 4


def open(path: str | os.PathLike[str] | Remote) -> Packed:
    """Return the packed data set at ``path``, a folder or a URL (``s3://bucket/packed``).

    Its files are there with the sizes that the manifest states; `Packed.verify` proves their content.

    Raises:
        ManifestError: no manifest, or a damaged one.
        ChangedError: a file is missing or has another size.

    Cost: the manifest, and one listing. A block of a data set that lies elsewhere than on disk is one request (and one a file).
    """
    folder = place(path)
    manifest = read_manifest(folder)
    with store_errors(f"{folder} cannot be read"):
        there = sizes(folder)
    held = sum(shard.num_blocks for shard in manifest.shards)
    if held != manifest.num_blocks:
        raise ManifestError(
            "a manifest counts the blocks of its files.",
            f"It says {manifest.num_blocks:,}, and its files have {held:,}.",
            "Pack again.",
        )
    for shard in manifest.shards:
        file = folder / shard.name
        size = there.get(shard.name, -1)
        if misfit(shard.name, "name"):
            raise ManifestError("a manifest names files in its folder.", f"It names {shard.name!r}.", "Pack again.")
        if size < 0:
            raise ChangedError(f"{file} must be there.", "It is missing.", "Pack again into an empty folder, or restore it.")
        if size != shard.size_bytes:
            raise ChangedError(
                f"{file} must have {shard.size_bytes:,} bytes.", f"It has {size:,}.", "Pack again, or restore the file."
            )
    return Packed(folder, manifest)


@dataclass(frozen=True, eq=False, repr=False)
class Packed:
    """A packed data set. ``len`` is its blocks, ``packed[b]`` a `Block`; iteration reads in order.

    Equal when the logical hashes are. It can be pickled: what travels is the path.
    """

    path: Place
    manifest: Manifest

    # ------------------------------------------------------------------ what it is

    _repr_html_ = repr_html

    @property
    def spec(self) -> PackSpec:
        """Every choice that shaped it."""
        return self.manifest.spec

    @property
    def ledger(self) -> Ledger:
        """The account of every sample and token of the sources."""
        return self.manifest.ledger

    @property
    def fingerprint(self) -> str:
        """Hash of the sources, tokenizer, spec, format and versions."""
        return self.manifest.fingerprint

    @property
    def capacity(self) -> int:
        """Tokens a block holds at most."""
        return self.manifest.spec.capacity

    def __len__(self) -> int:
        return self.manifest.num_blocks

    def __repr__(self) -> str:
        m = self.manifest
        return (
            f"Packed({str(self.path)!r}: {m.num_blocks:,} blocks of {m.spec.capacity:,}, {m.num_segments:,} segments, "
            f"{m.num_tokens:,} tokens, {m.utilization:.2%} full)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and self.manifest.logical_hash == other.manifest.logical_hash

    def __hash__(self) -> int:
        return hash(self.manifest.logical_hash)

    def __reduce__(self) -> tuple[Callable[[str], Packed], tuple[str]]:
        return open, (str(self.path),)

    # ------------------------------------------------------------------ reading

    @cached_property
    def _groups(self) -> Groups:
        return self.groups(_CACHED_GROUPS)

    def groups(self, kept: int) -> Groups:
        """Return a reader of its own that holds up to ``kept`` decoded row groups, for a loop over many of them at once."""
        return Groups(self.path, self.manifest, kept)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        """Return block ``index`` (or the blocks of a slice). Cost: one row group decoded; the last few stay in memory."""
        if isinstance(index, slice):
            return [self[b] for b in range(*index.indices(len(self)))]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"block {index} of a packed data set of {count} blocks")
        return self._groups.block(range(count)[index])

    def __iter__(self) -> Iterator[Block]:
        return (self[b] for b in range(len(self)))

    def segments(self) -> Segments:
        """Return the boundaries of all blocks, a row each. Cost: one column read, no tokens."""
        lengths, counts = self._groups.column("seq_lengths")
        return Segments(
            lengths.astype(np.int32, copy=False), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), self.capacity
        )

    def seq_lengths(self) -> npt.NDArray[np.int32]:
        """Return int32 [segments], the lengths of all segments, block after block."""
        return self.segments().seq_lengths

    def sample_ids(self) -> npt.NDArray[np.int64]:
        """Return int64 [segments], the source sample of each segment, block after block."""
        return self._groups.column("sample_ids")[0]

    def verify(self) -> None:
        """Return when every file has the content that the manifest states.

        Raises:
            ChangedError: a file has another sha256.
        """
        for shard in self.manifest.shards:
            found = file_sha256(self.path / shard.name)
            if found != shard.sha256:
                raise ChangedError(
                    f"{self.path / shard.name} must have the sha256 {shard.sha256[:16]}...",
                    f"It is {found[:16]}...: the file changed after packing.",
                    "Pack again into an empty folder, or restore the file.",
                )
