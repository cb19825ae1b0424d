"""Composition: the numbers are what they say, beside what a random assignment gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError
from cloison.planning import compose
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.mixed import variance_excess
from cloison.planning.remix import remixed


def lognormal(samples: int, median: float, sigma: float, capacity: int) -> np.ndarray:
    return np.random.default_rng(0).lognormal(np.log(median), sigma, samples).astype(int).clip(1, capacity)


def test_the_variance_share_is_that_of_a_plain_analysis_of_variance() -> None:
    plan = cloison.plan(lognormal(3000, 200, 0.9, 2048), 2048)
    logs = np.log(plan.seq_lengths)
    blocks = np.split(logs, plan.offsets[1:-1])
    between = sum(block.size * (block.mean() - logs.mean()) ** 2 for block in blocks)
    share = between / ((logs - logs.mean()) ** 2).sum()
    assert plan.composition.length_variance_share == pytest.approx(share)


def test_the_random_share_is_that_of_a_random_assignment() -> None:
    plan = cloison.plan(lognormal(5000, 200, 0.9, 2048), 2048)
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(20):
        logs = rng.permutation(np.log(plan.seq_lengths))
        blocks = np.split(logs, plan.offsets[1:-1])
        between = sum(block.size * (block.mean() - logs.mean()) ** 2 for block in blocks)
        shares.append(between / ((logs - logs.mean()) ** 2).sum())
    assert plan.composition.random_variance_share == pytest.approx(np.mean(shares), rel=0.02)


def test_best_fit_groups_like_lengths_and_look_ahead_and_mixed_do_not() -> None:
    lengths = lognormal(40_000, 500, 1.1, 8192)
    shares = {}
    for policy in ("best_fit", "look_ahead", "mixed"):
        found = cloison.plan(lengths, 8192, policy=policy).composition
        shares[policy] = found.length_variance_share - found.random_variance_share
    assert shares["best_fit"] > 0.5 and abs(shares["look_ahead"]) < 0.06 and abs(shares["mixed"]) < 0.06


def narrow(kind: str) -> tuple[np.ndarray, int]:
    rng = np.random.default_rng(2)
    if kind == "uniform":
        return rng.integers(102, 257, 50_000), 512
    if kind == "unimodal":
        return rng.lognormal(np.log(700), 0.5, 3000).astype(int).clip(1, 2048), 2048
    return rng.lognormal(np.log(180), 0.35, 1300).astype(int).clip(60, 520), 1024  # "questions": five or six in a block


@pytest.mark.parametrize("kind", ["uniform", "unimodal", "questions"])
def test_mixed_is_as_tight_as_the_best_and_as_mixed_as_a_random_draw_on_narrow_lengths(kind: str) -> None:
    lengths, capacity = narrow(kind)
    mixed, optimal = (cloison.plan(lengths, capacity, policy=p) for p in ("mixed", "optimal"))
    assert mixed.utilization >= optimal.utilization * 0.998
    off, tight = (abs(p.composition.length_variance_share - p.composition.random_variance_share) for p in (mixed, optimal))
    assert off <= 0.06 and off < tight
    assert np.array_equal(np.sort(mixed.sample_ids), np.arange(lengths.size))


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    units=st.integers(40, 130),
    max_segments=st.none() | st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_mixing_again_keeps_every_item_the_blocks_and_the_limits_and_only_comes_nearer(
    lengths: list[int], units: int, max_segments: int | None, seed: int
) -> None:
    counts = np.bincount(lengths, minlength=units + 1)
    before = best_fit_patterns(counts, units, max_segments)
    after = remixed(before, units, max_segments, seed)
    assert np.array_equal(after.used(units), counts) and after.num_blocks == before.num_blocks
    assert after.units().max() <= units and (max_segments is None or after.segments().max() <= max_segments)
    assert abs(variance_excess(after)) <= abs(variance_excess(before)) + 1e-9
    again = remixed(before, units, max_segments, seed)
    assert np.array_equal(again.classes, after.classes) and np.array_equal(again.counts, after.counts)


def test_what_patterns_say_of_the_variance_is_what_the_plan_says() -> None:
    plan = cloison.plan(lognormal(5000, 300, 0.8, 2048), 2048, policy="best_fit")
    found = plan.composition
    assert variance_excess(plan.patterns) == pytest.approx(found.length_variance_share - found.random_variance_share)


def test_steps_targets_sources_and_displacement() -> None:
    lengths = lognormal(6000, 200, 0.8, 2048)
    plan = cloison.plan(lengths, 2048)
    sources = np.where(np.arange(6000) < 2000, "a", "b")
    found = compose(plan, 8, targets=lengths // 2, sources=sources)
    steps = len(plan) // 8
    samples = np.diff(plan.offsets)[: steps * 8].reshape(steps, 8).sum(axis=1)
    assert found.samples_per_step == samples.mean() and found.samples_per_step_variation == samples.std() / samples.mean()
    targets = np.add.reduceat((lengths // 2)[plan.sample_ids], plan.offsets[:-1])[: steps * 8].reshape(steps, 8).sum(axis=1)
    assert found.targets_per_step == pytest.approx(targets.mean())
    assert found.displacement_mean_steps is not None and found.displacement_mean_steps * 8 < 16
    assert found.source_distance == pytest.approx(found.random_source_distance, abs=0.03)
    ordered = compose(cloison.plan(lengths, 2048, order="input"), 8, sources=sources)
    assert ordered.source_distance > 5 * ordered.random_source_distance, "data sorted by source stays sorted in input order"
    assert compose(cloison.plan(lengths, 2048, policy="best_fit"), 8).displacement_mean_steps is None


def test_lag_1_correlation_sees_sorted_data() -> None:
    lengths = np.sort(lognormal(4000, 200, 0.8, 2048))
    assert cloison.plan(lengths, 2048, policy="in_order", order="input").composition.lag1_length_correlation > 0.95
    assert abs(cloison.plan(lengths, 2048, policy="in_order").composition.lag1_length_correlation) < 0.1


def test_what_compose_refuses() -> None:
    plan = cloison.plan([1, 2, 3], 4)
    for arguments in ({"blocks_per_step": 0}, {"targets": [1]}, {"blocks_per_step": 1, "sources": ["a"]}):
        with pytest.raises(InputError):
            compose(plan, **arguments)  # type: ignore[arg-type]
