"""Dealing by cost: each block once, as many places for every rank, and ranks that have alike work."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.loading.balance import block_costs, deal
from cloison.planning.balancing import Cost, slowest_over_mean
from cloison.planning.bijection import derive
from cloison.segments import Segments


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.data())
def test_every_block_once_and_dear_ones_first(steps: int, ranks: int, per_rank: int, data: st.DataObject) -> None:
    most = steps * ranks * per_rank
    count = data.draw(st.integers(max(0, most - ranks * per_rank + 1), most))
    costs = np.array(data.draw(st.lists(st.floats(0.1, 9), min_size=count, max_size=count)), np.float64)
    found = deal(costs, steps, ranks, per_rank, derive(0))
    assert found.shape == (steps, ranks, per_rank)
    assert sorted(found[found >= 0].tolist()) == list(range(count))
    if count >= steps * ranks:
        assert (found >= 0).any(axis=2).all(), "no rank goes without while there are blocks"
    ordered = np.append(costs, 0)[found]
    assert (np.diff(ordered, axis=2) <= 0).all(), "ranks do like work at like times"


def test_whales_are_balanced_within_a_window() -> None:
    rng = np.random.default_rng(0)
    costs = np.where(rng.random(64 * 8 * 8) < 0.04, rng.uniform(1.5, 3, 4096), rng.uniform(0.95, 1.1, 4096))
    plain = slowest_over_mean(costs.reshape(8, 8, 64).transpose(0, 2, 1))
    alone = [part[deal(part, 1, 64, 8, derive(0))[0]] for part in costs.reshape(8, 512)]
    one = slowest_over_mean(np.stack(alone))
    eight = slowest_over_mean(costs[deal(costs, 8, 64, 8, derive(0))])
    assert eight < 1.02 < one < plain


def test_block_costs_are_those_of_the_plan() -> None:
    import cloison

    plan = cloison.plan(np.random.default_rng(0).integers(1, 60, 300), 128)
    cost = Cost(3.0, 0.5, 7.0)
    assert np.allclose(block_costs(cost, Segments(plan.seq_lengths, plan.offsets, 128)), cost.of(plan))
