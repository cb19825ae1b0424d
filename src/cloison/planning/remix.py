"""remix: the same blocks in number, in other company, until the variance between them is what a random deal would have.

A few blocks at a time are taken apart and dealt again: a sample at random, then of the rest, in random order, a set that fills
the block best with it. The new blocks stay where they are no more than before and the variance of log length between all blocks
comes nearer to that of a random assignment. Each try touches two to six blocks, so small and tight plans, whose rounding left
little choice, are mixed again without losing a block.

Source: local search of our own. Cost: some microseconds a try, a few tries a block where they lead on, `_TRIES` at most; for
plans of at most `MOST` blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cloison.planning.bijection import below, derive, mix, shuffle
from cloison.planning.patterns import Patterns
from cloison.planning.regroup import as_patterns, blocks_of

__all__ = ["MOST", "remixed"]

MOST = 1_000_000
"""Blocks of the largest plan that is mixed again."""

SLACK = 0.02
"""How near to the random one the variance share is brought."""

_TRIES = 200
_MOST_TRIES = 4_000_000
_CHECKED, _STALLED = 4, 0.95  # tries a block, after which the rest of the way must be shorter by so much
_WIDER = 4  # segments that a block may have more than any had before
_ROWS = 48
_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def _deal(items: Any, units: int, limit: int, most: int, reach: Any, owner: Any) -> Any:
    """Write the block of each of ``items``, in their order, to ``owner`` and return how many blocks that are, or -1.

    A block takes the first item left, then those of the next `_ROWS` that fill it best. More than ``most`` blocks, or more than
    ``limit`` segments in one, are refused.
    """
    n, blocks, left = items.size, 0, items.size
    owner[:n] = -1
    size = units // 64 + 1
    rows = np.empty(_ROWS, np.int64)
    while left > 0:
        if blocks == most:
            return -1
        first = 0
        while owner[first] >= 0:
            first += 1
        owner[first] = blocks
        room = units - items[first]
        count = 0
        for i in range(first + 1, n):
            if owner[i] < 0 and items[i] <= room and count < _ROWS:
                rows[count] = i
                count += 1
        reach[count, :size] = np.uint64(0)
        reach[count, 0] = _ONE
        for r in range(count - 1, -1, -1):
            length = items[rows[r]]
            w, s = length >> 6, np.uint64(length & 63)
            for j in range(size):
                word = reach[r + 1, j]
                if j >= w:
                    word |= reach[r + 1, j - w] << s
                    if s and j > w:
                        word |= reach[r + 1, j - w - 1] >> (np.uint64(64) - s)
                reach[r, j] = word
        want = room
        while not (reach[0, want >> 6] >> np.uint64(want & 63)) & _ONE:
            want -= 1
        segments = 1
        for r in range(count):
            length = items[rows[r]]
            if length <= want and (reach[r + 1, (want - length) >> 6] >> np.uint64((want - length) & 63)) & _ONE:
                owner[rows[r]] = blocks
                want -= length
                segments += 1
        if segments > limit:
            return -1
        left -= segments
        blocks += 1
    return blocks


@njit(cache=True, nogil=True)
def _search(
    table: Any, sizes: Any, logs: Any, units: int, limit: int, wanted: float, near: float, tries: int, key: Any
) -> None:
    """Deal the blocks of ``table`` [blocks, width] again and again; ``sizes`` [blocks] items are in each row."""
    blocks, width = table.shape
    reach = np.empty((_ROWS + 1, units // 64 + 1), np.uint64)
    items, fresh = np.empty(6 * width, np.int64), np.empty((6, width), np.int64)
    owner, held = np.empty(6 * width, np.int64), np.empty(6, np.int64)
    sums, chosen = np.empty(6), np.empty(6, np.int64)
    between = 0.0
    for b in range(blocks):
        total = 0.0
        for i in range(sizes[b]):
            total += logs[table[b, i]]
        between += total * total / sizes[b]
    checked = abs(between - wanted) * 2 + near
    for turn in range(tries):
        if abs(between - wanted) <= near:
            break
        if turn % (_CHECKED * blocks) == 0:
            if abs(between - wanted) > _STALLED * checked:
                break
            checked = abs(between - wanted)
        own = mix(key + np.uint64(turn))
        most = min(2 + np.int64(below(own, 0, 5)), blocks)
        size, before, draw = 0, 0.0, 1
        for k in range(most):
            again = True
            while again:
                chosen[k] = below(own, draw, blocks)
                draw += 1
                again = False
                for other in range(k):
                    again = again or chosen[other] == chosen[k]
            total = 0.0
            for i in range(sizes[chosen[k]]):
                items[size] = table[chosen[k], i]
                total += logs[items[size]]
                size += 1
            before += total * total / sizes[chosen[k]]
        shuffle(items[:size], own)
        found = _deal(items[:size], units, min(limit, width), most, reach, owner)
        if found != most:
            continue
        held[:] = 0
        sums[:] = 0.0
        for i in range(size):
            k = owner[i]
            fresh[k, held[k]] = items[i]
            held[k] += 1
            sums[k] += logs[items[i]]
        after = 0.0
        for k in range(most):
            after += sums[k] * sums[k] / held[k]
        if abs(between - before + after - wanted) > abs(between - wanted):
            continue
        between += after - before
        for k in range(most):
            sizes[chosen[k]] = held[k]
            for i in range(held[k]):
                table[chosen[k], i] = fresh[k, i]


def remixed(patterns: Patterns, units: int, max_segments: int | None, seed: int) -> Patterns:
    """Return as many blocks of the same items, their variance share within `SLACK` of the random one where that is found."""
    segments = int(patterns.counts @ patterns.segments())
    if not 1 < patterns.num_blocks <= MOST or segments <= patterns.num_blocks:
        return patterns
    blocks = blocks_of(patterns)
    sizes = np.array([block.size for block in blocks], np.int64)
    table = np.zeros((len(blocks), int(sizes.max()) + _WIDER), np.int32)
    for row, block in zip(table, blocks, strict=True):
        row[: block.size] = block
    logs = np.log(np.maximum(np.arange(units + 1), 1.0))
    flat = np.concatenate(blocks)
    logs -= float(logs[flat].mean())
    total = float((logs[flat] ** 2).sum())
    wanted = total * (len(blocks) - 1) / (segments - 1)
    limit = segments if max_segments is None else max_segments
    _search(table, sizes, logs, units, limit, wanted, SLACK * total, min(_TRIES * len(blocks), _MOST_TRIES), derive(seed, 10))
    return as_patterns([row[:size] for row, size in zip(table, sizes, strict=True)])
