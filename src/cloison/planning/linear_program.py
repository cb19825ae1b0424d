"""The linear program of packing: cover every length with patterns, with as few blocks as may be, by column generation.

One row a distinct length, one column a pattern. New columns come from the pricing problem, a knapsack over the capacity that
yields one pattern a length at once. Prices are drawn towards the best dual solution known (Wentges 1997), which begins as that
of the best closed-form bound: this is what makes it converge in seconds.

Certificate (Farley 1990): for any prices p of the lengths, no block holds more than z, the dearest pattern, so at least
sum(p * counts) / z blocks are needed. Prices are rounded to integers and z is found exactly in integers, so the bound is proven
and not a matter of floating point.

Source: Gilmore and Gomory, "A linear programming approach to the cutting-stock problem" (1961); HiGHS (Huangfu and Hall 2018),
as in scipy, solves the program. Cost: a few dozen solves; work is bounded by simplex iterations where no time limit is given,
so that the result is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import require
from cloison.planning.bijection import derive, permutation
from cloison.planning.patterns import Patterns

__all__ = ["Relaxation", "amounts_within", "interpolated_bound", "relax", "solve_rest"]

_SIMPLEX_BUDGET = 120_000
_ROUNDS = 150
_PRICE = 1 << 30
_OPENINGS = 8
_PULLS = (0.9, 0.6, 0.0)
_ENOUGH = 2e-6  # the tail of the convergence is long, and larger programs stop here
_SMALL = 30_000
_MOST, _KEPT = 10, 4  # columns a row: no more than the first, and down to the second


@dataclass(frozen=True, eq=False)
class Relaxation:
    """What column generation found.

    Attributes:
        columns: scipy CSC matrix [lengths, patterns], how many of each length a pattern holds.
        amounts: float64 [patterns], how often the program uses each.
        bound: proven lower bound on blocks.
        prices: int64 [lengths], the prices that prove it.
        iterations: solves of the program.
    """

    columns: Any
    amounts: npt.NDArray[np.float64]
    bound: int
    prices: npt.NDArray[np.int64]
    iterations: int


@njit(cache=True, nogil=True)
def _knapsack(lengths: Any, prices: Any, units: int, layers: int) -> Any:
    """Return (best, choice) [layers + 1, units + 1]: the dearest pattern within each room, and one length of it (-1: none).

    With ``layers`` 0 a pattern has any number of segments (one layer that refers to itself), else at most as many as the layer.
    """
    depth = max(layers, 1)
    best = np.zeros((depth + 1, units + 1), np.int64)
    choice = np.full((depth + 1, units + 1), -1, np.int32)
    for j in range(1, depth + 1):
        below = j if layers == 0 else j - 1
        for c in range(1, units + 1):
            value = best[j, c - 1]
            chosen = np.int32(-2)
            for i in range(lengths.size):
                if lengths[i] > c:
                    break
                found = best[below, c - lengths[i]] + prices[i]
                if found > value:
                    value = found
                    chosen = np.int32(i)
            best[j, c] = value
            choice[j, c] = chosen
    return best, choice


@njit(cache=True, nogil=True)
def _patterns_with(lengths: Any, units: int, layers: int, choice: Any) -> Any:
    """Return (rows, pointers): for each length the dearest pattern that holds it, as row numbers with repeats."""
    rows = np.empty(lengths.size * 8 + units, np.int32)
    pointers = np.zeros(lengths.size + 1, np.int32)
    at = 0
    for i in range(lengths.size):
        if at + units + 1 > rows.size:
            rows = np.concatenate((rows, np.empty(rows.size + units, np.int32)))
        rows[at] = i
        at += 1
        room = units - lengths[i]
        layer = layers - 1 if layers else 1
        while room > 0 and layer > 0:
            chosen = choice[layer, room]
            if chosen == -1:
                break
            if chosen == -2:
                room -= 1
                continue
            rows[at] = chosen
            at += 1
            room -= lengths[chosen]
            if layers:
                layer -= 1
        pointers[i + 1] = at
    return rows[:at].copy(), pointers


def relax(
    lengths: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    units: int,
    start: Patterns,
    max_segments: int | None = None,
    until: float | None = None,
    enough: float = np.inf,
) -> Relaxation:
    """Return the Relaxation for ``counts`` of rising distinct ``lengths`` (1..units), beginning with the columns of ``start``.

    Args:
        start: patterns whose classes are lengths; they must cover every length.
        until: when to stop, by `perf_counter`; None: a fixed amount of work.
        enough: a bound that leaves nothing to look for: so many blocks are known to do.
    """
    sparse = require("scipy.sparse", "optimal")
    layers = 0 if max_segments is None or max_segments * int(lengths[0]) >= units else max_segments
    row_of = np.zeros(units + 1, np.int32)
    row_of[lengths] = np.arange(lengths.size)
    shape = (lengths.size, start.counts.size)
    columns = sparse.csc_matrix((start.repeats.astype(np.float64), row_of[start.classes], start.offsets), shape=shape)
    columns.sum_duplicates()
    centre = _closed_form_prices(lengths, counts, units, max_segments)
    best_prices = (centre * _PRICE).astype(np.int64)
    bound = _farley(best_prices, counts, int(_knapsack(lengths, best_prices, units, layers)[0][-1, -1]))
    reached = float(centre @ counts)
    # Full patterns of many kinds to begin with: the closed-form prices leave most of them equally dear, and 1 % of noise picks.
    opening = []
    around = 0.5 * centre + 0.5 * lengths / units if layers else centre
    for turn in range(_OPENINGS):
        noise = permutation(1 << 16, derive(turn), stop=lengths.size) / (1 << 16)
        _, choice = _knapsack(lengths, (around * (1 + 0.01 * noise) * _PRICE).astype(np.int64), units, layers)
        opening.append(_gathered(lengths, units, layers, choice))
    columns = _distinct([columns, *opening])
    spent = rounds = 0
    while True:
        solved = _solve(columns, counts, until)
        if solved is None:
            amounts = np.zeros(columns.shape[1])
            break
        prices, amounts, iterations, value = solved
        spent += iterations
        rounds += 1
        fresh = []
        for pull in _PULLS:
            whole = np.maximum((pull * centre + (1 - pull) * prices) * _PRICE, 0).astype(np.int64)
            best, choice = _knapsack(lengths, whole, units, layers)
            dearest = int(best[-1, -1])
            if whole @ counts.astype(np.float64) > reached * dearest:
                bound = max(bound, _farley(whole, counts, dearest))
                best_prices, centre = whole, whole / float(dearest)
                reached = float(centre @ counts)
            new = _gathered(lengths, units, layers, choice)
            gains = np.flatnonzero(new.T @ prices > 1 + 1e-7)
            if gains.size:
                fresh.append(new[:, gains])
            if gains.size > lengths.size // 4:
                break
        late = rounds >= _ROUNDS or spent > _SIMPLEX_BUDGET if until is None else perf_counter() > until
        near_enough = value <= bound + 1e-6 or (spent > _SMALL and value <= bound * (1 + _ENOUGH))
        if not fresh or late or near_enough or bound >= enough:
            break
        if columns.shape[1] > _MOST * lengths.size:
            worth = np.argsort(1 - columns.T @ prices, kind="stable")[: _KEPT * lengths.size]
            columns = columns[:, np.sort(worth)]
        columns = _distinct([columns, *fresh])
    return Relaxation(columns, amounts, bound, best_prices, rounds)


def _distinct(parts: list[Any]) -> Any:
    """Return the columns of all ``parts`` side by side, each once (told apart by a keyed sum of what they hold)."""
    columns = require("scipy.sparse", "optimal").hstack(parts).tocsc()
    keys = permutation(1 << 40, derive(0, 7), stop=columns.shape[0]).astype(np.int64)
    _, first = np.unique(columns.T.astype(np.int64) @ keys, return_index=True)
    return columns[:, np.sort(first)]


def _gathered(lengths: npt.NDArray[np.int64], units: int, layers: int, choice: npt.NDArray[np.int32]) -> Any:
    """Return the columns of the dearest patterns, one a length, as a CSC matrix."""
    rows, pointers = _patterns_with(lengths, units, layers, choice)
    new = require("scipy.sparse", "optimal").csc_matrix(
        (np.ones(rows.size), rows, pointers), shape=(lengths.size, lengths.size)
    )
    new.sum_duplicates()
    return new


def solve_rest(columns: Any, counts: npt.NDArray[np.int64], until: float | None) -> npt.NDArray[np.float64] | None:
    """Return how often the program for ``counts`` uses each column, or None where it has no answer in time."""
    solved = _solve(columns, counts, until)
    return None if solved is None else solved[1]


def amounts_within(
    columns: Any, counts: npt.NDArray[np.int64], row: npt.NDArray[np.float64], most: float, until: float | None
) -> npt.NDArray[np.float64] | None:
    """Return the amounts of the program with one more row, ``-most <= row @ amounts <= most``; None: no answer in time.

    What leaves the range is paid for: above it half the blocks for every further ``most``, so that blocks give way; below it a
    hundred-thousandth of them, so that they do not.
    """
    sparse = require("scipy.sparse", "optimal")
    linprog = require("scipy.optimize", "optimal").linprog
    size = columns.shape[1]
    cover = sparse.hstack([-columns, sparse.csc_matrix((columns.shape[0], 2))])
    scaled = row / most
    rows = [np.concatenate([scaled, [-1.0, 0.0]]), np.concatenate([-scaled, [0.0, -1.0]])]
    blocks = float(counts.sum() / columns.sum(axis=0).mean())
    options = {} if until is None else {"time_limit": max(until - perf_counter(), 0.01)}
    result = linprog(
        np.concatenate([np.ones(size), [0.5 * blocks, 1e-5 * blocks]]),
        A_ub=sparse.vstack([cover, sparse.csc_matrix(np.array(rows))]).tocsc(),
        b_ub=np.concatenate([-counts.astype(float), [1.0, 1.0]]),
        method="highs-ds",
        options=options,
    )
    return None if result.status != 0 else np.asarray(result.x[:size])


def _solve(
    columns: Any, counts: npt.NDArray[np.int64], until: float | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int, float] | None:
    """Return (prices, amounts, simplex iterations, value)."""
    linprog = require("scipy.optimize", "optimal").linprog
    options = {} if until is None else {"time_limit": max(until - perf_counter(), 0.01)}
    result = linprog(np.ones(columns.shape[1]), A_ub=-columns, b_ub=-counts.astype(float), method="highs-ds", options=options)
    if result.status != 0:
        return None
    return -result.ineqlin.marginals, result.x, int(result.nit), float(result.fun)


@njit(cache=True, nogil=True)
def _dearest(lengths: Any, prices: Any, units: int) -> Any:
    """Return the dearest pattern's price. Rising lengths; written so that the inner loop runs on vector units."""
    best = np.zeros(units + 1, np.int64)
    for c in range(units + 1):
        if c and best[c - 1] > best[c]:
            best[c] = best[c - 1]
        base = best[c]
        last = np.searchsorted(lengths, units - c, side="right")
        if last and lengths[last - 1] - lengths[0] == last - 1:
            first = c + lengths[0]
            for i in range(last):
                best[first + i] = max(best[first + i], base + prices[i])
        else:
            for i in range(last):
                best[c + lengths[i]] = max(best[c + lengths[i]], base + prices[i])
    return best[units]


