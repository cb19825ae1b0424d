"""Items: what there is to place, counted by length, after the overflow policy. Every policy starts from it.

An item is a sample, or a piece of one. Item i < samples is sample i (its first piece, when it was split); further pieces of
split samples follow. Lengths are counted in units of ``align`` tokens, rounded up; class c holds the items of c units, class 0
those that are placed nowhere (empty or dropped samples).

Nothing here copies the lengths: they may be a memory-mapped array of any integer type and are read in chunks, twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.ledger import Ledger
from cloison.planning.lengths import native

__all__ = ["Items", "cut", "rounded"]


@dataclass(frozen=True, eq=False)
class Items:
    """What there is to place.

    Attributes:
        lengths: int [samples], as the caller gave them (any integer type, perhaps a mapped file).
        capacity: tokens a block holds; ``units`` is the same in units of ``align``, rounded down.
        align: tokens in a unit.
        limit: longest piece in tokens.
        over: what a first piece longer than ``limit`` counts as: ``limit`` (truncated or split), or 0 (dropped).
        extra_samples, extra_starts, extra_lengths: further pieces of split samples: their sample, where in it they
            begin, tokens.
        ranges: (start, stop, counts) of consecutive ranges of samples, one a thread.
        counts: int64 [units + 1], items of each class; counts[0] is 0.
        tokens: real tokens of all items.
        ledger: what the overflow policy did.
        threads: how many threads the policies may use.
    """

    lengths: npt.NDArray[Any]
    capacity: int
    align: int
    limit: int
    over: int
    extra_samples: npt.NDArray[np.int64]
    extra_starts: npt.NDArray[np.int32]
    extra_lengths: npt.NDArray[np.int32]
    ranges: tuple[tuple[int, int, npt.NDArray[np.int64]], ...]
    counts: npt.NDArray[np.int64]
    tokens: int
    ledger: Ledger
    threads: int

    @property
    def units(self) -> int:
        """The capacity in units of ``align``."""
        return self.capacity // self.align

    @property
    def _cut_at(self) -> int | None:
        """The limit, where any sample is over it."""
        return self.limit if {"truncated", "dropped", "split"} & self.ledger.entries.keys() else None

    @property
    def samples(self) -> int:
        """How many lengths were given."""
        return int(self.lengths.size)

    @property
    def ids(self) -> int:
        """Items are numbered 0..ids-1 (those of class 0 included)."""
        return self.samples + int(self.extra_samples.size)

    @property
    def placed(self) -> int:
        """Items that go into blocks."""
        return int(self.counts.sum())

    @property
    def id_type(self) -> type[np.uint32] | type[np.int64]:
        """uint32 where every item's number fits."""
        return np.uint32 if self.ids <= 2**32 else np.int64

    def classes(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return int32 [stop - start], the classes of items start..stop-1; the range may reach into the further pieces."""
        parts = []
        if start < self.samples or start == stop:
            parts.append(cut(self.lengths[start : min(stop, self.samples)], self._cut_at, self.over))
        if stop > self.samples:
            parts.append(self.extra_lengths[max(start - self.samples, 0) : stop - self.samples])
        return rounded(parts[0] if len(parts) == 1 else np.concatenate(parts), self.align)

    def classes_read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the same for compiled code to read: the caller's own lengths, of any integer type, where they are classes."""
        if self.align == 1 and self._cut_at is None and stop <= self.samples:
            return native(self.lengths[start:stop])
        return self.classes(start, stop)

    def classes_of(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return int32 [ids], their classes."""
        return rounded(self.real_lengths(ids), self.align)

    def real_lengths(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return int32 [ids], the tokens of each item."""
        if not self.extra_samples.size:
            return cut(self.lengths[ids], self._cut_at, self.over)
        further = ids >= self.samples
        out = cut(self.lengths[np.where(further, 0, ids)], self._cut_at, self.over)
        out[further] = self.extra_lengths[ids[further].astype(np.int64) - self.samples]
        return out

    def places(self, ids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32] | None]:
        """Return the sample of each item (same dtype), and where in it the item begins (None: at 0, all of them)."""
        if not self.extra_samples.size:
            return ids, None
        further = np.flatnonzero(ids >= self.samples)
        extra = ids[further].astype(np.int64) - self.samples
        starts = np.zeros(ids.size, np.int32)
        starts[further] = self.extra_starts[extra]
        out = ids.copy()
        out[further] = self.extra_samples[extra]
        return out, starts

    def id_ranges(self) -> list[tuple[int, int]]:
        """Consecutive ranges of all item numbers, one a thread, the further pieces in the last."""
        ranges = [(start, stop) for start, stop, _ in self.ranges]
        return [*ranges[:-1], (ranges[-1][0], self.ids)]


def cut(lengths: npt.NDArray[Any], limit: int | None, over: int) -> npt.NDArray[np.int32]:
    """Return ``lengths`` as int32, an array of its own, with ``over`` for those above ``limit`` (None: there are none)."""
    if limit is None:
        return np.asarray(lengths).astype(np.int32)
    out = np.where(lengths > limit, over, lengths) if lengths.dtype.itemsize > 4 else lengths
    out = np.array(out, np.int32)
    if lengths.dtype.itemsize <= 4:
        out[lengths > limit] = over
    return out


def rounded(lengths: npt.NDArray[np.int32], align: int) -> npt.NDArray[np.int32]:
    if align == 1:
        return lengths
    return ((lengths.astype(np.int64) + align - 1) // align).astype(np.int32)
