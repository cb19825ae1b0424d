"""Slow and obvious forms that the planning code is compared with."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np

from cloison import Plan


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
    """The rule of look_ahead, with lists and sets of sums: indices of each block."""
    places = [sum(lengths[:i]) for i in range(len(lengths))]
    waiting = [i for i, length in enumerate(lengths) if length]
    near, most = max(ahead // 10, 1) * capacity, max_segments or len(lengths)

    def seen() -> list[int]:
        return [i for i in waiting if i < waiting[0] + ahead and (i == waiting[0] or places[i] - places[waiting[0]] < near)]

    blocks = []
    while waiting:
        start, held = places[waiting[0]], [lengths[i] for i in seen()]
        mean, choice = sum(held) // len(held), 4 * sum(held) // len(held)
        patience = min(int(64 * mean * (mean / capacity)), 12 * capacity)
        block: list[int] = []
        room, in_order = capacity, True
        while waiting and room and len(block) < most:
            in_order = in_order and (not block or room - lengths[waiting[0]] >= choice)
            if in_order:
                found = [waiting[0]]
            else:
                distances = {i: places[i] - start for i in seen() if lengths[i] <= room}
                halvings = {i: capacity.bit_length() - lengths[i].bit_length() for i in distances}
                order = sorted(distances, key=lambda i: (distances[i] + patience * halvings[i], -halvings[i]))[:64]
                found = _filling(order, lengths, room, {i: (distances[i] + 8 * capacity) // 2**15 for i in order})
                if len(found) > most - len(block):
                    found = _filling(order[: most - len(block)], lengths, room, {})
            if not found:
                break
            block += found
            waiting = [i for i in waiting if i not in found]
            room -= sum(lengths[i] for i in found)
        blocks.append(sorted(block))
    return sorted(blocks, key=lambda block: sum(places[i] for i in block) / len(block))


def _filling(order: list[int], lengths: list[int], room: int, enough: dict[int, int]) -> list[int]:
    sums: dict[int, list[int]] = {0: []}
    for i in order:
        sums |= {
            s + lengths[i]: [*some, i] for s, some in sums.items() if s + lengths[i] <= room and s + lengths[i] not in sums
        }
        if room - max(sums) <= enough.get(i, -1):
            break
    return sums[max(sums)]


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
