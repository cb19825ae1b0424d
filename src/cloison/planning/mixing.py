"""mixing: the linear program of packing with one more row, which keeps the variance between blocks near that of a random deal.

How much a plan puts like with like is one number, the share of the variance of log length that lies between blocks, and it is a
sum over blocks: a block of n segments whose logs deviate from the mean by s in all adds s^2 / n. So in the linear program of
`linear_program`, where a plan is an amount of each pattern, it is one more row, and new patterns are priced for it:

- where the share is to rise, s^2 / n is the largest of 2 t s - n t^2 over all t, and for one t this is a sum over segments: so
  a knapsack for each of some t finds the patterns that lead on;
- where it is to fall, that does not hold (least, not largest). But patterns of nearly equal price are plenty there: those of
  prices with a little noise, and the blocks of a look-ahead, which have long and short in company.

`GIVEN` of the blocks may be given for it: where few lengths fill a block, full blocks are more alike than random ones, and only
those few that are not full bring the share up (uniform on a fifth to half of the capacity: from 0.23 to 0.31 of 0.35 at random;
giving nothing, 0.23 is all there is).

Cost: one to three linear programs, 0.1 to 2 s, whatever the number of samples.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import require
from cloison.planning.bijection import derive, permutation
from cloison.planning.linear_program import PRICE, Relaxation, distinct, limits
from cloison.planning.pricing import priced
from cloison.planning.program import Program, mingled

__all__ = ["GIVEN", "mixed_relaxation"]

SLACK = 0.03
"""How far from the random one the program lets the variance share be."""

GIVEN = 0.0017
"""Share of the blocks that it may give for that."""

_ROUNDS = 3
_TANGENTS = 9
_NOISES = 6
_NOISE = 0.002
_FEW = 1e-5
_FRESH = 2  # new columns a row and round


def mixed_relaxation(program: Program, until: float | None) -> Relaxation:
    """Return the answer of ``program`` with the variance share within `SLACK` of the random one, or as near as it comes."""
    grid = program.grid
    logs = np.log(grid.lengths)
    segments = float(grid.counts.sum())
    logs -= float(logs @ grid.counts) / segments
    total = float(logs**2 @ grid.counts)
    layers, scarce = limits(grid.lengths, grid.counts, grid.cells, program.max_segments)

    def excess(columns: Any) -> npt.NDArray[np.float64]:
        """What a block of each column adds to the variance share, over what it adds at random.

        The random share, (blocks - 1) / (segments - 1), moves with the blocks: so it is taken off here.
        """
        sums, sizes = columns.T @ logs, np.asarray(columns.sum(axis=0)).ravel()
        return np.asarray(sums**2 / sizes / total - 1 / segments)

    best = program.relaxed
    columns = distinct([best.columns, program.start])
    others = None
    fewest = float(best.amounts.sum())
    for turn in range(_ROUNDS):
        found = _solved(columns, grid.counts, excess(columns), fewest, until)
        if found is None:
            break
        amounts, duals, weight, limit = found
        best = replace(best, columns=columns, amounts=amounts)
        if abs(float(excess(columns) @ amounts)) <= SLACK * (1 + _FEW) and float(amounts.sum()) <= fewest * (1 + _FEW):
            break
        if weight < 0:  # a block more of variance is worth this: the share is to rise
            tangents = np.linspace(logs[0], logs[-1], _TANGENTS)
            prices = [duals - weight / total * (2 * t * logs - t * t) for t in tangents]
        else:
            noises = (permutation(1 << 16, derive(turn, 12, n), stop=duals.size) / (1 << 16) for n in range(_NOISES))
            prices = [duals * (1 + _NOISE * noise) for noise in noises]
            if others is None:
                others = mingled(grid, program.max_segments)
        whole = (np.maximum(each * PRICE, 0).astype(np.int64) for each in prices)
        found_anew = [priced(grid.lengths, each, grid.cells, layers, scarce)[1] for each in whole]
        fresh = distinct(found_anew if others is None else [*found_anew, others])
        worth = fresh.T @ duals - weight * excess(fresh) - limit
        order = np.argsort(-worth, kind="stable")[: _FRESH * grid.lengths.size]
        order = order[worth[order] > _FEW]
        if not order.size:
            break
        columns = distinct([columns, fresh[:, order]])
    return best


def _solved(
    columns: Any, counts: npt.NDArray[np.int64], excess: npt.NDArray[np.float64], fewest: float, until: float | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float, float] | None:
    """Return (amounts, price of each row, price of the variance share, price of a block), or None: no answer in time.

    What leaves the range of `SLACK` is paid for, half of all blocks for every `SLACK` of it, so that blocks give way.
    """
    sparse = require("scipy.sparse", "optimal")
    linprog = require("scipy.optimize", "optimal").linprog
    size = columns.shape[1]
    share = excess / SLACK
    more = np.array(
        [
            np.concatenate([share, [-1.0, 0.0]]),
            np.concatenate([-share, [0.0, -1.0]]),
            np.concatenate([np.ones(size), [0.0, 0.0]]),
        ]
    )
    rows = [sparse.hstack([-columns, sparse.csc_matrix((columns.shape[0], 2))]), sparse.csc_matrix(more)]
    options = {} if until is None else {"time_limit": max(until - perf_counter(), 0.01)}
    result = linprog(
        np.concatenate([np.ones(size), np.full(2, 0.5 * fewest)]),
        A_ub=sparse.vstack(rows).tocsc(),
        b_ub=np.concatenate([-counts.astype(float), [1.0, 1.0, fewest * (1 + GIVEN)]]),
        method="highs-ipm",
        options=options,
    )
    if result.status != 0:
        return None
    prices = -result.ineqlin.marginals
    return result.x[:size], prices[:-3], (prices[-3] - prices[-2]) / SLACK, 1.0 + prices[-1]
