"""Patterns: a plan on counts (which lengths share a block, and how often), and its filling with samples.

Everything about which lengths go together is decided on the histogram; a pattern is one kind of block, repeated. What is left
are two passes over the samples: count, and scatter their ids. `fill` does the second, for every policy that works on counts:

1. ids sorted by class (a counting sort; each thread has a range of samples and cursors of its own, so the result is the same);
2. each class shuffled by key (classes are small enough for the cache, so this is nearly free);
3. blocks in pattern order take the next ids of their classes and are written to their shuffled place, many blocks of a pattern
   at a time and item by item: their items are rows of one stretch of ids, so no loop is shorter than the run of blocks.

Cost: 3-4 ns a sample on one thread while they fit the cache, 6-12 above; 2 x 4 bytes a sample (uint32 ids), 16 a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.bijection import DRAWN, derive, permutation, shuffle_with
from cloison.planning.items import Items
from cloison.planning.prefetching import prefetch_read, prefetch_write
from cloison.planning.threads import spread

__all__ = ["NO_PATTERNS", "Patterns", "entry_bases", "fill"]

_CHUNK = 1 << 20
_BATCH = 128
_LINE = np.uint64(16)  # ids in a cache line
_NONE, _ONE = np.uint64(0), np.uint64(1)


@dataclass(frozen=True, eq=False)
class Patterns:
    """Kinds of blocks and how often each is used.

    Attributes:
        counts: int64 [patterns], blocks of each, at least 1.
        offsets: int64 [patterns + 1], the entries of pattern p are [offsets[p]:offsets[p + 1]] of the next two.
        classes: int32 [entries], a length in units of align.
        repeats: int32 [entries], how many items of it a block takes.
    """

    counts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int32]
    repeats: npt.NDArray[np.int32]

    @property
    def num_blocks(self) -> int:
        """Blocks of all patterns."""
        return int(self.counts.sum())

    def segments(self) -> npt.NDArray[np.int64]:
        """Return int64 [patterns], the segments of a block of each."""
        return self._sums(self.repeats)

    def units(self) -> npt.NDArray[np.int64]:
        """Return int64 [patterns], the units that a block of each holds."""
        return self._sums(self.repeats.astype(np.int64) * self.classes)

    def _sums(self, entries: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        ends = np.zeros(entries.size + 1, np.int64)
        np.cumsum(entries, out=ends[1:])
        return np.asarray(ends[self.offsets[1:]] - ends[self.offsets[:-1]], np.int64)

    def used(self, units: int) -> npt.NDArray[np.int64]:
        """Return int64 [units + 1], how many items of each class the blocks take."""
        out = np.zeros(units + 1, np.int64)
        each = np.repeat(self.counts, np.diff(self.offsets)) * self.repeats
        np.add.at(out, self.classes, each)
        return out


NO_PATTERNS = Patterns(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))


@njit(cache=True, nogil=True)
def _scatter(classes: Any, first: int, cursors: Any, out: Any) -> None:
    for i in range(classes.size):
        c = np.uint64(classes[i])
        if c:
            at = np.uint64(cursors[c])
            out[at] = first + i
            at += _ONE
            cursors[c] = at
            if at % _LINE == _NONE:
                prefetch_write(out, at + _LINE)


@njit(cache=True, nogil=True)
def _shuffle_classes(ids: Any, starts: Any, first: int, last: int, key: Any) -> None:
    drawn = np.empty(DRAWN, np.uint32)
    for c in range(first, last):
        if starts[c + 1] - starts[c] > 1:
            shuffle_with(ids[starts[c] : starts[c + 1]], key + np.uint64(c) * np.uint64(0xD1342543DE82EF95), drawn)


@njit(cache=True, nogil=True)
def entry_bases(counts: Any, offsets: Any, classes: Any, repeats: Any, cursors: Any) -> Any:
    """Where, among the ids sorted by class, the first block of each pattern takes its first item of each entry."""
    bases = np.empty(classes.size, np.int64)
    for p in range(counts.size):
        for e in range(offsets[p], offsets[p + 1]):
            bases[e] = cursors[classes[e]]
            cursors[classes[e]] += counts[p] * repeats[e]
    return bases


@njit(cache=True, nogil=True)
def _put_sizes(firsts: Any, segments: Any, place: Any, first: int, last: int, out: Any) -> None:
    """Write the segments of blocks first..last-1 (in pattern order; firsts[p] is the first of pattern p) to their places."""
    p = np.searchsorted(firsts, first, side="right") - 1
    while first < last:
        until = min(firsts[p + 1], last)
        for block in range(first, until):
            out[place[block]] = segments[p]
        first = until
        p += 1


@njit(cache=True, nogil=True)
def _sum_up(sizes: Any, offsets: Any) -> None:
    """Turn the segments of each block into the place of its first, and write these to ``offsets``, with the end of all."""
    total = np.int64(0)
    for block in range(sizes.size):
        size = sizes[block]
        offsets[block] = sizes[block] = total
        total += size
    offsets[sizes.size] = total


@njit(cache=True, nogil=True)
def _write(
    firsts: Any, offsets: Any, repeats: Any, bases: Any, ids: Any, place: Any, at: Any, first: int, last: int, out: Any
) -> None:
    """Write blocks first..last-1 (in pattern order) to their places: block b begins at at[place[b]]."""
    p = np.searchsorted(firsts, first, side="right") - 1
    targets = np.empty(_BATCH, np.uint64)
    while first < last:
        if first == firsts[p + 1]:
            p += 1
        size = min(firsts[p + 1], last, first + _BATCH) - first
        for b in range(size):
            targets[b] = at[place[first + b]]
            prefetch_write(out, targets[b])
            prefetch_read(at, place[min(first + b + _BATCH, last - 1)])
        slot = np.uint64(0)
        for e in range(offsets[p], offsets[p + 1]):
            k = np.uint64(repeats[e])
            row = np.uint64(bases[e]) + np.uint64(first - firsts[p]) * k
            for _ in range(k):
                source = row
                for b in range(size):
                    out[targets[b] + slot] = ids[source]
                    source += k
                row += np.uint64(1)
                slot += np.uint64(1)
        first += size


def fill(patterns: Patterns, items: Items, seed: int, shuffled: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return (offsets int64 [blocks + 1], item ids [placed]) of the blocks that ``patterns`` describe.

    Shuffled: the samples of a class and the blocks are in keyed random order. Otherwise samples of a class are taken as they
    come, and blocks are ordered by their earliest sample.
    """
    starts = np.zeros(items.counts.size + 1, np.int64)
    np.cumsum(items.counts, out=starts[1:])
    ids = _sorted_by_class(items, starts)
    if shuffled:
        edges = np.searchsorted(starts, [ids.size * i // items.threads for i in range(items.threads + 1)])
        edges[0], edges[-1] = 0, items.counts.size
        key = derive(seed, 1)
        spread(
            items.threads,
            lambda a, b: _shuffle_classes(ids, starts, a, b, key),
            [(int(a), int(b)) for a, b in pairwise(edges) if a < b],
        )
    bases = entry_bases(patterns.counts, patterns.offsets, patterns.classes, patterns.repeats, starts[:-1].copy())
    blocks = patterns.num_blocks
    firsts = np.concatenate([[0], np.cumsum(patterns.counts)]).astype(np.int64)
    place = _places(blocks, derive(seed, 2), items.threads) if shuffled else np.arange(blocks, dtype=np.uint32)
    offsets, out = _written(patterns, items, ids, bases, firsts, place)
    if shuffled or not blocks:
        return offsets, out
    earliest = np.minimum.reduceat(items.places(out)[0], offsets[:-1])
    place[np.argsort(earliest, kind="stable")] = np.arange(blocks, dtype=np.uint32)
    return _written(patterns, items, ids, bases, firsts, place)


def _edges(size: int, threads: int) -> list[int]:
    pieces = threads if size > 1 << 16 else 1
    return [size * i // pieces for i in range(pieces + 1)]


def _places(blocks: int, key: np.uint64, threads: int) -> npt.NDArray[Any]:
    """Return permutation(blocks, key), made on all threads."""
    return np.concatenate(spread(threads, lambda a, b: permutation(blocks, key, a, b), pairwise(_edges(blocks, threads))))


def _written(
    patterns: Patterns,
    items: Items,
    ids: npt.NDArray[Any],
    bases: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
    place: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    blocks, segments = place.size, patterns.segments()
    placed = int(segments @ patterns.counts)
    edges = _edges(blocks, items.threads)
    at = np.empty(blocks, ids.dtype if placed <= 2**32 else np.int64)  # segments of each block, then where it begins
    spread(items.threads, lambda a, b: _put_sizes(firsts, segments, place, a, b, at), pairwise(edges))
    offsets = np.empty(blocks + 1, np.int64)
    _sum_up(at, offsets)
    out = np.empty(placed, ids.dtype)
    spread(
        items.threads,
        lambda a, b: _write(firsts, patterns.offsets, patterns.repeats, bases, ids, place, at, a, b, out),
        pairwise(edges),
    )
    return offsets, out


def _sorted_by_class(items: Items, starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the ids of all placed items, by class (class c from starts[c] on) and, within a class, in rising order."""
    out = np.empty(items.placed, items.id_type)
    cursors: npt.NDArray[Any] = starts[:-1].astype(np.uint32 if out.size <= 2**32 else np.int64)
    jobs = []
    for (start, stop), (_, _, counts) in zip(items.id_ranges(), items.ranges, strict=True):
        jobs.append((start, stop, cursors))
        if stop < items.ids:
            cursors = (cursors + counts).astype(cursors.dtype)

    def scatter(start: int, stop: int, own: npt.NDArray[np.int64]) -> None:
        for at in range(start, stop, _CHUNK):
            _scatter(items.classes_read(at, min(at + _CHUNK, stop)), at, own, out)

    spread(items.threads, scatter, jobs)
    return out
