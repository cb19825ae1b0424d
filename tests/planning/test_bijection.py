"""The keyed bijections: they are bijections, and their values are fixed for all time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.planning.bijection import derive, permutation, permute, shuffle_with


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**70), start=st.integers(0, 100))
def test_every_number_has_one_image(n: int, seed: int, start: int) -> None:
    key = derive(seed, 1)
    images = permutation(n, key)
    assert np.array_equal(np.sort(images), np.arange(n))
    start = min(start, n - 1)
    assert np.array_equal(permutation(n, key, start, n), images[start:])
    assert int(permute(start, n, key)) == images[start]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(257, 10**12), seed=st.integers(0, 99), part=st.floats(0, 1), size=st.integers(1, 300))
def test_a_range_of_images_is_that_of_its_numbers(n: int, seed: int, part: float, size: int) -> None:
    start = int(part * (n - 1))
    stop = min(start + size, n)
    key = derive(seed)
    assert permutation(n, key, start, stop).tolist() == [int(permute(i, n, key)) for i in range(start, stop)]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 700), seed=st.integers(0, 2**64 - 1), drawn=st.integers(1, 300))
def test_a_shuffle_is_fisher_yates_however_many_numbers_are_drawn_at_once(n: int, seed: int, drawn: int) -> None:
    key, mask = derive(seed), 2**64 - 1
    expected = list(range(n))
    for i in range(n - 1, 0, -1):
        value = (int(key) + i * 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        j = ((value ^ (value >> 31)) >> 32) * (i + 1) >> 32
        expected[i], expected[j] = expected[j], expected[i]
    values = np.arange(n, dtype=np.uint32)
    shuffle_with(values, key, np.empty(drawn, np.uint32))
    assert values.tolist() == expected


def test_values_never_change() -> None:
    assert [int(derive(seed)) for seed in (0, 1, 2**64, 2**64 + 1)] == GOLDEN_KEYS
    assert int(derive(5, 1, 2)) == GOLDEN_LABELLED
    assert permutation(10, derive(0)).tolist() == GOLDEN_SMALL
    assert permutation(1000, derive(7), 0, 8).tolist() == GOLDEN_LARGE
    assert permutation(10**12, derive(7), 0, 3).tolist() == GOLDEN_HUGE


def test_plans_never_change() -> None:
    lengths = [(i * i * 7919) % 97 + 1 for i in range(40)]
    plans = {policy: cloison.plan(lengths, 128, policy=policy, seed=3) for policy in ("look_ahead", "best_fit", "wrap")}
    assert {policy: (plan.num_blocks, plan.sample_ids[:8].tolist()) for policy, plan in plans.items()} == GOLDEN_PLANS
    assert [ids.tolist() for ids, _, _ in plans["best_fit"].epoch(2, pairing="dealt")][:2] == GOLDEN_EPOCH


def test_images_are_spread_evenly() -> None:
    n, keys = 300, 4000
    counts = np.bincount([int(permute(0, n, derive(seed))) for seed in range(keys)], minlength=n)
    chi2 = float(((counts - keys / n) ** 2 / (keys / n)).sum())
    assert abs(chi2 - (n - 1)) < 5 * np.sqrt(2 * (n - 1))
    neighbours = np.diff(permutation(10_000, derive(1)).astype(np.int64))
    assert abs(np.corrcoef(np.arange(neighbours.size), neighbours)[0, 1]) < 0.05


def test_small_sets_are_shuffled_evenly() -> None:
    keys = 24_000
    orders: dict[tuple[int, ...], int] = {}
    for seed in range(keys):
        order = tuple(permutation(4, derive(seed)).tolist())
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 24
    assert min(orders.values()) > 0.85 * keys / 24 and max(orders.values()) < 1.15 * keys / 24


GOLDEN_KEYS = [16294208416658607535, 10451216379200822465, 3069472533636442495, 9716232063330790915]
GOLDEN_LABELLED = 8778825771091667537
GOLDEN_SMALL = [0, 5, 8, 7, 9, 4, 1, 6, 2, 3]
GOLDEN_LARGE = [618, 794, 917, 53, 748, 38, 827, 728]
GOLDEN_HUGE = [567254316523, 504948482706, 748073027919]
GOLDEN_PLANS = {
    "look_ahead": (16, [10, 23, 31, 1, 24, 25, 38, 18]),
    "best_fit": (15, [9, 32, 8, 22, 5, 7, 38, 30]),
    "wrap": (15, [1, 26, 10, 10, 38, 38, 29, 21]),
}
GOLDEN_EPOCH = [[20, 16], [27, 11]]
