"""optimal: the fewest blocks that are found, with a certificate; ``auto`` goes beyond best-fit only from a wide gap.

Each step is taken where the one before has not met the bound:

1. `best_fit`, and the blocks of one or two samples that are exactly full (some best plan has them all: exchange them in);
2. `exact_fill`, with some slacks, and `regroup`: heavy tails and blocks of four samples or more mostly end here, at once;
3. the linear program (`program`), whose bound is the certificate, rounded by `diving`; and `regroup` once more.

The best plan of all is kept, so it is never worse than `best_fit`; `plan` also compares it with a look-ahead where no proof was
found. On samples up to 5,000 of many distributions, and on the published histograms, plans meet their bound: they are proven
optimal. Where lengths are too many to be exact in the program, they are rounded up to a grid: 0.02 to 0.08 % above the bound
on lengths of a fifth to half of the capacity (very short ones do not come here: best-fit is at its bound), and up to 1 %
where ``max_segments`` bind on a heavy tail.

Cost: 1 ms to 15 s, independent of the number of samples. Without a time limit, work is bounded by counts of rounds and of
simplex iterations, and the result is the same on every machine; with one, what was best when it ended is returned, and that
depends on the machine's speed. What it gives up: like `best_fit`, it says nothing of mixing.
"""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np
import numpy.typing as npt

from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import lower_bound
from cloison.planning.exact_fill import exact_fill_patterns, fill_work, joined
from cloison.planning.patterns import NO_PATTERNS, Patterns
from cloison.planning.program import program_of, rounded
from cloison.planning.regroup import regrouped

__all__ = ["optimal_patterns"]

_FILL_WORK = 1_000_000_000
_FAR = 1.02
_ROUNDS = 200


def optimal_patterns(
    counts: npt.NDArray[np.int64],
    units: int,
    max_segments: int | None = None,
    time_limit: float | None = None,
    tolerance: float = 0.0,
) -> tuple[Patterns, int, str]:
    """Return (the best patterns found, the strongest bound, the argument for it) for ``counts`` int64 [units + 1].

    Args:
        time_limit: seconds; 0 gives best-fit. With a limit the result depends on the machine's speed.
        tolerance: best-fit is taken at once where its gap is at most this (``auto``: 0.001).

    Raises:
        MissingDependencyError: scipy is not installed (the extra "optimal").
    """
    best = best_fit_patterns(counts, units, max_segments)
    bound, name = lower_bound(counts, units, max_segments)
    goal = math.floor(bound * (1 + tolerance))
    if best.num_blocks <= goal or time_limit == 0:
        return best, bound, name
    until = None if time_limit is None else perf_counter() + time_limit
    full, rest = _full_pairs(counts, units) if max_segments is None else (NO_PATTERNS, counts)
    if not rest.any():
        return full, full.num_blocks, "full_pairs"
    found, proven, argument = _rest_of(rest, units, max_segments, until, goal - full.num_blocks)
    if proven + full.num_blocks > bound:
        bound, name = proven + full.num_blocks, argument
    return min(best, joined(full, found), key=_blocks), bound, name


def _rest_of(
    counts: npt.NDArray[np.int64], units: int, max_segments: int | None, until: float | None, goal: int
) -> tuple[Patterns, int, str]:
    """Return (patterns, bound, argument): by filling and regrouping where that gives ``goal`` blocks, else by the program."""
    best = best_fit_patterns(counts, units, max_segments)
    bound, name = lower_bound(counts, units, max_segments)
    quick = fill_work(counts, units) < _FILL_WORK
    goal = max(goal, bound)
    if quick:
        spare = max(bound * units - int(counts @ np.arange(counts.size)), 0) // bound
        for slack in sorted({0, *(part * spare // 2 for part in (1, 2, 3, 4, 8, 16))}):
            found = exact_fill_patterns(counts, units, max_segments, slack=slack)
            best = min(best, found, key=_blocks)
            if best.num_blocks <= goal or found.num_blocks > bound * _FAR:
                break
        if best.num_blocks <= bound * _FAR:
            best = regrouped(best, units, max_segments, goal, _ROUNDS, until)
        if best.num_blocks <= goal:
            return best, bound, name
    program = program_of(counts, units, max_segments, until, best)
    best = rounded(program, program.relaxed, best, until)
    if quick:
        best = regrouped(best, units, max_segments, program.bound, 4 * _ROUNDS, until)
    return best, program.bound, program.bound_name


def _full_pairs(counts: npt.NDArray[np.int64], units: int) -> tuple[Patterns, npt.NDArray[np.int64]]:
    """Return (blocks of one or two samples that fill them, the counts without these): some best plan has them all."""
    rest = counts.copy()
    kinds: list[tuple[int, ...]] = []
    times = []
    half = np.flatnonzero(counts[-(-units // 2) :]) + -(-units // 2)
    for length in half[(half == units) | (counts[units - half] > 0)][::-1].tolist():
        other = units - length
        number = rest[length] if not other else rest[length] // 2 if other == length else min(rest[length], rest[other])
        if number:
            rest[length] -= number
            rest[other] -= number if other else 0
            kinds.append((length, other) if other else (length,))
            times.append(number)
    classes = np.array([length for kind in kinds for length in kind], np.int32)
    offsets = np.cumsum([0, *(len(kind) for kind in kinds)])
    return Patterns(np.array(times, np.int64), offsets.astype(np.int64), classes, np.ones(classes.size, np.int32)), rest


def _blocks(patterns: Patterns) -> int:
    return patterns.num_blocks
