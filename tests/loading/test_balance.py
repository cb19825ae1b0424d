"""Dealing by cost: each block once, as many for every rank, and ranks that have alike work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.errors import InputError
from cloison.loading.balance import Cost, deal, factor
from cloison.segments import Segments


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.data())
def test_every_block_once_and_fillers_last(steps: int, ranks: int, per_rank: int, data: st.DataObject) -> None:
    most = steps * ranks * per_rank
    count = data.draw(st.integers(most - ranks * per_rank + 1, most))
    costs = np.array(data.draw(st.lists(st.floats(0.1, 9), min_size=count, max_size=count)))
    found = deal(costs, steps, ranks, per_rank)
    assert found.shape == (steps, ranks, per_rank)
    assert sorted(found[found >= 0].tolist()) == list(range(count))
    assert (found[:-1] >= 0).all()
    if count - (steps - 1) * ranks * per_rank >= ranks:
        assert (found[-1] >= 0).any(axis=1).all(), "no rank goes without while another has two"
    ordered = np.append(costs, 0)[found]
    assert (np.diff(ordered, axis=2) <= 0).all(), "ranks do like work at like times"


def test_whales_are_balanced_within_a_window() -> None:
    rng = np.random.default_rng(0)
    costs = np.where(rng.random(64 * 8 * 8) < 0.04, rng.uniform(1.5, 3, 4096), rng.uniform(0.95, 1.1, 4096))
    plain = factor(costs.reshape(8, 8, 64).sum(axis=1))
    one = factor(np.stack([part[deal(part, 1, 64, 8)[0]].sum(axis=1) for part in costs.reshape(8, 512)]))
    eight = factor(costs[deal(costs, 8, 64, 8)].sum(axis=2))
    assert eight < 1.01 < one < plain


def test_costs() -> None:
    seg = Segments.from_lengths([[3, 1], [2]], 8)
    assert Cost(2.0, 0.5).blocks(seg).tolist() == [8 + 5, 4 + 2]
    assert Cost.of_model(7e9, 32, 4096) == Cost(42e9, 786432.0)
    rows = Segments.from_lengths([[100], [50, 50], [10] * 10, [70, 30]])
    found = Cost.calibrated(rows, Cost(3e-4, 2e-6).blocks(rows))
    assert (found.per_token, found.per_square) == pytest.approx((3e-4, 2e-6))
    negative = Cost.calibrated(rows, [1.0, 1.1, 1.2, 1.05])
    assert negative.per_token >= 0 <= negative.per_square
    with pytest.raises(InputError, match="calibration takes one time"):
        Cost.calibrated(rows, [1.0])
