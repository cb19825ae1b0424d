"""program: the linear program of a histogram on its grid, what it proves, and plans rounded from it.

Lengths are exact where there are few enough; else they are rounded up (see `grid`), which costs 0.02 to 0.08 % on lengths of a
fifth to half of the capacity. With ``max_segments`` the knapsack has a layer a segment, so rows are fewer (0.1 to 0.6 % on
heavy tails), and the program begins with blocks of a look-ahead too: best-fit closes blocks of its last, short samples half
empty. What the program proves is proven of the real lengths, whatever the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import require
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import lower_bound
from cloison.planning.diving import as_columns, dived
from cloison.planning.exact_fill import exact_fill_patterns, fill_work
from cloison.planning.grid import Grid, expanded, gathered
from cloison.planning.intake import read_items
from cloison.planning.linear_program import Relaxation, distinct, interpolated_bound, relax
from cloison.planning.look_ahead import look_ahead_blocks
from cloison.planning.patterns import Patterns
from cloison.planning.regroup import as_patterns

__all__ = ["CELLS", "Program", "mingled", "program_of", "rounded"]

CELLS = 2048
"""Distinct lengths, and about the capacity, up to which the program has a row for each."""

_EXACT_WORK = 1 << 23
_CELLS, _ROWS = 8192, 1000  # of a grid
_LAYERED_ROWS, _LAYERED_WORK = (800, 400), 300_000_000  # the second where blocks are wide
_FILL_WORK = 62_500_000
_MINGLED, _AHEAD = 1 << 16, 8192
_DIVES = (0.6, 0.9)


@dataclass(frozen=True, eq=False)
class Program:
    """A solved linear program.

    Attributes:
        grid: its rows, and the lengths that each stands for.
        max_segments: segments a block holds at most.
        start: CSC matrix [rows, patterns], the blocks that it began with.
        relaxed: its answer.
        bound, bound_name: proven lower bound on blocks of the real lengths, and the argument for it.
    """

    grid: Grid
    max_segments: int | None
    start: Any
    relaxed: Relaxation
    bound: int
    bound_name: str


def program_of(
    counts: npt.NDArray[np.int64], units: int, max_segments: int | None, until: float | None, best: Patterns | None = None
) -> Program:
    """Return the Program of ``counts`` int64 [units + 1], solved as far as ``until`` allows, or till it proves ``best``."""
    require("scipy", "optimal")
    bound, name = lower_bound(counts, units, max_segments)
    grid = _grid(counts, units, max_segments)
    histogram = grid.histogram()
    ways = [make(histogram, grid.cells, max_segments) for make in (best_fit_patterns, exact_fill_patterns)]
    start = distinct([as_columns(way, grid.lengths, grid.cells) for way in ways])
    if max_segments is not None:
        start = distinct([start, mingled(grid, max_segments)])
    enough = best.num_blocks if best is not None and grid.exact else np.inf
    relaxed = relax(grid.lengths, grid.counts, grid.cells, start, max_segments, until, enough)
    if grid.exact:
        proven = relaxed.bound
    elif max_segments is None:
        prices = np.interp(grid.present, np.r_[0, grid.lengths * (units / grid.cells)], np.r_[0, relaxed.prices])
        proven = interpolated_bound(grid.present, grid.numbers, units, prices.astype(np.int64))
    elif grid.least[0]:  # a program of lengths that are rounded down allows whatever is possible, so what it proves holds
        begun = (relaxed.columns, max_segments, until, np.inf, relaxed.prices, bound)
        proven = relax(grid.least, grid.counts, grid.cells, *begun).bound
    else:
        proven = 0
    if proven > bound:
        bound, name = proven, "linear_program"
    return Program(grid, max_segments, start, relaxed, bound, name)


def _grid(counts: npt.NDArray[np.int64], units: int, max_segments: int | None) -> Grid:
    present = int(np.count_nonzero(counts))
    if max_segments is None:
        work = _EXACT_WORK if counts.sum() < 4 * present else _EXACT_WORK // 2
        exact = present <= CELLS and present * units < work
        return gathered(counts, units, units, CELLS) if exact else gathered(counts, units, _CELLS, _ROWS)
    cells, rows = min(units, _CELLS), min(present, _LAYERED_ROWS[units > CELLS])
    while cells * rows * min(max_segments, cells) > _LAYERED_WORK and cells > CELLS // 4:
        cells //= 2
    return gathered(counts, units, cells, rows)


def mingled(grid: Grid, max_segments: int | None) -> Any:
    """Return a CSC matrix [rows, patterns]: blocks of a look-ahead over at least one item of each row, `_MINGLED` or so."""
    total = int(grid.counts.sum())
    some = -(-grid.counts * min(_MINGLED, total) // total)
    items = read_items(np.repeat(grid.lengths, some), grid.cells, threads=1)
    offsets, ids = look_ahead_blocks(items, 0, True, _AHEAD, max_segments)
    blocks = as_patterns(np.split(items.classes_of(ids), offsets[1:-1]))
    return as_columns(blocks, grid.lengths, grid.cells)


def rounded(program: Program, relaxed: Relaxation, best: Patterns | None, until: float | None) -> Patterns:
    """Return the best of ``best`` and of the plans of whole blocks that lie near ``relaxed``."""
    grid, most = program.grid, program.max_segments
    goal = program.bound
    if relaxed is not program.relaxed or not grid.exact:  # no fewer are to be had near it
        goal = max(goal, math.ceil(relaxed.amounts.sum() - 1e-6))

    def complete(columns: Any, times: npt.NDArray[np.int64]) -> Patterns:
        begun, rest = expanded(grid, columns, times)
        ways = [best_fit_patterns(rest, grid.units, most, into=begun)]
        if fill_work(rest, grid.units) < _FILL_WORK:
            ways.append(exact_fill_patterns(rest, grid.units, most, into=begun))
        return min(ways, key=lambda way: way.num_blocks)

    for threshold in _DIVES:
        best = dived(relaxed, grid.lengths, grid.counts, grid.cells, most, threshold, complete, best, goal, until, grid.exact)
        if best.num_blocks <= goal or most is not None or (until is not None and perf_counter() > until):
            break
    assert best is not None
    return best
