"""optimal: never worse than best-fit, its bound never above the optimum, and the published figures on real histograms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.planning.bounds import dual_feasible, martello_toth, volume
from cloison.planning.optimal import optimal_patterns
from tests.planning.planning_oracles import fewest_blocks


def counts_of(path: Path, capacity: int) -> np.ndarray:
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64)
    counts = np.zeros(capacity + 1, np.int64)
    counts[table[:, 0]] = table[:, 1]
    return counts


@pytest.mark.parametrize(
    ("name", "capacity", "blocks"), [("wikipedia_bert_512", 512, 8_135_728), ("squad_1_1_384", 384, 40_195)]
)
def test_published_histograms(shared: Path, name: str, capacity: int, blocks: int) -> None:
    counts = counts_of(shared / "data" / "histograms" / f"{name}.csv", capacity)
    patterns, bound, _ = optimal_patterns(counts, capacity)
    assert patterns.num_blocks <= blocks and bound in (blocks, blocks - 1)
    assert np.array_equal(patterns.used(capacity), counts) and patterns.units().max() <= capacity


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=9), capacity=st.integers(20, 30))
def test_closed_form_bounds_hold(lengths: list[int], capacity: int) -> None:
    counts = np.bincount(lengths, minlength=capacity + 1)
    optimum = fewest_blocks(lengths, capacity)
    assert max(volume(counts, capacity), martello_toth(counts, capacity), dual_feasible(counts, capacity)) <= optimum
    assert martello_toth(counts, capacity) >= volume(counts, capacity)


def test_the_linear_bound_proves_what_volume_cannot() -> None:
    lengths = [4] * 30  # capacity 10 holds two: 15 blocks, volume says 12
    plan = cloison.plan(lengths, 10, policy="optimal")
    assert (len(plan), plan.lower_bound, plan.gap) == (15, 15, 0.0)


@pytest.mark.parametrize("capacity", [2048, 5000])
def test_uniform_lengths_are_nearly_optimal_also_on_a_grid(capacity: int) -> None:
    lengths = np.random.default_rng(0).integers(int(0.2 * capacity), capacity // 2 + 1, 200_000)
    plan = cloison.plan(lengths, capacity, policy="optimal")
    assert plan.gap < (1e-4 if capacity <= 2048 else 1.5e-3)
    assert len(cloison.plan(lengths, capacity, policy="best_fit")) > 1.05 * len(plan)


def test_auto_keeps_best_fit_where_it_is_near() -> None:
    rng = np.random.default_rng(0)
    tailed, narrow = rng.lognormal(5, 1.2, 20_000).astype(int).clip(1, 2048), rng.integers(100, 257, 20_000)
    assert cloison.plan(tailed, 2048, policy="auto") == cloison.plan(tailed, 2048, policy="best_fit")
    assert cloison.plan(narrow, 512, policy="auto") == cloison.plan(narrow, 512, policy="optimal")


def test_time_limits_end_and_zero_is_best_fit() -> None:
    lengths = np.random.default_rng(0).integers(409, 1025, 20_000)
    assert cloison.plan(lengths, 2048, policy="optimal", time_limit=0) == cloison.plan(lengths, 2048, policy="best_fit")
    hurried = cloison.plan(lengths, 2048, policy="optimal", time_limit=0.2)
    assert len(hurried) <= len(cloison.plan(lengths, 2048, policy="best_fit"))
    for policy in ("mixed", "auto"):
        assert cloison.plan(lengths, 2048, policy=policy, time_limit=0).ledger.samples_kept == 20_000
