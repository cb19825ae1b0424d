"""Items: what there is to place, counted by length, after the overflow policy. Every policy starts from it.

An item is a sample, or a piece of one. Item i < samples is sample i (its first piece, when it was split); further pieces of
split samples follow. Lengths are counted in units of ``align`` tokens, rounded up; class c holds the items of c units, class 0
those that are placed nowhere (empty or dropped samples).

Nothing here copies the lengths: they may be a memory-mapped array of any integer type and are read in chunks, twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import InputError, OverlongError
from cloison.ledger import Entry, Ledger

__all__ = ["MAX_CAPACITY", "Items", "length_array", "read_items", "spread"]

MAX_CAPACITY = 2**27
"""Units of ``align`` tokens that a block may have: policies hold arrays of that size."""

_CHUNK = 1 << 20
_STRETCH = 1 << 13
_INT32_MAX = 2**31 - 1
_THREAD_SAMPLES = 1 << 22


@njit(cache=True, nogil=True)
def _count(classes: Any, counts: Any) -> None:
    for i in range(classes.size):
        counts[np.uint64(classes[i])] += 1


@njit(cache=True, nogil=True)
def _count_plain(lengths: Any, limit: int, counts: Any) -> Any:
    """Count lengths up to the first stretch that has one below 1 or above ``limit``; return (how many these are, their sum)."""
    tokens = np.int64(0)
    for at in range(0, lengths.size, _STRETCH):
        part = lengths[at : at + _STRETCH]
        low, high, total = np.int64(limit), np.int64(1), np.int64(0)
        for i in range(part.size):  # apart from the counting, so that it is vectorised
            value = np.int64(part[i])
            low, high = min(low, value), max(high, value)
            total += value
        if low < 1 or high > limit:
            return at, tokens
        _count(part, counts)
        tokens += total
    return lengths.size, tokens


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
        if start < self.samples:
            parts.append(_cut(self.lengths[start : min(stop, self.samples)], self._cut_at, self.over))
        if stop > self.samples:
            parts.append(self.extra_lengths[max(start - self.samples, 0) : stop - self.samples])
        return _rounded(parts[0] if len(parts) == 1 else np.concatenate(parts), self.align)

    def classes_read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the same for compiled code to read: the caller's own lengths, of any integer type, where they are classes."""
        if self.align == 1 and self._cut_at is None and stop <= self.samples:
            return _native(self.lengths[start:stop])
        return self.classes(start, stop)

    def classes_of(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return int32 [ids], their classes."""
        return _rounded(self.real_lengths(ids), self.align)

    def real_lengths(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return int32 [ids], the tokens of each item."""
        if not self.extra_samples.size:
            return _cut(self.lengths[ids], self._cut_at, self.over)
        further = ids >= self.samples
        out = _cut(self.lengths[np.where(further, 0, ids)], self._cut_at, self.over)
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


def _native(lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``lengths`` as compiled code reads them: themselves, or a copy of a kind that it is compiled for."""
    kind = lengths.dtype.newbyteorder("=")
    return np.require(lengths, kind if kind.itemsize >= 4 or kind == np.uint16 else np.int32, ["C_CONTIGUOUS", "ALIGNED"])


def _cut(lengths: npt.NDArray[Any], limit: int | None, over: int) -> npt.NDArray[np.int32]:
    """Return ``lengths`` as int32, an array of its own, with ``over`` for those above ``limit`` (None: there are none)."""
    if limit is None:
        return np.asarray(lengths).astype(np.int32)
    out = np.where(lengths > limit, over, lengths) if lengths.dtype.itemsize > 4 else lengths
    out = np.array(out, np.int32)
    if lengths.dtype.itemsize <= 4:
        out[lengths > limit] = over
    return out


def _rounded(lengths: npt.NDArray[np.int32], align: int) -> npt.NDArray[np.int32]:
    if align == 1:
        return lengths
    return ((lengths.astype(np.int64) + align - 1) // align).astype(np.int32)


def spread(threads: int, work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return ``work(*job)`` for each job, in order, on up to ``threads`` threads."""
    listed = list(jobs)
    if threads == 1 or len(listed) < 2:
        return [work(*job) for job in listed]
    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(work, *job) for job in listed]]