def interpolated_bound(
    lengths: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    units: int,
    cell_lengths: npt.NDArray[np.int64],
    cell_prices: npt.NDArray[np.int64],
    cells: int,
) -> int:
    """Return the bound that the prices of a grid prove for the real lengths, interpolated between its cells.

    Cost: distinct lengths times ``units`` steps, about a second at 40,000 times 131,072.
    """
    at = np.concatenate([[0.0], cell_lengths * (units / cells)])
    prices = np.interp(lengths, at, np.concatenate([[0], cell_prices])).astype(np.int64)
    return _farley(prices, counts, int(_dearest(lengths, prices, units)))


def _closed_form_prices(
    lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], units: int, max_segments: int | None
) -> npt.NDArray[np.float64]:
    """The dual solution of the best bound of `bounds`: prices of which no block holds over 1."""
    share = lengths / units
    candidates = [share] if max_segments is None else [share, np.full(lengths.size, 1 / max_segments)]
    for threshold in np.unique(np.concatenate([lengths[lengths <= units // 2], units + 1 - lengths[lengths > units // 2]])):
        candidates.append(np.where(lengths > units - threshold, 1.0, np.where(lengths < threshold, 0.0, share)))
    for k in range(1, 17):
        scaled = lengths * (k + 1)
        candidates.append(np.where(scaled % units == 0, share, scaled // units / k))
    return max(candidates, key=lambda prices: float(prices @ counts))


def _farley(prices: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], dearest: int) -> int:
    """Return ceil(sum(prices * counts) / dearest) in exact integers."""
    total = sum(int(p) * int(n) for p, n in zip(prices, counts, strict=True))
    return -(-total // dearest) if dearest else 0
