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
    assert patterns.num_blocks <= blocks and patterns.num_blocks == bound, "proven optimal"
    assert np.array_equal(patterns.used(capacity), counts) and patterns.units().max() <= capacity


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=10), max_segments=st.none() | st.integers(1, 4), data=st.data()
)
def test_small_instances_are_solved_exactly(lengths: list[int], max_segments: int | None, data: st.DataObject) -> None:
    capacity = data.draw(st.integers(20, 40))
    plan = cloison.plan(lengths, capacity, policy="optimal", max_segments=max_segments)
    optimum = fewest_blocks(lengths, capacity, max_segments)
    assert plan.lower_bound <= optimum == len(plan)


def drawn(kind: str, capacity: int, samples: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "bimodal":
        means = np.where(rng.random(samples) < 0.5, 0.3, 0.55)
        return rng.normal(means * capacity, 0.04 * capacity).astype(int).clip(1, capacity)
    if kind == "lognormal":
        return rng.lognormal(np.log(0.3 * capacity), 0.45, samples).astype(int).clip(1, capacity)
    low, high = {"triplets": (0.25, 0.5), "uniform": (0.2, 0.5), "all": (0.0, 1.0)}[kind]
    return rng.integers(max(int(low * capacity), 1), int(high * capacity) + 1, samples)


@pytest.mark.parametrize("kind", ["uniform", "triplets", "all", "lognormal", "bimodal"])
@pytest.mark.parametrize(("capacity", "samples"), [(100, 80), (384, 700), (512, 1800)])
def test_plans_of_many_kinds_are_proven_optimal_and_no_other_policy_is_better(kind: str, capacity: int, samples: int) -> None:
    lengths = drawn(kind, capacity, samples, seed=samples)
    plan = cloison.plan(lengths, capacity, policy="optimal")
    assert plan.gap == 0.0
    assert np.array_equal(np.sort(plan.seq_lengths), np.sort(lengths))
    for other in ("best_fit", "look_ahead", "in_order"):
        assert len(cloison.plan(lengths, capacity, policy=other)) >= len(plan)


def test_where_there_is_no_proof_a_look_ahead_that_does_better_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.planning import planner
    from cloison.planning.best_fit import best_fit_patterns

    def as_best_fit(counts: np.ndarray, units: int, *_: object) -> tuple[object, int, str]:
        return best_fit_patterns(counts, units), 1, "none"

    monkeypatch.setattr(planner, "optimal_patterns", as_best_fit)
    lengths = drawn("uniform", 512, 3000, seed=0)
    ahead, tight, found = (cloison.plan(lengths, 512, policy=policy) for policy in ("look_ahead", "best_fit", "optimal"))
    assert len(ahead) < len(tight) and len(found) <= len(ahead)
    assert np.array_equal(np.sort(found.sample_ids), np.arange(3000)) and (found.patterns.units() <= 512).all()


@pytest.mark.parametrize("max_segments", [2, 3, 5])
def test_a_limit_of_segments_is_met_at_the_bound(max_segments: int) -> None:
    lengths = drawn("lognormal", 1024, 3000, seed=1)
    plan = cloison.plan(lengths, 1024, policy="optimal", max_segments=max_segments)
    assert plan.gap <= 0.001 and np.diff(plan.offsets).max() <= max_segments


def test_a_limit_of_segments_that_binds_on_a_heavy_tail_puts_long_with_short() -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(90), 0.9, 20_000).astype(int).clip(1, 512)
    found = {
        policy: cloison.plan(lengths, 512, policy=policy, max_segments=4) for policy in ("optimal", "look_ahead", "best_fit")
    }
    assert found["optimal"].gap < 0.01 and len(found["optimal"]) < len(found["look_ahead"]) < len(found["best_fit"])
    assert np.diff(found["optimal"].offsets).max() <= 4


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
