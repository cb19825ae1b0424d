"""mixed: as tight as may be while as mixed as a random draw.

Tight plans put like with like. How much is one number, the share of the variance of log length that lies between blocks, beside
what a random assignment gives (see `composition`). A plan of few blocks is dealt again, a few blocks at a time (`remix`), and
none is lost. For many, where that is slow, and where full blocks allow no other share, the linear program has it as one more
row (`mixing`), for which it may give up to 0.17 % of the blocks; the nearer of the two is kept. Samples of a length are dealt
to its places at random, and blocks are shuffled.

Where a look-ahead is tight and as near to random (heavy tails), it is taken; it may also be far on the other side, long always
with short.

What it gives up: up to 0.19 % of the blocks against the best known; and plans of fewer than 530 blocks, which can give none,
may stay further from random where few samples fill a block. Cost: that of `optimal`, and 1 to 3 seconds whatever the number
of samples. Figures for each distribution: `benchmarks/planning_quality.py`.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.planning.bounds import lower_bound
from cloison.planning.items import Items
from cloison.planning.look_ahead import look_ahead_blocks
from cloison.planning.mixing import mixed_relaxation
from cloison.planning.optimal import optimal_patterns
from cloison.planning.patterns import Patterns, fill
from cloison.planning.program import program_of, rounded
from cloison.planning.regroup import as_patterns
from cloison.planning.remix import MOST, remixed

__all__ = ["AHEAD", "mixed_blocks", "variance_excess"]

NEAR = 0.001
"""A look-ahead whose blocks exceed the best known by at most this share is taken."""

NEARBY = 0.05
"""How far from the random one the variance share may be before blocks are given for it."""

MOST_GIVEN = 0.0019
"""Share of the blocks that may be given for the variance share, rounding included."""

_VIEW = 1 << 18  # blocks of a look-ahead that are looked at

AHEAD = 8192
"""Samples that its look-ahead sees at least."""


def mixed_blocks(
    items: Items, seed: int, shuffled: bool, ahead: int, max_segments: int | None, time_limit: float | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], Patterns | None, int, str]:
    """Return (offsets int64 [blocks + 1], item ids [placed], patterns or None, bound, the argument for it)."""
    bound, name = lower_bound(items.counts, items.units, max_segments)
    offsets, ids = look_ahead_blocks(items, seed, shuffled, max(ahead, AHEAD), max_segments)
    blocks = offsets.size - 1
    near = abs(_excess_of(items, offsets[: _VIEW + 1], ids)) <= NEARBY
    if near and blocks <= bound * (1 + NEAR):
        return offsets, ids, None, bound, name
    until = None if time_limit is None else perf_counter() + time_limit
    best, bound, name = optimal_patterns(items.counts, items.units, max_segments, time_limit)
    if near and blocks <= best.num_blocks * (1 + NEAR):
        return offsets, ids, None, bound, name
    if blocks < best.num_blocks and blocks <= MOST:
        best = as_patterns(np.split(items.classes_of(ids), offsets[1:-1]))
    if until is not None and perf_counter() > until:
        return *fill(best, items, seed, shuffled), best, bound, name
    patterns = remixed(best, items.units, max_segments, seed)
    most = int(best.num_blocks * (1 + MOST_GIVEN))
    if abs(variance_excess(patterns)) > NEARBY and most > best.num_blocks and (until is None or perf_counter() < until):
        program = program_of(items.counts, items.units, max_segments, until)
        relaxed = mixed_relaxation(program, until)
        given = rounded(program, relaxed, None, until)
        given = remixed(given, items.units, max_segments, seed)
        if given.num_blocks <= most and abs(variance_excess(given)) < abs(variance_excess(patterns)):
            patterns = given
    if patterns.num_blocks > blocks * (1 + MOST_GIVEN):
        return offsets, ids, None, bound, name
    return *fill(patterns, items, seed, shuffled), patterns, bound, name


def variance_excess(patterns: Patterns) -> float:
    """Return the share of the variance of log length that lies between blocks, less its value at random."""
    logs = np.log(patterns.classes)
    times = np.repeat(patterns.counts, np.diff(patterns.offsets)) * patterns.repeats
    blocks, segments = patterns.num_blocks, int(times.sum())
    logs -= float(times @ logs) / segments
    total = float(times @ logs**2)
    sums = np.add.reduceat(patterns.repeats * logs, patterns.offsets[:-1])
    between = float(patterns.counts @ (sums**2 / patterns.segments()))
    return between / total - (blocks - 1) / (segments - 1) if total > 1e-9 * segments else 0.0


def _excess_of(items: Items, offsets: npt.NDArray[np.int64], ids: npt.NDArray[Any]) -> float:
    """Return the same of the blocks of a look-ahead."""
    classes = items.classes_of(ids[: offsets[-1]])
    blocks = Patterns(np.ones(offsets.size - 1, np.int64), offsets, classes, np.ones_like(classes))
    return variance_excess(blocks) if classes.size else 0.0
