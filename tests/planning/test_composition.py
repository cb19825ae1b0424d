"""Composition: the numbers are what they say, beside what a random assignment gives."""

from __future__ import annotations

import numpy as np
import pytest

import cloison
from cloison.errors import InputError
from cloison.planning import compose


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


@pytest.mark.parametrize(("low", "high", "capacity"), [(0.2, 0.5, 512)])
def test_mixed_is_tight_where_a_look_ahead_is_not(low: float, high: float, capacity: int) -> None:
    lengths = np.random.default_rng(2).integers(int(low * capacity), int(high * capacity) + 1, 50_000)
    mixed, optimal, ahead = (cloison.plan(lengths, capacity, policy=p) for p in ("mixed", "optimal", "look_ahead"))
    assert mixed.utilization > optimal.utilization - 0.002 > ahead.utilization + 0.02
    assert mixed.composition.length_variance_share <= mixed.composition.random_variance_share + 0.06
    assert mixed.gap < 0.002 and mixed.bound_name == "linear_program"


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
