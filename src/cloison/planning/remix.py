"""remix: the same blocks in number, in other company, until the variance between them is what a random deal would have.

A few blocks at a time are taken apart and dealt again: a sample at random, then of the rest, in random order, a set that fills
the block best with it. The new blocks stay where they are no more than before and the variance of log length between all blocks
comes nearer to that of a random assignment. Each try touches two to six blocks, so small and tight plans, whose rounding left
little choice, are mixed again without losing a block.

Source: local search of our own. Cost: some microseconds a try, `_TRIES` a block and `_MOST_TRIES` in all at most, fewer where
their pace says that they do not lead there; for plans of at most `MOST` blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cloison.planning.bijection import below, derive, mix, shuffle
from cloison.planning.patterns import Patterns
from cloison.planning.regroup import as_patterns, blocks_of
from cloison.planning.sums import add_length, has, last

__all__ = ["MOST", "remixed"]

MOST = 100_000
"""Blocks of the largest plan that is mixed again."""

SLACK = 0.02
"""How near to the random one the variance share is brought."""

_TRIES = 200
_MOST_TRIES = 1_000_000
_CHECKED, _HOPE = 4000, 8  # tries, after which so many times the pace must be enough for the rest of the way
_CELLS = 8192  # of wider blocks, rounded up, in which sums are looked for
_WIDER = 4  # segments that a block may have more than any had before
_ROWS = 48
_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def _deal(wide: Any, cells: int, limit: int, most: int, reach: Any, owner: Any) -> Any:
    """Write the block of each item of ``wide`` cells, in their order, to ``owner`` and return how many blocks that are, or -1.

    A block takes the first item left, then those of the next `_ROWS` that fill it best. More than ``most`` blocks, or more than
    ``limit`` segments in one, are refused.
    """
    n, blocks, left = wide.size, 0, wide.size
    owner[:n] = -1
    size = cells // 64 + 1
    rows = np.empty(_ROWS, np.int64)
    while left > 0:
        if blocks == most:
            return -1
        first = 0
        while owner[first] >= 0:
            first += 1
        owner[first] = blocks
        room = cells - wide[first]
        count = 0
        for i in range(first + 1, n):
            if owner[i] < 0 and wide[i] <= room and count < _ROWS:
                rows[count] = i
                count += 1
        reach[count, :size] = np.uint64(0)
        reach[count, 0] = _ONE
        for r in range(count - 1, -1, -1):
            reach[r, :size] = reach[r + 1, :size]
            add_length(reach[r + 1], reach[r], wide[rows[r]], size)
        want = last(reach[0], room)
        segments = 1
        for r in range(count):
            length = wide[rows[r]]
            if length <= want and has(reach[r + 1], want - length):
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
    table: Any, sizes: Any, logs: Any, widths: Any, cells: int, limit: int, wanted: float, near: float, tries: int, key: Any
) -> None:
    """Deal the blocks of ``table`` [blocks, width] again and again; ``sizes`` [blocks] items are in each row.

    ``widths`` [lengths] are the cells that an item of each length takes, of ``cells`` in a block.
    """
    blocks, width = table.shape
    reach = np.empty((_ROWS + 1, cells // 64 + 1), np.uint64)
    items, fresh = np.empty(6 * width, np.int64), np.empty((6, width), np.int64)
    wide = np.empty(6 * width, np.int64)
    owner, held = np.empty(6 * width, np.int64), np.empty(6, np.int64)
    sums, chosen = np.empty(6), np.empty(6, np.int64)
    between = 0.0
    for b in range(blocks):
        total = 0.0
        for i in range(sizes[b]):
            total += logs[table[b, i]]
        between += total * total / sizes[b]
    checked = abs(between - wanted)
    for turn in range(tries):
        away = abs(between - wanted)
        if away <= near:
            break
        if turn and turn % _CHECKED == 0:
            if _HOPE * (checked - away) * (tries - turn) < (away - near) * _CHECKED:
                break
            checked = away
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
        for i in range(size):
            wide[i] = widths[items[i]]
        found = _deal(wide[:size], cells, min(limit, width), most, reach, owner)
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
    room = max(len(blocks) * units - int(flat.sum(dtype=np.int64)), 1)
    cells = min(units, max(_CELLS, 2 * segments * units // room))  # rounding up takes a quarter of the room that there is
    widths = -(-np.arange(units + 1) * cells // units)
    tries = min(_TRIES * len(blocks), _MOST_TRIES)
    _search(table, sizes, logs, widths, cells, limit, wanted, SLACK * total, tries, derive(seed, 10))
    return as_patterns([row[:size] for row, size in zip(table, sizes, strict=True)])
