"""diving: whole numbers of blocks from the fractions of the linear program.

Whole parts are fixed; where there are few, the largest fractions as one block each. What is left is a smaller packing problem,
and its program is solved again *with new patterns*, made for what is left and holding no more of a length than there is: this
is what makes the last blocks as full as the first. So on, until nothing is left. At each depth, the rest is also packed by
`best_fit` and `exact_fill` into the room that is left, and the best plan met is kept; a dive ends early where the bound of the
rest says that it cannot be beaten.

Source: diving with column generation, as in Vanderbeck's and Belov and Scheithauer's work on cutting stock (2000-2006). Cost:
some ten small programs; the work is bounded by simplex iterations where no time limit is given.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import require
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.exact_fill import exact_fill_patterns
from cloison.planning.linear_program import Relaxation, distinct, relax
from cloison.planning.patterns import Patterns

__all__ = ["as_columns", "dived"]

_DEPTH = 40
_WORK = 30_000_000  # simplex iterations x rows
_FEW = 0.1


@njit(cache=True, nogil=True)
def _take(order: Any, wanted: Any, pointers: Any, rows: Any, repeats: Any, rest: Any, taken: Any) -> Any:
    """Take each column of ``order``, at most as often as ``wanted`` and as ``rest`` allows; return how many blocks that is."""
    total = 0
    for o in range(order.size):
        p = order[o]
        most = wanted[o]
        for e in range(pointers[p], pointers[p + 1]):
            most = min(most, rest[rows[e]] // np.int64(repeats[e]))
        if most > 0:
            total += most
            taken[p] += most
            for e in range(pointers[p], pointers[p + 1]):
                rest[rows[e]] -= most * np.int64(repeats[e])
    return total


def as_columns(patterns: Patterns, lengths: npt.NDArray[np.int64], units: int) -> Any:
    """Return ``patterns`` as a CSC matrix [lengths, patterns]; their classes are among ``lengths``."""
    row_of = np.zeros(units + 1, np.int32)
    row_of[lengths] = np.arange(lengths.size)
    columns = require("scipy.sparse", "optimal").csc_matrix(
        (patterns.repeats.astype(np.float64), row_of[patterns.classes], patterns.offsets),
        shape=(lengths.size, patterns.counts.size),
    )
    columns.sum_duplicates()
    return columns


def dived(
    relaxed: Relaxation,
    lengths: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    units: int,
    max_segments: int | None,
    threshold: float,
    complete: Callable[[Any, npt.NDArray[np.int64]], Patterns],
    best: Patterns | None,
    bound: int,
    until: float | None,
    prune: bool,
) -> Patterns:
    """Return the best of ``best`` and the roundings of ``relaxed`` at each depth, fixing fractions over ``threshold``.

    Args:
        lengths, counts: int64 [rows], what the program covers.
        complete: what makes a plan of the columns taken so far, [rows, columns], and how often each is.
        bound: where so many blocks are reached, no more is looked for.
        prune: whether a plan has as many blocks as its columns and the program of the rest say (not so on a grid).
    """
    sparse = require("scipy.sparse", "optimal")
    rest = counts.copy()
    chosen = sparse.csc_matrix((lengths.size, 0))
    times = np.zeros(0, np.int64)
    prices = relaxed.prices.copy()
    spent = 0
    for _ in range(_DEPTH):
        columns, amounts = relaxed.columns, relaxed.amounts
        taken = np.zeros(columns.shape[1], np.int64)
        arrays = (columns.indptr, columns.indices, columns.data, rest, taken)
        whole = np.floor(amounts + 1e-9).astype(np.int64)
        order = np.argsort(-amounts, kind="stable")
        got = _take(order, whole[order], *arrays)
        if got < _FEW * amounts.sum():
            order = np.argsort(whole - amounts, kind="stable")
            order = order[: max(int(((amounts - whole) > threshold).sum()), 1)]
            got += _take(order, np.ones(order.size, np.int64), *arrays)
        used = np.flatnonzero(taken)
        chosen, times = sparse.hstack([chosen, columns[:, used]]).tocsc(), np.concatenate([times, taken[used]])
        found = complete(chosen, times)
        if best is None or found.num_blocks < best.num_blocks:
            best = found
        late = spent > _WORK if until is None else perf_counter() > until
        if best.num_blocks <= bound or not got or not rest.any() or late:
            break
        rows = np.flatnonzero(rest)
        left = np.zeros(units + 1, np.int64)
        left[lengths[rows]] = rest[rows]
        ways = [make(left, units, max_segments) for make in (best_fit_patterns, exact_fill_patterns)]
        pool = [columns[:, _fitting(columns, rest)][rows], *(as_columns(way, lengths[rows], units) for way in ways)]
        enough = best.num_blocks - int(times.sum()) if prune else np.inf
        relaxed = relax(lengths[rows], rest[rows], units, distinct(pool), max_segments, until, enough, prices[rows])
        spent += relaxed.iterations * rows.size
        if relaxed.bound >= enough:
            break
        prices[rows] = relaxed.prices
        full = relaxed.columns
        full = sparse.csc_matrix((full.data, rows[full.indices], full.indptr), shape=(lengths.size, full.shape[1]))
        relaxed = Relaxation(full, relaxed.amounts, relaxed.bound, prices, relaxed.iterations)
    assert best is not None  # each depth completes a plan
    return best


def _fitting(columns: Any, rest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of the columns of which ``rest`` still has what a block holds."""
    if not columns.shape[1]:
        return np.zeros(0, np.int64)
    lacking = (columns.data > rest[columns.indices]).astype(np.int64)
    return np.flatnonzero(np.add.reduceat(lacking, columns.indptr[:-1]) == 0)
