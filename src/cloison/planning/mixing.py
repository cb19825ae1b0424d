"""mixing: the linear program of packing with one more row, which keeps the variance between blocks near that of a random deal.

How much a plan puts like with like is one number, the share of the variance of log length that lies between blocks, and it is a
sum over blocks: a block of n segments adds (sum of deviations from the mean log length)^2 / n. So in the linear program of
`linear_program`, where a plan is an amount of each pattern, it is one more row, over the columns of the plain program, over
those of best-fit (like with like), and over patterns that a look-ahead over the shuffled order happens to form (many different
pairings). `GIVEN` of the blocks may be given for it: where few lengths fill a block, full blocks are more alike than random
ones, and only these few that are not full bring the share up (uniform on a fifth to half of the capacity: from 0.23 to 0.30 of
0.37 at random; giving nothing, 0.23 is all there is).

Cost: one program more at each depth of `diving`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import require
from cloison.planning.diving import Mix, fitting
from cloison.planning.items import Items
from cloison.planning.linear_program import Relaxation, amounts_within, distinct

__all__ = ["GIVEN", "harvested", "mixer_of"]

SLACK = 0.03
"""How far from the random one the program lets the variance share be."""

GIVEN = 0.0014
"""Share of the blocks that it may give for that."""

_HARVEST = 20_000


def harvested(items: Items, offsets: npt.NDArray[np.int64], ids: npt.NDArray[Any]) -> list[npt.NDArray[np.int32]]:
    """Return the classes of some full blocks of a look-ahead, evenly from all of them."""
    blocks = offsets.size - 1
    chosen = np.unique(np.linspace(0, blocks - 1, min(2 * _HARVEST, blocks)).astype(np.int64))
    classes = [items.classes_of(ids[offsets[b] : offsets[b + 1]]) for b in chosen]
    return [block for block in classes if block.sum() >= items.units * 0.998][:_HARVEST]


def mixer_of(
    counts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.float64],
    begun: Any,
    harvest: list[npt.NDArray[np.int32]],
    units: int,
    until: float | None,
) -> Mix:
    """Return what exchanges amounts for those of the program that bounds the variance between all blocks, taken ones too."""
    sparse = require("scipy.sparse", "optimal")
    others = begun
    if harvest:
        rows = np.searchsorted(lengths + 1e-6, np.concatenate(harvest)).astype(np.int32)
        pointers = np.concatenate([[0], np.cumsum([block.size for block in harvest])])
        found = sparse.csc_matrix((np.ones(rows.size), rows, pointers), shape=(lengths.size, len(harvest)))
        found.sum_duplicates()
        held = found.T @ lengths <= units + 1e-6  # on a grid, lengths are rounded up
        others = sparse.hstack([begun, found[:, np.flatnonzero(held)]]).tocsc()
    logs = np.log(lengths)
    segments = float(counts.sum())
    logs -= float(logs @ counts) / segments
    total = float(logs**2 @ counts)

    def excess(columns: Any) -> npt.NDArray[np.float64]:
        """What a block of each column adds to the variance between blocks, over what it adds at random.

        The random share, (blocks - 1) / (segments - 1), moves with the blocks: so it is taken off here.
        """
        return np.asarray((columns.T @ logs) ** 2 / np.asarray(columns.sum(axis=0)).ravel() - total / segments)

    most = np.inf

    def mix(relaxed: Relaxation, rest: npt.NDArray[np.int64], chosen: Any, times: npt.NDArray[np.int64]) -> Relaxation:
        nonlocal most
        fewest = float(relaxed.amounts.sum())
        most = min(most, fewest * (1 + GIVEN))  # the first program is that of the whole
        columns = distinct([relaxed.columns, others[:, fitting(others, rest)]])
        so_far = float(excess(chosen) @ times)
        low, high = -SLACK * total - so_far, SLACK * total - so_far
        rows = np.flatnonzero(rest)
        left = max(most - float(times.sum()), fewest * (1 + 1e-9))
        amounts = amounts_within(columns[rows], rest[rows], excess(columns), low, high, left, until)
        return relaxed if amounts is None else replace(relaxed, columns=columns, amounts=amounts)

    return mix
