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

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.errors import require
from cloison.planning.bijection import derive, permutation
from cloison.planning.pricing import priced

__all__ = ["PRICE", "Relaxation", "distinct", "interpolated_bound", "limits", "relax"]

_SIMPLEX_WORK = 60_000_000  # simplex iterations x rows
_ROUNDS = 150
PRICE = 1 << 30
_SCARCE = 16  # samples a length, below which a pattern holds no more of a length than there are
_OPENINGS = 4
_PULLS = (0.9, 0.6, 0.0)
_BOUND_WORK = 1_000_000_000
_COARSEST = 256  # cells of the shortest length, below which rounding down gives too much away
_ENOUGH = 2e-6  # the tail of the convergence is long, and larger programs stop here
_SMALL = 30_000
_LARGE = 3000  # columns
_INTERIOR = 100  # simplex iterations that one of interior points counts as
_MOST, _KEPT = 10, 4  # columns a row: no more than the first, and down to the second


@dataclass(frozen=True, eq=False)
class Relaxation:
    """What column generation found.

    Attributes:
        columns: scipy CSC matrix [lengths, patterns], how many of each length a pattern holds.
        amounts: float64 [patterns], how often the program uses each.
        bound: proven lower bound on blocks.
        prices: int64 [lengths], the prices that prove it.
        iterations: simplex iterations spent.
    """

    columns: Any
    amounts: npt.NDArray[np.float64]
    bound: int
    prices: npt.NDArray[np.int64]
    iterations: int


def relax(
    lengths: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    units: int,
    columns: Any,
    max_segments: int | None = None,
    until: float | None = None,
    enough: float = np.inf,
    prices: npt.NDArray[np.int64] | None = None,
    known: int = 0,
) -> Relaxation:
    """Return the Relaxation for ``counts`` of rising distinct ``lengths`` (1..units), beginning with ``columns``.

    Args:
        columns: CSC matrix [lengths, patterns]; they must cover every length.
        until: when to stop, by `perf_counter`; None: a fixed amount of work.
        enough: a bound that leaves nothing to look for: so many blocks are known to do.
        prices: int64 [lengths] that prove a bound of a larger program of which this is the rest; None: those of the best
            closed-form bound, and a first set of patterns made with them.
        known: a bound that is proven otherwise: where the program proves no better one, it stops.
    """
    layers, scarce = limits(lengths, counts, units, max_segments)
    if prices is None:
        closed = _closed_form_prices(lengths, counts, units, max_segments)
        # Full patterns of many kinds to begin with: these prices leave most of them equally dear, and 1 % of noise picks.
        around = 0.5 * closed + 0.5 * lengths / units if layers else closed
        opening = []
        for turn in range(_OPENINGS):
            noise = permutation(1 << 16, derive(turn), stop=lengths.size) / (1 << 16)
            noisy = (around * (1 + 0.01 * noise) * PRICE).astype(np.int64)
            opening.append(priced(lengths, noisy, units, layers, scarce)[1])
        columns = distinct([columns, *opening])
        prices = (closed * PRICE).astype(np.int64)
    dearest, _ = priced(lengths, prices, units, layers, scarce)
    bound = max(_farley(prices, counts, dearest), known)
    centre = prices / max(float(dearest), 1.0)
    spent = rounds = 0
    while True:
        solved = _solve(columns, counts, until)
        if solved is None:
            amounts = np.zeros(columns.shape[1])
            break
        duals, amounts, iterations, value = solved
        spent += iterations
        rounds += 1
        fresh = []
        for pull in _PULLS:
            whole = np.maximum((pull * centre + (1 - pull) * duals) * PRICE, 0).astype(np.int64)
            dearest, new = priced(lengths, whole, units, layers, scarce)
            if whole @ counts.astype(np.float64) > float(centre @ counts) * dearest:
                bound = max(bound, _farley(whole, counts, dearest))
                prices, centre = whole, whole / float(dearest)
            gains = np.flatnonzero(new.T @ duals > 1 + 1e-7)
            if gains.size:
                fresh.append(new[:, gains])
            if gains.size > lengths.size // 4:
                break
        late = rounds >= _ROUNDS or spent * lengths.size > _SIMPLEX_WORK if until is None else perf_counter() > until
        near_enough = value <= bound + 1e-6 or (spent > _SMALL and value <= bound * (1 + _ENOUGH))
        if not fresh or late or near_enough or bound >= enough:
            break
        if columns.shape[1] > _MOST * lengths.size:
            worth = np.where(amounts > 0, -np.inf, 1 - columns.T @ duals)  # those in use cover every length
            columns = columns[:, np.sort(np.argsort(worth, kind="stable")[: _KEPT * lengths.size])]
        columns = distinct([columns, *fresh])
    return Relaxation(columns, amounts, bound, prices, spent)


