"""balance: blocks to ranks and steps, so that no rank waits long for the slowest.

All blocks hold the same number of tokens, but attention costs the sum of squares of their segments: one long sample costs more
than many short ones. Blocks are taken in windows of a few steps, in plan order. In a window, the dearest block goes to the bin
(one rank in one step) with the least cost that still has a place, and so on down (longest processing time first); then bins
of like cost are put into one step, and the steps of the window into a keyed random order.

The factor is the sum over steps of the dearest rank's cost, over the sum of mean costs: 1 is perfect, and 1.2 says that a fifth
of the mean step is waited for. What it costs: a block moves by less than a window of steps.

Source: Graham, "Bounds on multiprocessing timing anomalies" (1969); the same trade for packed batches is WLB-LLM (Wang et
al. 2025). Cost: about 2 microseconds a block. The result is the same on every rank; nothing is exchanged.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.planning.bijection import derive, permutation
from cloison.planning.plans import Plan

__all__ = ["Balance", "Cost", "balance", "calibrate", "longest_first", "slowest_over_mean"]


@dataclass(frozen=True)
class Cost:
    """The cost of a block: ``fixed + per_token * tokens + per_square * sum of squared segment lengths``, in any one unit.

    The default is the shape of a 7B model: its linear layers cost as much as attention over 24,576 tokens.
    """

    per_token: float = 24576.0
    per_square: float = 1.0
    fixed: float = 0.0

    def of(self, plan: Plan) -> npt.NDArray[np.float64]:
        """Return float64 [blocks], the cost of each block of ``plan``."""
        if not plan.num_blocks:
            return np.zeros(0)
        lengths = plan.seq_lengths.astype(np.float64)
        return np.asarray(
            np.add.reduceat(self.per_token * lengths + self.per_square * lengths**2, plan.offsets[:-1]) + self.fixed
        )


def calibrate(tokens: npt.ArrayLike, squares: npt.ArrayLike, seconds: npt.ArrayLike) -> Cost:
    """Return the Cost that fits a few measured blocks best, by least squares, with no part negative.

    Args:
        tokens, squares, seconds: [measured], of each block its tokens, the sum of its squared segment lengths, and how long
            a step on it took. Three or more, of different composition.
    """
    table = np.stack([np.asarray(tokens, np.float64), np.asarray(squares, np.float64), np.ones(np.size(tokens))], axis=1)
    wanted = np.asarray(seconds, np.float64)
    if table.shape[0] < 3 or wanted.shape != (table.shape[0],) or not np.isfinite(table).all() or not (wanted > 0).all():
        raise InputError(
            "a cost is calibrated on three or more measured blocks.",
            f"There are {table.shape[0]} and {wanted.size} times.",
            "Measure blocks of different composition; times are above 0.",
        )
    scale = np.maximum(table.max(axis=0), 1e-300)
    best, least = np.zeros(3), np.inf
    for size in (1, 2, 3):  # three unknowns: every set of positive parts is tried, which is exact
        for part in combinations(range(3), size):
            found = np.linalg.lstsq(table[:, part] / scale[list(part)], wanted, rcond=None)[0]
            off = float(
                ((table[:, part] / scale[list(part)]) @ found - wanted)
                @ ((table[:, part] / scale[list(part)]) @ found - wanted)
            )
            if (found >= 0).all() and off < least * (1 - 1e-12):
                best, least = np.zeros(3), off
                best[list(part)] = found / scale[list(part)]
    return Cost(*(float(value) for value in best))


@dataclass(frozen=True, eq=False)
class Balance:
    """Which blocks each rank takes in each step.

    Attributes:
        blocks: int64 [steps, ranks, places], indices of blocks of the plan; -1 is a filler, a block without weight.
        factor: sum over steps of the dearest rank / sum of the means.
        unbalanced_factor: the same for blocks dealt in plan order.
        displacement_mean_steps, displacement_max_steps: how far blocks moved from their step in plan order.
        left_out: blocks in no step (``remainder="drop"``).
        fillers: places without a block.
    """

    blocks: npt.NDArray[np.int64]
    factor: float
    unbalanced_factor: float
    displacement_mean_steps: float
    displacement_max_steps: int
    left_out: npt.NDArray[np.int64]
    fillers: int

    def __len__(self) -> int:
        """Steps."""
        return int(self.blocks.shape[0])


def balance(
    plan: Plan,
    ranks: int,
    blocks_per_step: int,
    cost: Cost | Callable[[Plan], npt.ArrayLike] | npt.ArrayLike | None = None,
    *,
    window: int = 1,
    most_blocks: int | None = None,
    remainder: str = "fill",
) -> Balance:
    """Return the Balance of ``plan``: every rank has the same number of steps and places, found without communication.

    Args:
        blocks_per_step: blocks of one rank in one step (micro-batch times accumulation).
        cost: a `Cost`, a function of the plan, or [blocks] numbers; None: `Cost`, the shape of a 7B model.
        window: steps among which blocks may move; 1 leaves each block in its step.
        most_blocks: places a rank has in a step; more than ``blocks_per_step`` lets a rank with a very dear block take fewer
            and another more, the rest being fillers. None: ``blocks_per_step``, so that every rank runs as many.
        remainder: what becomes of blocks that do not fill a last step: "fill" it up with fillers, or "drop" them.

    Raises:
        InputError: fewer blocks than one step has places, under "drop": no step would be left.

    >>> from cloison import plan
    >>> dealt = balance(plan([8, 4, 4, 8, 2, 6], 8, policy="in_order", order="input"), ranks=2, blocks_per_step=2)
    >>> len(dealt), dealt.fillers, round(dealt.factor, 3)
    (1, 0, 1.0)
    """
    for name, value in (("ranks", ranks), ("blocks_per_step", blocks_per_step), ("window", window)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise InputError(f"{name} is an integer of at least 1.", f"It is {value!r}.", "Pass 1 or more.")
    size = blocks_per_step if most_blocks is None else most_blocks
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < blocks_per_step:
        raise InputError(
            f"most_blocks is at least blocks_per_step, {blocks_per_step}.",
            f"It is {most_blocks!r}.",
            "Raise it, or leave it out.",
        )
    if remainder not in ("fill", "drop"):
        raise InputError("remainder is 'fill' or 'drop'.", f"It is {remainder!r}.", "Pick one.")
    places = ranks * blocks_per_step
    steps, rest = divmod(plan.num_blocks, places)
    if rest and remainder == "fill":
        steps += 1
    elif rest and not steps:
        raise InputError(
            f"a step of {ranks} ranks x {blocks_per_step} blocks has {places} places.",
            f"The plan has {plan.num_blocks} block{'s' if plan.num_blocks != 1 else ''}, so no step would be left.",
            'Pass remainder="fill", or fewer ranks or blocks a step.',
        )
    costs = np.zeros(steps * places + 1)  # the last is what a filler costs
    used = min(plan.num_blocks, steps * places)
    costs[:used] = _costs(plan, cost)[:used]
    index = np.full(steps * places + 1, -1, np.int64)
    index[:used] = np.arange(used)
    dealt = np.empty((steps, ranks, size), np.int64)  # positions in costs
    for first in range(0, steps, window):
        last = min(first + window, steps)
        bins = longest_first(costs[first * places : min(last * places, used)], (last - first) * ranks, size)
        bins = np.where(bins < 0, steps * places, bins + first * places)
        loads = costs[bins].sum(axis=1)
        grouped = bins[np.argsort(-loads, kind="stable")].reshape(last - first, ranks, size)
        mixed = permutation(last - first, derive(plan.seed, 6, first)).astype(np.int64)
        for step, source in enumerate(mixed):
            turned = permutation(ranks, derive(plan.seed, 7, first + step)).astype(np.int64)
            dealt[first + step] = grouped[source][turned]
    moved = np.abs(dealt // places - np.arange(steps)[:, None, None])[index[dealt] >= 0] if steps else np.zeros(0)
    return Balance(
        blocks=index[dealt],
        factor=slowest_over_mean(costs[dealt]),
        unbalanced_factor=slowest_over_mean(costs[:-1].reshape(steps, ranks, blocks_per_step)),
        displacement_mean_steps=float(moved.mean()) if moved.size else 0.0,
        displacement_max_steps=int(moved.max()) if moved.size else 0,
        left_out=np.arange(used, plan.num_blocks, dtype=np.int64),
        fillers=int((index[dealt] < 0).sum()),
    )


def _costs(plan: Plan, cost: Any) -> npt.NDArray[np.float64]:
    given = (
        Cost().of(plan) if cost is None else cost.of(plan) if isinstance(cost, Cost) else cost(plan) if callable(cost) else cost
    )
    costs = np.asarray(given, np.float64)
    if costs.shape != (plan.num_blocks,) or not np.isfinite(costs).all() or (costs < 0).any():
        raise InputError(
            "cost gives one number of 0 or more a block.",
            f"Its shape is {list(costs.shape)} for {plan.num_blocks} blocks, or a number is negative or not finite.",
            "Pass a Cost, a function of the plan, or [blocks] numbers.",
        )
    return costs


def longest_first(costs: npt.NDArray[np.float64], bins: int, size: int) -> npt.NDArray[np.int64]:
    """Return int64 [bins, size]: each position of ``costs`` in one bin, the dearest first to the least loaded; -1: free."""
    out = np.full((bins, size), -1, np.int64)
    open_bins = [(0.0, b, 0) for b in range(bins)]
    for position in np.argsort(-costs, kind="stable"):
        load, b, held = heapq.heappop(open_bins)
        out[b, held] = position
        if held + 1 < size:
            heapq.heappush(open_bins, (load + float(costs[position]), b, held + 1))
    return out


def slowest_over_mean(costs: npt.NDArray[np.float64]) -> float:
    """Sum of step maxima over sum of step means, for costs [steps, ranks, blocks_per_step]."""
    loads = costs.sum(axis=2)
    mean = float(loads.mean(axis=1).sum()) if loads.size else 0.0
    return float(loads.max(axis=1).sum()) / mean if mean else 1.0
