"""Slow and obvious forms that the planning code is compared with."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np

from cloison import Plan
from cloison.planning.look_ahead import PAIRS


def best_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """Item by item: the longest first, into the fullest block that still has room, else into a new one."""
    blocks: list[list[int]] = []
    for length in sorted((value for value in lengths if value), reverse=True):
        fitting = [block for block in blocks if sum(block) + length <= capacity]
        if fitting:
            max(fitting, key=sum).append(length)
        else:
            blocks.append([length])
    return blocks


def fewest_blocks(lengths: list[int], capacity: int, max_segments: int | None = None) -> int:
    """The exact optimum by dynamic programming over subsets (small instances only)."""
    items = [value for value in lengths if value]
    full = (1 << len(items)) - 1
    fits = [
        sum(items[i] for i in range(len(items)) if subset >> i & 1) <= capacity
        and (max_segments is None or subset.bit_count() <= max_segments)
        for subset in range(full + 1)
    ]

    @cache
    def best(left: int) -> int:
        if not left:
            return 0
        first = left & -left
        rest = left ^ first
        part, found = rest, len(items)
        while True:
            if fits[part | first]:
                found = min(found, 1 + best(rest ^ part))
            if not part:
                return found
            part = (part - 1) & rest

    return best(full)


def look_ahead_blocks(lengths: list[int], capacity: int, ahead: int, max_segments: int | None = None) -> list[list[int]]:
    """The rule of look_ahead, with lists: indices of each block."""
    waiting = [i for i, length in enumerate(lengths)]
    blocks = []
    while True:
        block: list[int] = []
        room, in_order = capacity, True
        while max_segments is None or len(block) < max_segments:
            while waiting and not lengths[waiting[0]]:
                waiting.pop(0)
            if not waiting:
                break
            oldest, enough = waiting[0], max(ahead // 8, 1) * capacity
            seen = [i for i in range(oldest, min(oldest + ahead, len(lengths))) if sum(lengths[oldest:i]) < enough]
            window = [i for i in waiting if i in seen and lengths[i]]
            if in_order and lengths[waiting[0]] <= room:
                chosen = waiting[0]
            else:
                in_order = False
                fitting = [i for i in window if lengths[i] <= room]
                if not fitting:
                    break
                chosen = max(fitting, key=lambda i: (lengths[i], -i))
                if lengths[chosen] < room and len(block) + 1 != max_segments:
                    chosen = _longer_of_best_pair(fitting, lengths, room)
            waiting.remove(chosen)
            block.append(chosen)
            room -= lengths[chosen]
        if not block:
            return blocks
        blocks.append(block)


def _longer_of_best_pair(fitting: list[int], lengths: list[int], room: int) -> int:
    best, chosen = 0, -1
    for length in sorted({lengths[i] for i in fitting}, reverse=True)[:PAIRS]:
        first = min(i for i in fitting if lengths[i] == length)
        others = [lengths[i] for i in fitting if i != first and lengths[i] <= min(length, room - length)]
        both = length + max(others, default=0)
        if both > best:
            best, chosen = both, first
    return chosen


def blocks_of(plan: Plan) -> list[list[int]]:
    """The lengths of each block."""
    return [lengths.tolist() for _, _, lengths in plan]


def loads(blocks: list[list[int]]) -> Counter[int]:
    """How full the blocks are: what does not depend on which of two equally full blocks is called the fullest."""
    return Counter(sum(block) for block in blocks)


def assert_whole(plan: Plan, lengths: list[int] | np.ndarray, *, lost: set[int] = frozenset()) -> None:
    """Every token of every sample (but ``lost`` ones) is in one block, none over capacity, segments or align ignored."""
    lengths = np.asarray(lengths, np.int64)
    assert plan.offsets[0] == 0 and plan.offsets[-1] == plan.sample_ids.size == plan.starts.size == plan.seq_lengths.size
    assert (np.diff(plan.offsets) > 0).all(), "no block is empty"
    assert (plan.seq_lengths > 0).all()
    units = -(-plan.seq_lengths.astype(np.int64) // plan.align) * plan.align
    sums = np.add.reduceat(units, plan.offsets[:-1]) if plan.num_blocks else np.zeros(0)
    assert (sums <= plan.capacity).all()
    if plan.max_segments is not None:
        assert (np.diff(plan.offsets) <= plan.max_segments).all()
    seen: dict[int, list[tuple[int, int]]] = {}
    for sample, start, length in zip(plan.sample_ids.tolist(), plan.starts.tolist(), plan.seq_lengths.tolist(), strict=True):
        seen.setdefault(sample, []).append((start, start + length))
    assert set(seen) == {i for i in range(lengths.size) if lengths[i] and i not in lost}
    for pieces in seen.values():
        pieces.sort()
        assert pieces[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(pieces)), "pieces follow one another"
    plan.ledger.verify()
    assert plan.ledger.samples_in == lengths.size and plan.ledger.tokens_in == lengths.sum()
    assert plan.ledger.tokens_kept == plan.seq_lengths.sum() == plan.num_tokens
    assert plan.num_blocks >= plan.lower_bound
