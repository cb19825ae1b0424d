"""regroup: a plan on counts with fewer blocks, found by taking a few blocks apart and filling them again.

The emptiest block and some others, at random by key, are taken apart and filled anew by `exact_fill`; the new blocks stay where
they are fewer, or as many with their free room less evenly spread. So room gathers in few blocks until one is not needed.
Where a plan is within a few blocks of its bound, this finds the rest more often than not.

Source: the ruin and recreate principle (Schrimpf et al. 2000), with the sum of squares as Falkenauer (1996) has it. Cost: about
a millisecond a round, whatever the number of samples: of many blocks, the `_VIEW` emptiest and as many others take part. What
it gives up: blocks of three samples with no room to spare are matched better by the program of `linear_program`.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import numpy.typing as npt

from cloison.planning.bijection import derive, permutation
from cloison.planning.exact_fill import exact_fill_patterns, joined, picked
from cloison.planning.patterns import Patterns

__all__ = ["as_patterns", "blocks_of", "regrouped"]

_VIEW = 2048
_SIZES = (4, 30, 9, 60, 18)


def regrouped(
    patterns: Patterns, units: int, max_segments: int | None, target: int, rounds: int, until: float | None = None
) -> Patterns:
    """Return ``patterns``, or others of the same items with fewer blocks, after ``rounds`` tries or with ``target`` blocks.

    Args:
        until: when to stop, by `perf_counter`; None: all rounds, so that the result is the same on every machine.
    """
    if patterns.num_blocks <= target or not rounds:
        return patterns
    kept, blocks = _taken_apart(patterns, units)
    rooms = np.array([units - int(block.sum()) for block in blocks], np.int64)
    aim = target - int(kept.sum())
    before = len(blocks)
    for turn in range(rounds):
        if len(blocks) <= aim or (until is not None and perf_counter() > until):
            break
        chosen = _chosen(rooms, turn)
        rest = np.bincount(np.concatenate([blocks[b] for b in chosen]), minlength=units + 1)
        spare = int(rooms[chosen].sum()) // chosen.size
        found = blocks_of(
            exact_fill_patterns(rest, units, max_segments, slack=(0, spare, 0, 2 * spare, 0, spare // 2)[turn % 6])
        )
        free = np.array([units - int(block.sum()) for block in found], np.int64)
        if len(found) > chosen.size or (len(found) == chosen.size and _spread(free) < _spread(rooms[chosen])):
            continue
        for place, b in enumerate(chosen[: len(found)]):
            blocks[b], rooms[b] = found[place], free[place]
        for b in np.sort(chosen[len(found) :])[::-1]:
            blocks[b], rooms[b] = blocks[-1], rooms[-1]
            blocks.pop()
            rooms = rooms[:-1]
    if len(blocks) == before:
        return patterns
    stay = np.flatnonzero(kept)
    return joined(_several(patterns, stay, kept[stay]), as_patterns(blocks))


def _spread(rooms: npt.NDArray[np.int64]) -> float:
    return float((rooms.astype(np.float64) ** 2).sum())


def _chosen(rooms: npt.NDArray[np.int64], turn: int) -> npt.NDArray[np.int64]:
    """Return the emptiest block and some others, those with room more often."""
    size = _SIZES[turn % len(_SIZES)]
    loose = np.flatnonzero(rooms)
    parts = [np.array([rooms.argmax()])]
    for among, number, name in ((loose, size, 0), (np.arange(rooms.size), size // 2, 1)):
        parts.append(among[permutation(among.size, derive(turn, 6, name), stop=min(number, among.size)).astype(np.int64)])
    return np.unique(np.concatenate(parts))


def blocks_of(patterns: Patterns) -> list[npt.NDArray[np.int32]]:
    """Return the lengths of each block."""
    out = []
    for p, times in enumerate(patterns.counts.tolist()):
        entries = slice(int(patterns.offsets[p]), int(patterns.offsets[p + 1]))
        out += [np.repeat(patterns.classes[entries], patterns.repeats[entries])] * times
    return out


def _taken_apart(patterns: Patterns, units: int) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.int32]]]:
    """Return (how many blocks of each pattern stay as they are, the lengths of each of the others)."""
    taken = np.zeros_like(patterns.counts)
    emptiest = np.argsort(patterns.units(), kind="stable")
    for order, room in ((emptiest, _VIEW), (permutation(emptiest.size, derive(0, 8)).astype(np.int64), _VIEW)):
        left = (patterns.counts - taken)[order]
        before = np.cumsum(left) - left
        taken[order] += np.clip(room - before, 0, left)
    which = np.flatnonzero(taken)
    return patterns.counts - taken, blocks_of(_several(patterns, which, taken[which]))


def _several(patterns: Patterns, which: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Patterns:
    part = picked(patterns, which)
    return Patterns(counts, part.offsets, part.classes, part.repeats)


def as_patterns(blocks: list[npt.NDArray[np.int32]]) -> Patterns:
    """Return the patterns of ``blocks`` (the lengths of each, int32), those alike as one."""
    times: dict[bytes, int] = {}
    for block in blocks:
        name = np.sort(block)[::-1].tobytes()
        times[name] = times.get(name, 0) + 1
    kinds = [np.frombuffer(name, np.int32) for name in times]
    runs = [np.flatnonzero(np.diff(kind, prepend=kind[0] + 1)) for kind in kinds]
    repeats = [np.diff(run, append=kind.size) for kind, run in zip(kinds, runs, strict=True)]
    return Patterns(
        np.array(list(times.values()), np.int64),
        np.cumsum([0, *(run.size for run in runs)]).astype(np.int64),
        np.concatenate([np.zeros(0, np.int32), *(kind[run] for kind, run in zip(kinds, runs, strict=True))]),
        np.concatenate([np.zeros(0, np.int32), *(number.astype(np.int32) for number in repeats)]),
    )
