"""intake: lengths to Items: checked, counted by length on all threads, and with the overflow policy applied."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import InputError, OverlongError
from cloison.ledger import Entry, Ledger
from cloison.planning.items import Items, cut, rounded
from cloison.planning.lengths import MAX_LENGTH, in_range, length_array, native
from cloison.planning.threads import spread

__all__ = ["MAX_CAPACITY", "read_items"]

MAX_CAPACITY = 2**27
"""Units of ``align`` tokens that a block may have: policies hold arrays of that size."""

_CHUNK = 1 << 20
_STRETCH = 1 << 13
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
    limit = MAX_LENGTH if whole else units * align
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
    splits = overflow == "split"
    extra_samples, extra_starts, extra_lengths = _further_pieces(long if splits else long[:0], long_lengths, limit)
    counts = read[0][0].copy()
    for part in read[1:]:
        counts += part[0]
    counts[0] = 0
    _count(rounded(extra_lengths, align), counts)
    entries = {"empty": Entry.of(empty)}
    if overflow == "truncate":
        entries["truncated"] = Entry.of(long, int((long_lengths - limit).sum()))
    elif overflow == "drop":
        entries["dropped"] = Entry.of(long, int(long_lengths.sum()))
    elif splits:
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
        chunk = native(lengths[at : min(at + _CHUNK, stop)])
        if align == 1:
            plain, whole = _count_plain(chunk, min(limit, units), counts)
            tokens += whole
            kept += whole
            if plain == chunk.size:
                continue
            at, chunk = at + plain, chunk[plain:]
        low, high = int(chunk.min()), int(chunk.max())
        if low < 0 or high > MAX_LENGTH:
            in_range(low, high, chunk, at)
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
        classes = rounded(cut(chunk, limit, over) if high > limit else chunk.astype(np.int32), align)
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
        samples=long[:5].tolist(),
    )


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is an integer of at least {least}.", f"It is {value!r}.", f"Pass {name}={least} or more.")
    return int(value)
