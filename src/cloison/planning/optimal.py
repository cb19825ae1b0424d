"""optimal: the fewest blocks that are found, with a certificate; ``auto`` goes beyond best-fit only from a wide gap.

Each step is taken where the one before has not met the bound:

1. `best_fit`, and the blocks of one or two samples that are exactly full (some best plan has them all: exchange them in);
2. `exact_fill`, with some slacks, and `regroup`: heavy tails and blocks of four samples or more mostly end here, at once;
3. the linear program of `linear_program`, whose bound is the certificate, rounded by `diving`; and `regroup` once more.

The best plan of all is kept, so it is never worse than `best_fit`; `plan` also compares it with a look-ahead where no proof was
found. On samples up to 5,000 of many distributions, and on the published histograms, plans meet their bound: they are proven
optimal. With ``max_segments`` that bind on a heavy tail, best-fit closes blocks of short samples half empty; the program then
begins with blocks of a look-ahead, and may stop some percent above the bound.

Lengths are exact up to `CELLS` units of capacity, and beyond for few samples. Else they are rounded up to a grid of that many
cells, which costs about 0.1 % on lengths of a fifth to half of the capacity (very short ones do not come here: best-fit is
at its bound).

Cost: 1 ms to 15 s, independent of the number of samples. Without a time limit, work is bounded by counts of rounds and of
simplex iterations, and the result is the same on every machine; with one, what was best when it ended is returned, and that
depends on the machine's speed. What it gives up: like `best_fit`, it says nothing of mixing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import require
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import lower_bound
from cloison.planning.diving import Mix, as_columns, dived
from cloison.planning.exact_fill import exact_fill_patterns, joined
from cloison.planning.linear_program import distinct, interpolated_bound, relax
from cloison.planning.look_ahead import look_ahead_sample
from cloison.planning.patterns import NO_PATTERNS, Patterns
from cloison.planning.regroup import as_patterns, regrouped

__all__ = ["CELLS", "optimal_patterns"]

CELLS = 2048
"""Capacity, in units or cells, up to which the linear program is built, whatever the samples."""

_EXACT_WORK = 1 << 23
_COARSE = 512
_LAYERED_WORK = 300_000_000
_BOUND_WORK = 10_000_000_000
_FILL_WORK = 1_000_000_000
_FAR = 1.02
_ROUNDS = 200
_MINGLED = 1 << 16
_DIVES = (0.6, 0.9)


@njit(cache=True, nogil=True)
def _expand(counts: Any, offsets: Any, cells: Any, repeats: Any, starts: Any, classes: Any, left: Any) -> Any:
    """Return the patterns of classes for patterns of cells, each cell giving its classes in their order.

    ``classes[starts[k]:starts[k + 1]]`` are the classes of cell k and ``left`` how many items of each there are.
    """
    out_counts = [np.int64(0) for _ in range(0)]
    out_offsets = [np.int64(0)]
    out_classes = [np.int32(0) for _ in range(0)]
    out_repeats = [np.int32(0) for _ in range(0)]
    at = starts.copy()
    for p in range(counts.size):
        todo = counts[p]
        while todo > 0:
            run = todo
            for e in range(offsets[p], offsets[p + 1]):
                k = cells[e]
                while left[at[k]] == 0:
                    at[k] += 1
                run = min(run, left[at[k]] // repeats[e])
            blocks = max(run, np.int64(1))
            for e in range(offsets[p], offsets[p + 1]):
                k = cells[e]
                need = blocks * repeats[e]
                while need > 0:
                    while left[at[k]] == 0:
                        at[k] += 1
                    got = min(need, left[at[k]])
                    left[at[k]] -= got
                    need -= got
                    out_classes.append(np.int32(classes[at[k]]))
                    out_repeats.append(np.int32(got // blocks))
            out_counts.append(blocks)
            out_offsets.append(np.int64(len(out_classes)))
            todo -= blocks
    return np.array(out_counts), np.array(out_offsets), np.array(out_classes), np.array(out_repeats)


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
    quick = _fill_work(counts, units) < _FILL_WORK
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
    best, bound, name = search(counts, units, max_segments, until, best)
    return (regrouped(best, units, max_segments, bound, 4 * _ROUNDS, until) if quick else best), bound, name


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


def _fill_work(counts: npt.NDArray[np.int64], units: int) -> int:
    """Return about how many steps `exact_fill_patterns` takes for ``counts``."""
    distinct, width = int(np.count_nonzero(counts)), units // 64 + 1
    return distinct * min(distinct * width, max(1 << 16, 48 * width))


def search(
    counts: npt.NDArray[np.int64],
    units: int,
    max_segments: int | None,
    until: float | None,
    best: Patterns | None,
    mixer: Callable[[npt.NDArray[np.int64], npt.NDArray[np.float64], Any], Mix] | None = None,
) -> tuple[Patterns, int, str]:
    """Return (patterns, bound, argument): the roundings of the linear program, or ``best`` where none is better.

    ``mixer`` gets the counts of the program's rows, the units that each stands for and some patterns as columns, and gives what
    exchanges the program's answer for another before it is rounded.
    """
    require("scipy", "optimal")
    bound, name = lower_bound(counts, units, max_segments)
    present = np.flatnonzero(counts)
    few = counts.sum() < 4 * present.size
    exact = present.size <= CELLS and present.size * units < (_EXACT_WORK if few else _EXACT_WORK // 2)
    cells = units if exact else min(units, CELLS)
    if max_segments is not None and cells * min(present.size, cells) * min(max_segments, cells) > _LAYERED_WORK:
        cells = min(units, _COARSE)
    cell_of = -(-present * cells // units)
    lengths, row_of = np.unique(cell_of, return_inverse=True)
    amounts = np.bincount(row_of, weights=counts[present]).astype(np.int64)
    cell_counts = np.zeros(cells + 1, np.int64)
    cell_counts[lengths] = amounts
    ways = [best_fit_patterns(cell_counts, cells, max_segments), exact_fill_patterns(cell_counts, cells, max_segments)]
    if max_segments is not None:  # best-fit closes blocks of its last, short samples half empty: long with short is far better
        ways.append(as_patterns(look_ahead_sample(cell_counts, cells, max_segments, _MINGLED)))
    start = distinct([as_columns(way, lengths, cells) for way in ways])
    enough = np.inf if best is None or cells < units else best.num_blocks
    relaxed = relax(lengths, amounts, cells, start, max_segments, until, enough)
    proven = relaxed.bound
    if cells < units:
        proven = 0
        if max_segments is None and present.size * units < _BOUND_WORK:
            proven = interpolated_bound(present, counts[present], units, lengths, relaxed.prices, cells)
    if proven > bound:
        bound, name = proven, "linear_program"

    mix = None if mixer is None else mixer(amounts, np.asarray(lengths * (units / cells), np.float64), start)
    if mix is not None:
        relaxed = mix(relaxed, amounts, relaxed.columns[:, :0], np.zeros(0, np.int64))

    def complete(columns: Any, taken: npt.NDArray[np.int64]) -> Patterns:
        used = np.flatnonzero(taken)
        part = columns[:, used]
        begun = Patterns(taken[used], part.indptr.astype(np.int64), part.indices.astype(np.int32), part.data.astype(np.int32))
        # Falling lengths within a cell: the rows are cells, and row_of rises with the length.
        falling = np.lexsort((-present, row_of))
        starts = np.concatenate([[0], np.cumsum(np.bincount(row_of))]).astype(np.int64)
        left = counts[present[falling]].copy()
        if used.size:
            real = _expand(begun.counts, begun.offsets, begun.classes, begun.repeats, starts, present[falling], left)
            begun = Patterns(*real)
        rest = np.zeros_like(counts)
        rest[present[falling]] = left
        ways = [best_fit_patterns(rest, units, max_segments, into=begun)]
        if _fill_work(rest, units) < _FILL_WORK // 16:
            ways.append(exact_fill_patterns(rest, units, max_segments, into=begun))
        return min(ways, key=_blocks)

    for threshold in _DIVES:
        fixed = (lengths, amounts, cells, max_segments, threshold, complete)
        best = dived(relaxed, *fixed, best, bound, until, cells == units and mix is None, mix)
        if best.num_blocks <= bound or (until is not None and perf_counter() > until):
            break
    assert best is not None
    return best, bound, name
