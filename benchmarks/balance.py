"""How long ranks wait for the slowest: 64 ranks of 8 blocks a step, capacity 131,072, lengths lognormal(log 900, 1.3).

    python benchmarks/balance.py [--ranks 64] [--blocks 8] [--steps 16]

The factor is the slowest rank's cost over the mean rank's, summed over steps; in plan order (no balancing) it is what peers
that deal blocks in turn have. Costs are those of a 7B model: once as training FLOPs (32 layers, 4,096 wide), once as
`cloison.planning.Cost` has them by default (attention weighs more: the pessimistic shape). The loader deals; nothing is
simulated but the cost itself. "spread" is how much the mean cost of steps varies: what balancing does to composition.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import cloison
from cloison.loading.loader import Loader
from cloison.loading.schedule import Deal
from cloison.planning import Cost
from cloison.segments import Segments

CAPACITY = 131_072


class Lengths:
    """Blocks of which only the lengths exist, for a loader that is asked which block goes where."""

    fingerprint = "lengths"
    group = 1
    bucket_groups = 1
    file_groups = 0

    def __init__(self, plan: Any) -> None:
        self._segments = Segments(plan.seq_lengths, plan.offsets, CAPACITY)

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("no block is read here")

    def segments(self) -> Segments:
        """Return the boundaries."""
        return self._segments

    def epoch(self, number: int) -> Lengths:
        """Return itself."""
        return self


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    ranks, blocks = options.ranks, options.blocks
    wanted = ranks * blocks * options.steps
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(np.log(900), 1.3, int(wanted * CAPACITY / 2000)).astype(np.int64) + 1, CAPACITY)
    lengths = lengths[np.cumsum(lengths) < wanted * CAPACITY * 0.999]
    plan = cloison.plan(lengths, CAPACITY)
    print(f"{len(plan):,} blocks, {lengths.size:,} samples, longest {lengths.max():,}, utilization {plan.utilization:.4f}")
    shapes = {"training FLOPs of a 7B model": Cost(6 * 7e9, 6 * 32 * 4096), "Cost(), attention heavier": Cost()}
    print(f"{'cost':<30} {'window':>7} {'factor':>8} {'spread':>8} {'seconds an epoch':>17}")
    for name, cost in shapes.items():
        for window in (0, 1, 2, 4, 8, 16):
            deal = Deal(ranks, blocks, "fill", window, cost.per_token, cost.per_square, cost.fixed)
            loader = Loader(Lengths(plan), list, deal, rank=0, seed=0, micro_batches=1, shuffle=True, prefetch=0)
            start = time.perf_counter()
            factor = loader.balance_factor
            seconds = time.perf_counter() - start
            costs = np.append(loader.block_costs(), 0.0)
            means = np.array([costs[loader.dealt(step)].sum(axis=1).mean() for step in range(len(loader) - 1)])
            print(f"{name:<30} {window:>7} {factor:>8.4f} {means.std() / means.mean():>8.4f} {seconds:>17.3f}")


if __name__ == "__main__":
    main()
