"""mixed: as tight as may be while as mixed as a random draw.

Tight plans put like with like. How much is one number, the share of the variance of log length that lies between blocks, and
it is a sum over blocks: a block of n segments adds (sum of deviations from the mean log length)^2 / n. So in the linear
program of `linear_program`, where a plan is an amount of each pattern, it is one more row. ``mixed`` solves two programs:
the plain one, which gives the bound and the columns; and one that keeps the share within `SLACK` of the random one, over
these columns and over patterns that a look-ahead over the shuffled order happens to form (many different pairings). The
answer is rounded as in `optimal`, samples of a length are dealt to its places at random, and blocks are shuffled.

Where a look-ahead is tight by itself (heavy tails: short samples fill every block), it is taken: it is mixed by construction.

What it gives up: up to 0.1 % of utilization against the best known. Where lengths leave few ways to fill a block (uniform on a
fifth to a half of the capacity), full blocks are more alike than random ones, and the share lies below random by force.
Figures for each distribution: `benchmarks/planning_quality.py`. Cost: that of `optimal`, and once more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import require
from cloison.planning.bounds import lower_bound
from cloison.planning.diving import Mix, fitting
from cloison.planning.items import Items
from cloison.planning.linear_program import Relaxation, amounts_within
from cloison.planning.look_ahead import look_ahead_blocks
from cloison.planning.optimal import search
from cloison.planning.patterns import Patterns, fill

__all__ = ["AHEAD", "mixed_blocks"]

NEAR = 0.001
"""A look-ahead whose blocks exceed the best known by at most this share is taken."""

SLACK = 0.02
"""How far from the random one the program lets the variance share be."""

AHEAD = 8192
"""Samples that its look-ahead sees at least."""

_HARVEST = 20_000


def mixed_blocks(
    items: Items, seed: int, shuffled: bool, ahead: int, max_segments: int | None, until: float | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], Patterns | None, int, str]:
    """Return (offsets int64 [blocks + 1], item ids [placed], patterns or None, bound, the argument for it)."""
    bound, name = lower_bound(items.counts, items.units, max_segments)
    offsets, ids = look_ahead_blocks(items, seed, shuffled, max(ahead, AHEAD), max_segments)
    if offsets.size - 1 <= bound * (1 + NEAR):
        return offsets, ids, None, bound, name
    harvest = _harvested(items, offsets, ids)

    def mixer(counts: npt.NDArray[np.int64], lengths: npt.NDArray[np.float64]) -> Mix:
        return _mixer(counts, lengths, harvest, items.units, until)

    patterns, bound, name = search(items.counts, items.units, max_segments, until, None, mixer)
    if offsets.size - 1 <= patterns.num_blocks * (1 + NEAR):
        return offsets, ids, None, bound, name
    return *fill(patterns, items, seed, shuffled), patterns, bound, name


def _harvested(items: Items, offsets: npt.NDArray[np.int64], ids: npt.NDArray[Any]) -> list[npt.NDArray[np.int32]]:
    """Return the classes of some full blocks of a look-ahead, evenly from all of them."""
    blocks = offsets.size - 1
    chosen = np.unique(np.linspace(0, blocks - 1, min(2 * _HARVEST, blocks)).astype(np.int64))
    classes = [items.classes_of(ids[offsets[b] : offsets[b + 1]]) for b in chosen]
    return [block for block in classes if block.sum() >= items.units * 0.998][:_HARVEST]


def _mixer(
    counts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.float64],
    harvest: list[npt.NDArray[np.int32]],
    units: int,
    until: float | None,
) -> Mix:
    """Return what exchanges amounts for those of the program that bounds the variance between all blocks, taken ones too."""
    sparse = require("scipy.sparse", "optimal")
    harvested = sparse.csc_matrix((lengths.size, 0))
    if harvest:
        rows = np.searchsorted(lengths + 1e-6, np.concatenate(harvest)).astype(np.int32)
        pointers = np.concatenate([[0], np.cumsum([block.size for block in harvest])])
        found = sparse.csc_matrix((np.ones(rows.size), rows, pointers), shape=(lengths.size, len(harvest)))
        found.sum_duplicates()
        held = found.T @ lengths <= units + 1e-6  # on a grid, lengths are rounded up
        harvested = found[:, np.flatnonzero(held)]
    logs = np.log(lengths)
    segments = float(counts.sum())
    logs -= float(logs @ counts) / segments
    total = float(logs**2 @ counts)

    def excess(columns: Any) -> npt.NDArray[np.float64]:
        """What a block of each column adds to the variance between blocks, over what it adds at random.

        The random share, (blocks - 1) / (segments - 1), moves with the blocks: so it is taken off here.
        """
        return np.asarray((columns.T @ logs) ** 2 / np.asarray(columns.sum(axis=0)).ravel() - total / segments)

    def mix(relaxed: Relaxation, rest: npt.NDArray[np.int64], chosen: Any, times: npt.NDArray[np.int64]) -> Relaxation:
        columns = sparse.hstack([relaxed.columns, harvested[:, fitting(harvested, rest)]]).tocsc()
        so_far = float(excess(chosen) @ times)
        low, high = -SLACK * total - so_far, SLACK * total - so_far
        rows = np.flatnonzero(rest)
        amounts = amounts_within(columns[rows], rest[rows], excess(columns), low, high, until)
        return relaxed if amounts is None else replace(relaxed, columns=columns, amounts=amounts)

    return mix
