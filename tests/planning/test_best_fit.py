"""best_fit on histograms: the blocks of item-by-item best fit at any size and shape, and bounds by their definitions."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import dual_feasible, martello_toth
from tests.planning.planning_oracles import assert_whole


def rooms_left(lengths: list[int], capacity: int) -> Counter[int]:
    """What item-by-item best-fit-decreasing leaves free, block by block."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = bisect_left(rooms, length)
        insort(rooms, (rooms.pop(at) if at < len(rooms) else capacity) - length)
    return Counter(rooms)


def assert_item_by_item(lengths: np.ndarray, capacity: int) -> None:
    counts = np.bincount(lengths, minlength=capacity + 1)
    patterns = best_fit_patterns(counts, capacity)
    assert np.array_equal(patterns.used(capacity), counts)
    made: Counter[int] = Counter()
    for room, blocks in zip((capacity - patterns.units()).tolist(), patterns.counts.tolist(), strict=True):
        made[room] += blocks
    assert made == rooms_left(lengths.tolist(), capacity)


def test_more_events_than_expected_change_nothing() -> None:
    """Each short length visits nearly every block: a dozen events a distinct length, where about three are expected."""
    long = np.arange(4001, 6401)
    short = [1900, 900, 450, 220, 110, 50, 23, 11, 5, 2, 1]
    lengths = np.concatenate([long, *(np.full(2400 * 2, length) for length in short)])
    assert_item_by_item(lengths, 8000)


@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(65, 5000),
    shape=st.sampled_from(["heavy", "uniform", "few"]),
    size=st.integers(0, 1500),
    seed=st.integers(0, 99),
)
def test_blocks_are_those_of_item_by_item_best_fit(capacity: int, shape: str, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = {
        "heavy": lambda: random.lognormal(np.log(0.1 * capacity), 1.0, size).astype(np.int64).clip(1, capacity),
        "uniform": lambda: random.integers(1, capacity + 1, size),
        "few": lambda: random.choice(random.integers(1, capacity + 1, 5), size),
    }[shape]()
    assert_item_by_item(lengths, capacity)


@pytest.mark.parametrize("policy", ["best_fit", "look_ahead"])
def test_lengths_of_any_integer_type_and_layout_give_one_plan(policy: str) -> None:
    lengths = np.random.default_rng(8).integers(0, 120, 20_000)
    plan = cloison.plan(lengths, 127, policy=policy)
    assert_whole(plan, lengths)
    frozen = lengths.astype(np.int16)
    frozen.setflags(write=False)
    spaced = np.zeros((lengths.size, 2), np.int32)
    spaced[:, 0] = lengths
    forms = [lengths.astype(kind) for kind in ("i1", "u1", "u2", ">i4", "u8")]
    for form in [*forms, frozen, spaced[:, 0], np.frombuffer(b"\0" + lengths.astype("<i4").tobytes(), "<i4", offset=1)]:
        assert plan == cloison.plan(form, 127, policy=policy)


def test_unsigned_lengths_beyond_int64_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="Sample 2 has 18,446,744,073,709,551,615"):
        cloison.plan(np.array([1, 2, 2**64 - 1], np.uint64), 10)


@pytest.mark.parametrize(("capacity", "align", "most"), [(2**21, 1, 2**21), (2**31 - 1, 2**11, 2**31 - 1)])
def test_distinct_lengths_by_the_ten_thousands_in_huge_blocks(capacity: int, align: int, most: int) -> None:
    lengths = np.unique(np.random.default_rng(1).integers(1, most // align * align, 30_000))
    plan = cloison.plan(lengths, capacity, align=align, policy="best_fit")
    assert_whole(plan, lengths)
    assert plan.gap < 1e-3


def test_a_capacity_too_large_for_its_unit_says_which_align_is_enough() -> None:
    with pytest.raises(InputError, match=r"2,147,483,647\. Pass align=16 or more"):
        cloison.plan([5, 2**31 - 1], 2**31 - 1, policy="best_fit")


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), max_size=30), units=st.integers(30, 60))
def test_bounds_are_those_of_their_definitions(lengths: list[int], units: int) -> None:
    counts = np.bincount(lengths, minlength=units + 1).astype(np.int64)
    alone = 0
    for threshold in range(units // 2 + 1):
        first = [length for length in lengths if length > units - threshold]
        second = [length for length in lengths if units / 2 < length <= units - threshold]
        third = [length for length in lengths if threshold <= length <= units / 2]
        room = len(second) * units - sum(second)
        alone = max(alone, len(first) + len(second) + max(0, -((room - sum(third)) // units)))
    assert martello_toth(counts, units) == alone
    best = 0
    for k in range(1, 17):
        weights = [k * x if x * (k + 1) % units == 0 else x * (k + 1) // units * units for x in lengths]
        best = max(best, -(-sum(weights) // (k * units)))
    assert dual_feasible(counts, units) == best
