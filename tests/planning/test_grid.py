"""grid, program and mixing: rows lose little, patterns of rows are patterns of lengths, bounds hold, the share comes nearer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.diving import as_columns
from cloison.planning.grid import expanded, gathered
from cloison.planning.linear_program import interpolated_bound
from cloison.planning.mixed import MOST_GIVEN, variance_excess
from cloison.planning.mixing import mixed_relaxation
from cloison.planning.optimal import optimal_patterns
from cloison.planning.program import program_of, rounded


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    cells=st.integers(20, 400),
    rows=st.integers(1, 40),
)
def test_rows_round_up_and_what_is_left_is_the_rest(lengths: list[int], cells: int, rows: int) -> None:
    counts = np.bincount(lengths, minlength=301)
    grid = gathered(counts, 300, cells, rows)
    assert grid.lengths.size <= rows and grid.counts.sum() == len(lengths) and (np.diff(grid.lengths) > 0).all()
    needed, held = grid.present * grid.cells, grid.lengths[grid.row_of] * 300
    assert (held >= needed).all() and (grid.least[grid.row_of] * 300 <= needed).all()
    assert grid.exact == (grid.cells == 300 and np.array_equal(grid.lengths, grid.present))
    blocks = best_fit_patterns(grid.histogram(), grid.cells)
    columns = as_columns(blocks, grid.lengths, grid.cells)
    times = blocks.counts // 2
    patterns, rest = expanded(grid, columns, times)
    assert np.array_equal(patterns.used(300) + rest, counts)
    assert patterns.num_blocks == times.sum() and patterns.units().max(initial=0) <= 300


def test_short_and_frequent_lengths_keep_rows_of_their_own() -> None:
    counts = np.zeros(1001, np.int64)
    counts[1:51], counts[51:] = 1000, 1
    grid = gathered(counts, 1000, 1000, 100)
    assert np.array_equal(grid.lengths[:49], np.arange(1, 50)) and grid.lengths.size <= 100


@pytest.mark.parametrize("max_segments", [4, 9])
def test_the_bound_of_a_grid_holds_and_a_plan_is_near_it(max_segments: int) -> None:
    """Exact on 512 units, where the same lengths on a grid of few rows must prove no more."""
    lengths = np.random.default_rng(3).lognormal(np.log(40), 1.0, 4000).astype(int).clip(1, 512)
    counts = np.bincount(lengths, minlength=513)
    exact, bound, _ = optimal_patterns(counts, 512, max_segments)
    wide = np.zeros(16 * 512 + 1, np.int64)
    wide[::16] = counts
    coarse = program_of(wide, 16 * 512, max_segments, None)
    found = rounded(coarse, coarse.relaxed, None, None)
    assert bound - 1 <= coarse.bound <= exact.num_blocks <= found.num_blocks <= 1.02 * bound
    assert np.array_equal(found.used(16 * 512), wide) and found.segments().max() <= max_segments


def test_interpolated_prices_prove_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.planning import linear_program

    lengths = np.random.default_rng(0).integers(2000, 5001, 3000)
    counts = np.bincount(lengths, minlength=10_001)
    present = np.flatnonzero(counts)
    best = best_fit_patterns(counts, 10_000).num_blocks
    plain = interpolated_bound(present, counts[present], 10_000, present << 16)
    monkeypatch.setattr(linear_program, "_BOUND_WORK", 1_000_000)
    monkeypatch.setattr(linear_program, "_COARSEST", 8)
    coarse = interpolated_bound(present, counts[present], 10_000, present << 16)
    assert -(-lengths.sum() // 10_000) == plain and 0.99 * plain <= coarse <= plain <= best
    monkeypatch.setattr(linear_program, "_COARSEST", 8192)
    assert interpolated_bound(present, counts[present], 10_000, present << 16) == 0, "too much work"


@pytest.mark.parametrize(("low", "high", "rises"), [(102, 257, True), (60, 200, False)])
def test_the_program_brings_the_variance_share_near_to_random(low: int, high: int, rises: bool) -> None:
    lengths = np.random.default_rng(1).integers(low, high, 60_000)
    program = program_of(np.bincount(lengths, minlength=513), 512, None, None)
    plain = rounded(program, program.relaxed, None, None)
    mixed = rounded(program, mixed_relaxation(program, None), None, None)
    before, after = variance_excess(plain), variance_excess(mixed)
    assert (before < -0.1) == rises and abs(after) < 0.06 and abs(after) < abs(before)
    assert mixed.num_blocks <= plain.num_blocks * (1 + MOST_GIVEN)
    assert np.array_equal(mixed.used(512), plain.used(512))


def test_mixed_keeps_to_a_limit_of_segments() -> None:
    lengths = np.random.default_rng(1).integers(40, 250, 20_000)
    found, best = (cloison.plan(lengths, 512, policy=policy, max_segments=3) for policy in ("mixed", "optimal"))
    assert len(found) <= len(best) * (1 + MOST_GIVEN) and np.diff(found.offsets).max() <= 3
    shares = found.composition
    assert abs(shares.length_variance_share - shares.random_variance_share) < 0.06