def length_array(seq_lengths: Any) -> npt.NDArray[Any]:
    """Return ``seq_lengths`` as an integer array [samples]: itself where it is one, else gathered from its chunks.

    Takes an array, a sequence of integers, or an iterator of integers or of arrays (chunks). Chunks are kept as uint16 where
    all lengths fit, else int32.

    Raises:
        InputError: floats, booleans, text or ragged lists.
    """
    if isinstance(seq_lengths, np.ndarray):
        array = seq_lengths
    elif isinstance(seq_lengths, Sequence) or hasattr(seq_lengths, "__array__"):
        try:
            array = np.asarray(seq_lengths)
        except (ValueError, OverflowError) as error:
            raise InputError("seq_lengths are one flat list of integers.", f"{error}.", "Pass one length a sample.") from error
    elif isinstance(seq_lengths, Iterable):
        array = _gathered(iter(seq_lengths))
    else:
        raise InputError("seq_lengths are integers.", f"A {type(seq_lengths).__name__} came.", "Pass a list or an array.")
    if array.size == 0:
        array = np.zeros(0, np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(
            "seq_lengths are integers, one a sample.",
            f"They have dtype {array.dtype} and shape {list(array.shape)}.",
            "Pass whole tokens as one flat list or array (astype(int) where the numbers are whole).",
        )
    return array


def _gathered(values: Iterator[Any]) -> npt.NDArray[Any]:
    first = next(values, None)
    if first is None:
        return np.zeros(0, np.int32)
    values = chain([first], values)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        try:
            return np.fromiter(values, np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError("seq_lengths are integers.", f"{error}.", "Pass one whole number a sample.") from error
    chunks: list[npt.NDArray[Any]] = []
    narrow = True
    for value in values:
        chunk = length_array(
            value if isinstance(value, np.ndarray) else list(value) if isinstance(value, Iterable) else [value]
        )
        low, high = (int(chunk.min()), int(chunk.max())) if chunk.size else (0, 0)
        _in_range(low, high, chunk, sum(part.size for part in chunks))
        narrow = narrow and high < 2**16
        chunks.append(chunk.astype(np.uint16 if high < 2**16 else np.int32))
    out = np.empty(sum(chunk.size for chunk in chunks), np.uint16 if narrow else np.int32)
    at = 0
    for index, chunk in enumerate(chunks):
        out[at : at + chunk.size] = chunk
        at += chunk.size
        chunks[index] = chunk[:0]
    return out


def _in_range(low: int, high: int, chunk: npt.NDArray[Any], first: int) -> None:
    if low < 0:
        bad = np.flatnonzero(chunk < 0)
        raise InputError(
            "lengths are 0 or more tokens.",
            f"Sample {first + int(bad[0]):,} has {int(chunk[bad[0]]):,} ({bad.size:,} are negative among the first read).",
            "Pass real lengths.",
        )
    if high > _INT32_MAX:
        bad = np.flatnonzero(chunk > _INT32_MAX)
        raise InputError(
            "a length fits int32.",
            f"Sample {first + int(bad[0]):,} has {int(chunk[bad[0]]):,} tokens.",
            "Check the unit, or cut the sample into documents first.",
        )


def read_items(
    seq_lengths: Any,
    capacity: int,
    *,
    overflow: str = "raise",
    align: int = 1,
    max_sample_tokens: int | None = None,
    threads: int | None = None,
    whole: bool = False,
) -> Items:
    """Return the Items of ``seq_lengths``: checked, counted, and with the overflow policy applied.

    ``whole``: samples may be longer than a block, for a policy that cuts them itself; only ``max_sample_tokens`` limits them.

    Raises:
        InputError: negative, float or too long lengths; a capacity, align or max_sample_tokens out of range.
        OverlongError: ``overflow="raise"`` and some sample is longer than the limit, or "drop" and none is not.
    """
    align, capacity = _whole("align", align, 1), _whole("capacity", capacity, 1)
    units = capacity // align
    if units < 1:
        raise InputError(f"a block of {capacity:,} tokens holds a unit of align.", f"align is {align:,}.", "Raise capacity.")
    if units > MAX_CAPACITY:
        raise InputError(
            f"capacity is at most {MAX_CAPACITY:,} units of align.",
            f"It is {units:,}.",
            f"Pass align={-(-capacity // MAX_CAPACITY):,} or more, or lower it.",
        )
    limit = _INT32_MAX if whole else units * align
    if max_sample_tokens is not None and not (whole and overflow == "split"):
        limit = min(limit, _whole("max_sample_tokens", max_sample_tokens, 1))
    if overflow not in ("raise", "truncate", "drop", "split"):
        raise InputError("overflow is 'raise', 'truncate', 'drop' or 'split'.", f"It is {overflow!r}.", "Pick one.")
    over = 0 if overflow == "drop" else limit
    lengths = length_array(seq_lengths)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = allowed if threads is None else _whole("threads", threads, 1)
    size = lengths.size
    pieces = min(threads, max(size // _THREAD_SAMPLES, 1))
    edges = [size * i // pieces for i in range(pieces + 1)]
    read = spread(threads, lambda a, b: _read_range(lengths, a, b, units, align, limit, over), pairwise(edges))
    empty = np.concatenate([part[1] for part in read])
    long = np.concatenate([part[2] for part in read])
    tokens_in = sum(part[3] for part in read)
    ranges = tuple((a, b, part[0]) for a, b, part in zip(edges[:-1], edges[1:], read, strict=True))
    long_lengths = lengths[long].astype(np.int64)
    if long.size and overflow == "raise":
        _refuse(lengths, long, long_lengths, limit, capacity, max_sample_tokens, align)
    if long.size and overflow == "drop" and long.size + empty.size == size:
        raise OverlongError(
            f"a block holds samples of at most {limit:,} tokens.",
            f"No sample fits: all {long.size:,} that are not empty are longer (the shortest has {int(long_lengths.min()):,}).",
            'Raise capacity, or pass overflow="truncate" or "split".',
        )
    cut = overflow == "split"
    extra_samples, extra_starts, extra_lengths = _further_pieces(long if cut else long[:0], long_lengths, limit)
    counts = read[0][0].copy()
    for part in read[1:]:
        counts += part[0]
    counts[0] = 0
    _count(_rounded(extra_lengths, align), counts)
    entries = {"empty": Entry.of(empty)}
    if overflow == "truncate":
        entries["truncated"] = Entry.of(long, int((long_lengths - limit).sum()))
    elif overflow == "drop":
        entries["dropped"] = Entry.of(long, int(long_lengths.sum()))
    elif cut:
        entries |= {"split": Entry.of(long), "continuations": Entry.of(extra_samples)}
    kept = sum(part[4] for part in read) + int(extra_lengths.sum(dtype=np.int64))
    kept_samples = size - empty.size - (long.size if overflow == "drop" else 0)
    ledger = Ledger(int(size), tokens_in, int(kept_samples), kept, entries).verify()
    return Items(
        lengths, capacity, align, limit, over, extra_samples, extra_starts, extra_lengths, ranges, counts, kept, ledger, threads
    )


def _read_range(
    lengths: npt.NDArray[Any], start: int, stop: int, units: int, align: int, limit: int, over: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], int, int]:
    """Return (counts, empty samples, long samples, tokens, tokens after the cut) of a range."""
    counts = np.zeros(units + 1, np.int64)
    empty, long = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    tokens = kept = 0
    for at in range(start, stop, _CHUNK):
        chunk = _native(lengths[at : min(at + _CHUNK, stop)])
        if align == 1:
            plain, whole = _count_plain(chunk, min(limit, units), counts)
            tokens += whole
            kept += whole
            if plain == chunk.size:
                continue
            at, chunk = at + plain, chunk[plain:]
        low, high = int(chunk.min()), int(chunk.max())
        if low < 0 or high > _INT32_MAX:
            _in_range(low, high, chunk, at)
        whole = int(chunk.sum(dtype=np.int64))
        tokens += whole
        if high > limit:
            chunk_long = np.flatnonzero(chunk > limit)
            kept += whole - int((chunk[chunk_long].astype(np.int64) - over).sum())
            long.append(chunk_long + at)
        else:
            kept += whole
        if low == 0:
            empty.append(np.flatnonzero(chunk == 0) + at)
        classes = _rounded(_cut(chunk, limit, over) if high > limit else chunk.astype(np.int32), align)
        _count(np.minimum(classes, units) if high > limit or limit > units * align else classes, counts)
    return counts, np.concatenate(empty), np.concatenate(long), tokens, kept


def _further_pieces(
    long: npt.NDArray[np.int64], long_lengths: npt.NDArray[np.int64], limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    if not long.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32)
    further = (long_lengths - 1) // limit
    samples = np.repeat(long, further)
    first = np.repeat(np.cumsum(further) - further, further)
    starts = (np.arange(samples.size) - first + 1) * limit
    lengths = np.minimum(np.repeat(long_lengths, further) - starts, limit)
    return samples, starts.astype(np.int32), lengths.astype(np.int32)


def _refuse(
    lengths: npt.NDArray[Any],
    long: npt.NDArray[np.int64],
    long_lengths: npt.NDArray[np.int64],
    limit: int,
    capacity: int,
    max_sample_tokens: int | None,
    align: int,
) -> None:
    named = f"capacity is {capacity:,}"
    if max_sample_tokens is not None and limit == max_sample_tokens:
        named = f"max_sample_tokens is {limit:,}"
    elif align > 1:
        named += f" (align={align:,} leaves {limit:,})"
    which = f", samples {', '.join(f'{i:,}' for i in long[1:5])}{' ...' if long.size > 5 else ''} too" if long.size > 1 else ""
    raise OverlongError(
        f"every sample must fit a block: {named}.",
        f"Sample {int(long[0]):,} has {int(long_lengths[0]):,} tokens{which} "
        f"({long.size:,} of {lengths.size:,} samples are longer; the longest has {int(long_lengths.max()):,}).",
        'Pass overflow="split", "truncate" or "drop", or raise capacity.',
    )


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is an integer of at least {least}.", f"It is {value!r}.", f"Pass {name}={least} or more.")
    return int(value)
