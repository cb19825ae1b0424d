"""Equal work for all ranks: the blocks of a window of steps, dealt by what they cost with the rule of `planning.balancing`.

A step lasts as long as its slowest rank. Every rank gets the same number of places in every step (collectives need that), so
what can be chosen is which block goes where. A window of one step leaves each step the blocks that it has without balancing,
and only deals them to other ranks; a larger one balances better, and moves blocks by less than a window of steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cloison.planning.balancing import Cost, longest_first
from cloison.planning.bijection import permutation
from cloison.segments import Segments

__all__ = ["block_costs", "deal"]


def block_costs(cost: Cost, segments: Segments) -> npt.NDArray[np.float64]:
    """Return what each row of ``segments`` costs, float64 [rows].

    >>> block_costs(Cost(per_token=2, per_square=0.5), Segments.from_lengths([[3, 1], [2]])).tolist()
    [13.0, 6.0]
    """
    lengths = segments.seq_lengths.astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(cost.per_token * lengths + cost.per_square * lengths**2)])
    found: npt.NDArray[np.float64] = sums[segments.row_offsets[1:]] - sums[segments.row_offsets[:-1]] + cost.fixed
    return found


def deal(costs: npt.NDArray[np.float64], steps: int, ranks: int, per_rank: int, key: np.uint64) -> npt.NDArray[np.int64]:
    """Return int64 [steps, ranks, per_rank]: indices into ``costs``, each once, and -1 in places that are left over.

    The dearest block goes to the rank and step with the least work that has a place; ranks with like work share a step; the
    steps come in an order drawn from ``key``. A rank's blocks fall in cost, so that ranks do like work at like times, and
    fillers come last. Cost: about 2 microseconds a block.
    """
    bins = longest_first(costs, steps * ranks, per_rank)
    loads = np.append(costs, 0.0)[bins].sum(axis=1)
    grouped = bins[np.argsort(-loads, kind="stable")].reshape(steps, ranks, per_rank)
    found: npt.NDArray[np.int64] = grouped[permutation(steps, key).astype(np.int64)]
    return found
