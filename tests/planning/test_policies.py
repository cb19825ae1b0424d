"""Every policy: each sample once, never over capacity, the same on every machine; and each against its oracle."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError, OverlongError
from cloison.planning import POLICIES, compose
from tests.planning.planning_oracles import (
    assert_whole,
    best_fit_decreasing,
    blocks_of,
    fewest_blocks,
    loads,
    look_ahead_blocks,
)

lists = st.lists(st.integers(0, 40), max_size=60)
policies = st.sampled_from(POLICIES)


@settings(max_examples=150, deadline=None)
@given(
    lengths=lists,
    capacity=st.integers(8, 48),
    policy=policies,
    order=st.sampled_from(["shuffled", "input"]),
    overflow=st.sampled_from(["truncate", "split"]),
    max_segments=st.none() | st.integers(1, 5),
    align=st.sampled_from([1, 1, 2, 8]),
    seed=st.integers(0, 3),
    ahead=st.integers(1, 20),
)
def test_every_sample_is_placed_once_whatever_the_arguments(
    lengths: list[int],
    capacity: int,
    policy: str,
    order: str,
    overflow: str,
    max_segments: int | None,
    align: int,
    seed: int,
    ahead: int,
) -> None:
    plan = cloison.plan(
        lengths,
        capacity,
        policy=policy,
        order=order,
        overflow=overflow,
        max_segments=max_segments,
        align=align,
        seed=seed,
        look_ahead=ahead,
    )
    assert_whole(plan, lengths)
    again = cloison.plan(
        np.array(lengths, np.uint16),
        capacity,
        policy=policy,
        order=order,
        overflow=overflow,
        max_segments=max_segments,
        align=align,
        seed=seed,
        look_ahead=ahead,
        threads=1,
    )
    assert plan == again


@settings(max_examples=60, deadline=None)
@given(lengths=lists, capacity=st.integers(10, 48), policy=policies.filter(lambda policy: policy != "wrap"))
def test_dropped_samples_are_in_the_ledger_and_in_no_block(lengths: list[int], capacity: int, policy: str) -> None:
    long = {i for i, length in enumerate(lengths) if length > capacity}
    if long and all(length > capacity or not length for length in lengths):
        with pytest.raises(OverlongError, match="No sample fits"):
            cloison.plan(lengths, capacity, policy=policy, overflow="drop")
        return
    plan = cloison.plan(lengths, capacity, policy=policy, overflow="drop")
    assert_whole(plan, lengths, lost=long)
    dropped = plan.ledger.entries.get("dropped")
    assert (set(dropped.indices.tolist()) if dropped else set()) == long


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), max_size=80), capacity=st.integers(40, 90))
def test_best_fit_gives_the_blocks_of_item_by_item_best_fit_decreasing(lengths: list[int], capacity: int) -> None:
    plan = cloison.plan(lengths, capacity, policy="best_fit")
    assert loads(blocks_of(plan)) == loads(best_fit_decreasing(lengths, capacity))


def test_best_fit_equals_the_oracle_on_wide_lengths() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 1, 1500).astype(int).clip(1, 2048).tolist()
    plan = cloison.plan(lengths, 2048, policy="best_fit")
    assert loads(blocks_of(plan)) == loads(best_fit_decreasing(lengths, 2048))


@settings(max_examples=100, deadline=None)
@given(
    lengths=lists,
    capacity=st.integers(40, 90),
    ahead=st.integers(1, 30),
    max_segments=st.none() | st.integers(1, 4),
)
def test_look_ahead_follows_its_rule(lengths: list[int], capacity: int, ahead: int, max_segments: int | None) -> None:
    plan = cloison.plan(lengths, capacity, policy="look_ahead", order="input", look_ahead=ahead, max_segments=max_segments)
    assert [ids.tolist() for ids, _, _ in plan] == look_ahead_blocks(lengths, capacity, ahead, max_segments)


@settings(max_examples=80, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=10), max_segments=st.none() | st.integers(1, 4))
def test_no_bound_beats_the_exact_optimum_and_no_plan_does(lengths: list[int], max_segments: int | None) -> None:
    optimum = fewest_blocks(lengths, 20, max_segments)
    for policy in POLICIES:
        plan = cloison.plan(lengths, 20, policy=policy, max_segments=max_segments)
        assert plan.lower_bound <= optimum
        assert plan.num_blocks >= (plan.lower_bound if policy == "wrap" else optimum)
        if policy == "optimal":
            assert plan.num_blocks <= cloison.plan(lengths, 20, policy="best_fit", max_segments=max_segments).num_blocks


def test_the_exact_optimum_oracle_is_exact() -> None:
    assert fewest_blocks([6, 5, 5, 4], 10) == 2
    assert fewest_blocks([4, 4, 4, 6, 6, 6], 10) == 3
    assert fewest_blocks([1] * 7, 10, max_segments=3) == 3


def test_look_ahead_begins_each_block_with_the_oldest_and_none_is_early_by_more_than_k() -> None:
    lengths = np.random.default_rng(2).lognormal(5, 1.2, 20_000).astype(int).clip(1, 4096)
    left = dict.fromkeys(range(lengths.size))
    for block in cloison.stream([range(length) for length in lengths], 4096, look_ahead=200):
        places = [place for place, _ in block]
        assert places[0] == next(iter(left)), "the oldest sample begins the block"
        for place in places:
            assert place < next(iter(left)) + 200, "no sample is early by more than K"
            del left[place]
    assert not left
    plan = cloison.plan(lengths, 4096, order="input", look_ahead=200)
    assert plan.utilization > 0.999
    found = compose(plan, 1)
    assert found.displacement_mean_steps < 2 and found.displacement_max_steps <= 2 * 200 // 10


def test_the_input_order_of_runs_of_like_lengths_is_nearly_kept_in_blocks_that_are_full() -> None:
    draw = np.random.default_rng(3)
    kinds = ((4200, 6500, 25), (300, 2500, 60), (50, 900, 60))
    runs = [draw.integers(low, high, draw.integers(5, most)) for low, high, most in kinds * 200]
    plan = cloison.plan(np.concatenate(runs), 8192, order="input")
    found = compose(plan, 1)
    assert plan.gap < 1e-3 and found.displacement_mean_steps <= 16


@pytest.mark.parametrize(
    ("median", "sigma", "capacity", "gap"), [(150, 0.4, 512, 5e-4), (350, 0.9, 2048, 5e-4), (700, 0.5, 2048, 3e-3)]
)
def test_look_ahead_fills_blocks_of_few_samples_too_and_mixes_like_a_random_draw(
    median: int, sigma: float, capacity: int, gap: float
) -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(median), sigma, 50_000).astype(int).clip(1, capacity)
    plan = cloison.plan(lengths, capacity)
    found = plan.composition
    assert plan.gap < gap and found.length_variance_share < found.random_variance_share + 0.06


def test_input_order_is_kept() -> None:
    lengths = [5, 3, 9, 1, 1, 1, 8]
    assert [ids.tolist() for ids, _, _ in cloison.plan(lengths, 10, policy="in_order", order="input")] == [
        [0, 1],
        [2, 3],
        [4, 5, 6],
    ]
    tight = cloison.plan(lengths, 10, policy="best_fit", order="input")
    earliest = [int(ids.min()) for ids, _, _ in tight]
    assert earliest == sorted(earliest)


def test_pieces_of_a_split_sample_follow_it_in_input_order() -> None:
    plan = cloison.plan([3, 25, 4], 10, policy="in_order", order="input", overflow="split")
    assert plan.sample_ids.tolist() == [0, 1, 1, 1, 2]
    assert plan.starts.tolist() == [0, 0, 10, 20, 0]
    assert plan.seq_lengths.tolist() == [3, 10, 10, 5, 4]
    assert plan.ledger.entries["continuations"].indices.tolist() == [1, 1]


@pytest.mark.parametrize("policy", ["best_fit", "look_ahead"])
def test_threads_and_chunks_do_not_change_the_plan(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(3).integers(0, 300, 30_000)
    plain = cloison.plan(lengths, 256, policy=policy, overflow="split", threads=1)
    monkeypatch.setattr("cloison.planning.intake._THREAD_SAMPLES", 5000)
    monkeypatch.setattr("cloison.planning.intake._CHUNK", 777)
    monkeypatch.setattr("cloison.planning.patterns._CHUNK", 1234)
    assert plain == cloison.plan(lengths, 256, policy=policy, overflow="split", threads=3)


def test_lengths_may_come_as_chunks_or_one_by_one_or_from_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lengths = np.random.default_rng(4).integers(1, 70_000, 1000)
    plan = cloison.plan(lengths, 70_000)
    assert plan == cloison.plan(iter(lengths.tolist()), 70_000)
    assert plan == cloison.plan((lengths[i : i + 100] for i in range(0, 1000, 100)), 70_000)
    np.save(tmp_path / "lengths.npy", lengths.astype(np.int32))
    assert plan == cloison.plan(np.load(tmp_path / "lengths.npy", mmap_mode="r"), 70_000)
    assert cloison.plan(iter([]), 5).num_blocks == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_no_samples_no_blocks(policy: str) -> None:
    for lengths in ([], [0, 0]):
        plan = cloison.plan(lengths, 10, policy=policy)
        assert (plan.num_blocks, plan.lower_bound, plan.gap, plan.utilization) == (0, 0, 0.0, 1.0)
        assert plan.ledger.samples_kept == 0
        assert plan.composition.length_variance_share is None


@pytest.mark.parametrize(
    ("lengths", "capacity", "match"),
    [
        ([3, -1, -2], 10, "Sample 1 has -1"),
        ([1.5, 2.0], 10, "float64"),
        ([float("nan")], 10, "float64"),
        ([2**31], 2**20, "int32"),
        ([True, False], 10, "bool"),
        (["a"], 10, "<U1"),
        ([[1, 2], [3]], 10, "flat list"),
        ([[1, 2], [3, 4]], 10, r"\[2, 2\]"),
        (7, 10, "A int came"),
        ([1], 0, "capacity is an integer of at least 1"),
        ([1], 10.0, "capacity"),
        ([1], 2**28, "134,217,728"),
        (iter([[1.5]]), 10, "float64"),
        (iter([np.array([3, -1])]), 10, "Sample 1 has -1"),
    ],
)
def test_bad_input_is_refused_by_name(lengths: object, capacity: int, match: str) -> None:
    with pytest.raises(InputError, match=match):
        cloison.plan(lengths, capacity)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", "worst_fit"),
        ("order", "random"),
        ("overflow", "ignore"),
        ("seed", -1),
        ("look_ahead", 0),
        ("max_segments", 0),
        ("align", 0),
        ("align", 64),
        ("max_sample_tokens", 0),
        ("time_limit", -1),
        ("time_limit", float("nan")),
        ("threads", 0),
    ],
)
def test_bad_arguments_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        cloison.plan([1, 2], 10, **{name: value})  # type: ignore[arg-type]


def test_an_overlong_sample_is_refused_with_its_number_the_limit_and_the_way_out() -> None:
    with pytest.raises(OverlongError) as caught:
        cloison.plan([100, 5012, 7000, 4097], 4096)
    assert caught.value.asked == "every sample must fit a block: capacity is 4,096."
    assert caught.value.found == (
        "Sample 1 has 5,012 tokens, samples 2, 3 too (3 of 4 samples are longer; the longest has 7,000)."
    )
    assert 'overflow="split", "truncate" or "drop"' in caught.value.remedy


def test_hundreds_of_thousands_of_distinct_lengths_plan() -> None:
    lengths = np.arange(1, 400_001, dtype=np.int32)
    plan = cloison.plan(lengths, 400_000, policy="best_fit")
    assert plan.num_blocks == 200_001 or plan.gap < 1e-3
    assert np.array_equal(np.sort(plan.sample_ids), np.arange(400_000))


def test_ids_beyond_uint32_are_int64() -> None:
    from dataclasses import replace

    from cloison.planning.intake import read_items
    from cloison.planning.patterns import fill

    items = read_items([3, 4, 5], 10)
    huge = replace(items, extra_samples=np.broadcast_to(np.zeros(1, np.int64), 2**32))
    assert items.id_type is np.uint32 and huge.id_type is np.int64
    patterns = cloison.plan([3, 4, 5], 10, policy="best_fit").patterns

    class Wide:
        def __getattr__(self, name: str) -> object:
            return np.int64 if name == "id_type" else getattr(items, name)

    offsets, ids = fill(patterns, Wide(), 0, True)  # type: ignore[arg-type]
    narrow_offsets, narrow_ids = fill(patterns, items, 0, True)
    assert ids.dtype == np.int64 and ids.tolist() == narrow_ids.tolist() and offsets.tolist() == narrow_offsets.tolist()


@given(lengths=lists, capacity=st.integers(10, 48), align=st.sampled_from([1, 4]), most=st.sampled_from([None, 2]))
def test_wrap_tells_the_longer_than_a_block_from_those_cut_at_its_end(
    lengths: list[int], capacity: int, align: int, most: int | None
) -> None:
    plan = cloison.plan(lengths, capacity, policy="wrap", align=align, max_segments=most)
    named = {kind: entry.indices.tolist() for kind, entry in plan.ledger.entries.items()}
    longer = [index for index, length in enumerate(lengths) if length > capacity // align * align]
    cut = np.unique(plan.sample_ids[plan.starts > 0]).tolist()
    assert named.get("split", []) == longer
    assert named.get("cut_at_edges", []) == sorted(set(cut) - set(longer)) and set(longer) <= set(cut)
    assert len(named.get("continuations", [])) == plan.num_segments - np.unique(plan.sample_ids).size


def test_plans_travel_to_other_processes() -> None:
    plan = cloison.plan([9, 3, 12, 1, 5, 7], 10, overflow="drop")
    for whole in (plan, plan.epoch(1).plan):
        again = pickle.loads(pickle.dumps(whole))
        assert [ids.tolist() for ids, _, _ in again] == [ids.tolist() for ids, _, _ in whole] and again.ledger == whole.ledger
