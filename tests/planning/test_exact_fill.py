"""exact_fill and regroup: every item once, nothing over capacity, and tight where they say so."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import lower_bound
from cloison.planning.exact_fill import exact_fill_patterns, joined
from cloison.planning.patterns import NO_PATTERNS, Patterns
from cloison.planning.regroup import as_patterns, regrouped

lists = st.lists(st.integers(1, 40), max_size=50)


def whole(patterns: Patterns, counts: np.ndarray, units: int, max_segments: int | None = None) -> bool:
    return (
        np.array_equal(patterns.used(units), counts)
        and bool((patterns.counts > 0).all())
        and int(patterns.units().max(initial=0)) <= units
        and (max_segments is None or int(patterns.segments().max(initial=0)) <= max_segments)
    )


@settings(max_examples=150, deadline=None)
@given(
    begun=lists,
    rest=lists,
    units=st.integers(40, 130),
    max_segments=st.none() | st.integers(1, 5),
    slack=st.integers(0, 30),
)
def test_every_item_is_placed_once_also_into_begun_blocks(
    begun: list[int], rest: list[int], units: int, max_segments: int | None, slack: int
) -> None:
    first, more = (np.bincount(np.array(part, np.int64), minlength=units + 1) for part in (begun, rest))
    into = best_fit_patterns(first, units, max_segments)
    found = exact_fill_patterns(more, units, max_segments, into=into, slack=slack)
    assert whole(found, first + more, units, max_segments)
    assert found.num_blocks >= into.num_blocks
    again = regrouped(found, units, max_segments, 0, 12)
    assert whole(again, first + more, units, max_segments) and again.num_blocks <= found.num_blocks


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9), units=st.integers(30, 70))
def test_the_first_block_has_the_longest_item_and_the_best_sum_with_it(lengths: list[int], units: int) -> None:
    counts = np.bincount(lengths, minlength=units + 1)
    found = exact_fill_patterns(counts, units)
    lengths.remove(longest := max(lengths))
    sums = {longest + sum(part) for size in range(len(lengths) + 1) for part in combinations(lengths, size)}
    assert found.classes[0] == longest
    assert found.units()[0] == max(value for value in sums if value <= units)


def test_more_lengths_than_it_looks_at() -> None:
    counts = np.zeros(60_001, np.int64)
    counts[np.random.default_rng(0).integers(1, 20_000, 4000)] += 1
    assert whole(exact_fill_patterns(counts, 60_000), counts, 60_000)


def test_blocks_of_five_meet_the_bound_where_best_fit_does_not() -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(180), 0.35, 1300).astype(int).clip(60, 520)
    counts = np.bincount(lengths, minlength=1025)
    bound, _ = lower_bound(counts, 1024)
    assert best_fit_patterns(counts, 1024).num_blocks > bound
    assert exact_fill_patterns(counts, 1024).num_blocks == bound


@pytest.mark.parametrize("times", [1, 3000])
def test_regrouping_saves_a_block_and_leaves_the_many_others(times: int) -> None:
    full = Patterns(np.array([times]), np.array([0, 2]), np.array([6, 4], np.int32), np.array([1, 1], np.int32))
    loose = as_patterns([np.array(block, np.int32) for block in ([5, 3], [5, 2], [4, 4], [3, 3], [3, 1])])
    begun = joined(full, loose)
    found = regrouped(begun, 10, None, times + 4, 50)
    assert begun.num_blocks == times + 5 and found.num_blocks == times + 4
    assert whole(found, begun.used(10), 10)


def test_blocks_become_patterns_and_none_become_none() -> None:
    found = as_patterns([np.array([2, 5, 2], np.int32), np.array([5, 2, 2], np.int32), np.array([7], np.int32)])
    assert found.counts.tolist() == [2, 1]
    assert found.classes.tolist() == [5, 2, 7] and found.repeats.tolist() == [1, 2, 1]
    assert as_patterns([]).num_blocks == exact_fill_patterns(np.zeros(5, np.int64), 4).num_blocks == NO_PATTERNS.num_blocks == 0