def limits(
    lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], units: int, max_segments: int | None
) -> tuple[int, npt.NDArray[np.int64] | None]:
    """Return what limits the patterns that are `priced`: (segments a block, or 0, items of each length, or None)."""
    layers = 0 if max_segments is None or max_segments * int(lengths[0]) >= units else max_segments
    return layers, counts if counts.sum() < _SCARCE * lengths.size else None


def distinct(parts: list[Any]) -> Any:
    """Return the columns of all ``parts`` side by side, each once (told apart by a keyed sum of what they hold)."""
    columns = require("scipy.sparse", "optimal").hstack(parts).tocsc()
    keys = permutation(1 << 40, derive(0, 7), stop=columns.shape[0]).astype(np.int64)
    _, first = np.unique(columns.T.astype(np.int64) @ keys, return_index=True)
    return columns[:, np.sort(first)]


def _solve(
    columns: Any, counts: npt.NDArray[np.int64], until: float | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int, float] | None:
    """Return (prices, amounts, simplex iterations, value). Larger programs are solved by interior points, and crossed over."""
    linprog = require("scipy.optimize", "optimal").linprog
    options = {} if until is None else {"time_limit": max(until - perf_counter(), 0.01)}
    large = columns.shape[1] > _LARGE
    method = "highs-ipm" if large else "highs-ds"
    result = linprog(np.ones(columns.shape[1]), A_ub=-columns, b_ub=-counts.astype(float), method=method, options=options)
    if result.status != 0:
        return None
    return -result.ineqlin.marginals, result.x, int(result.nit) * (_INTERIOR if large else 1), float(result.fun)


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
    lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], units: int, prices: npt.NDArray[np.int64]
) -> int:
    """Return the bound that ``prices`` prove for the rising, distinct ``lengths``, or 0 where that is too much work.

    Any prices prove a bound; those of a grid, interpolated between its cells, prove a good one. Of many lengths, the dearest
    pattern is looked for with lengths rounded down to cells, of which each has the price of its dearest length: that allows
    more patterns, so the bound stays proven, and is about 0.01 % weaker.

    Cost: lengths times cells steps, a fraction of a second.
    """
    cells, down = units, lengths
    while min(lengths.size, (lengths[-1] - lengths[0]) * cells // units + 1) * cells > _BOUND_WORK:
        if lengths[0] * cells <= _COARSEST * units:
            break
        cells //= 2
    if cells < units:
        down, first = np.unique(lengths * cells // units, return_index=True)
        prices_of = np.maximum.reduceat(prices, first)
    else:
        prices_of = prices
    if down.size * cells > _BOUND_WORK:
        return 0
    return _farley(prices, counts, int(_dearest(down, prices_of, cells)))


def _closed_form_prices(
    lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], units: int, max_segments: int | None
) -> npt.NDArray[np.float64]:
    """The dual solution of the best bound of `bounds`: prices of which no block holds over 1."""
    share = lengths / units

    def candidates() -> Iterator[npt.NDArray[np.float64]]:
        yield share
        if max_segments is not None:
            yield np.full(lengths.size, 1 / max_segments)
        small, large = lengths[lengths <= units // 2], lengths[lengths > units // 2]
        for threshold in np.unique(np.concatenate([small, units + 1 - large])):
            yield np.where(lengths > units - threshold, 1.0, np.where(lengths < threshold, 0.0, share))
            if max_segments is not None:
                yield np.where(lengths > units - threshold, 1.0, np.where(lengths < threshold, 0.0, 1 / max_segments))
        for k in range(1, 17):
            scaled = lengths * (k + 1)
            yield np.where(scaled % units == 0, share, scaled // units / k)

    return max(candidates(), key=lambda prices: float(prices @ counts))


def _farley(prices: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], dearest: int) -> int:
    """Return ceil(sum(prices * counts) / dearest) in exact integers."""
    total = sum(int(p) * int(n) for p, n in zip(prices, counts, strict=True))
    return -(-total // dearest) if dearest else 0
