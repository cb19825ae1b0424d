"""The reported faults of packers, over-long samples, accounting and static shapes, each by its id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cloison
from cloison.errors import OverlongError
from cloison.planning import POLICIES
from tests.planning.planning_oracles import assert_whole, blocks_of

Cases = dict[str, dict[str, Any]]


def test_case_BFD_01(cases: Cases) -> None:
    case = cases["BFD-01"]
    for capacity in case["input"]["capacities"]:
        for policy in POLICIES:
            plan = cloison.plan(case["input"]["lengths"], capacity, policy=policy)
            assert_whole(plan, case["input"]["lengths"])
            assert len(plan) == case["expectation"]["min_packs"][str(capacity)]


def test_case_BFD_02(cases: Cases) -> None:
    case, expected = cases["BFD-02"]["input"], cases["BFD-02"]["expectation"]
    plan = cloison.plan(case["lengths"], case["capacity"], policy="best_fit")
    assert (len(plan), plan.lower_bound, plan.utilization) == (
        expected["packs"],
        expected["lower_bound"],
        expected["utilisation"],
    )
    assert plan.gap == 0.0


def test_case_BFD_04(cases: Cases) -> None:
    case, expected = cases["BFD-04"]["input"], cases["BFD-04"]["expectation"]
    with pytest.raises(OverlongError, match="No sample fits"):
        cloison.plan(case["lengths"], case["capacity"], overflow="drop")
    plan = cloison.plan(case["lengths"], case["capacity"], overflow="truncate")
    assert len(plan) == expected["truncate"]["packs"]
    assert (np.diff(plan.offsets) > 0).all()


def test_case_BFD_05(cases: Cases) -> None:
    case, expected = cases["BFD-05"]["input"], cases["BFD-05"]["expectation"]
    for policy in POLICIES:
        plan = cloison.plan(case["lengths"], case["capacity"], policy=policy, max_segments=case["max_segments"])
        assert np.diff(plan.offsets).tolist() == expected["segments_per_pack"]


def test_case_BFD_07(cases: Cases) -> None:
    case, expected = cases["BFD-07"]["input"], cases["BFD-07"]["expectation"]
    docs = case["docs"]
    plan = cloison.plan([len(doc) for doc in docs], case["capacity"], policy=case["policy"], order="input")
    rows = [
        [token for i, start, size in zip(*map(list, block), strict=True) for token in docs[i][start : start + size]]
        for block in plan
    ]
    assert rows == expected["rows"]
    assert blocks_of(plan) == expected["segments"]
    assert plan.ledger.entries["split"].indices.tolist() == [1] and plan.ledger.entries["continuations"].samples == 3
    assert plan.ledger.lost_tokens == 0


def test_case_BFD_08(cases: Cases) -> None:
    case, expected = cases["BFD-08"]["input"], cases["BFD-08"]["expectation"]
    plan = cloison.plan(iter(case["map_batches"]), case["capacity"], policy="wrap", order="input")
    assert plan.num_tokens == case["token_stream"]
    assert [sum(block) for block in blocks_of(plan)] == expected["rows"]
    assert plan.ledger.lost_tokens == expected["lost"]


def test_case_CMP_01(cases: Cases) -> None:
    case, expected = cases["CMP-01"]["input"], cases["CMP-01"]["expectation"]
    plan = cloison.plan(case["lengths"], case["capacity"], order="input", max_segments=case["max_segments"])
    rows = cloison.Segments.from_lengths(blocks_of(plan), capacity=case["capacity"])
    offsets = rows.cu_seqlens(static=case["max_segments"])
    assert offsets.tolist() == expected["cu_seqlens_static"] and str(offsets.dtype) == expected["dtype"]
    assert rows.width == expected["max_seqlen"]


def test_case_DDP_04(cases: Cases) -> None:
    samples = cases["DDP-04"]["input"]["samples"]
    lengths = np.random.default_rng(0).integers(1, 2000, samples).astype(np.int32)
    one, other = (cloison.plan(lengths, 4096, threads=threads) for threads in (1, 2))
    assert one == other, "built identically on every rank: no barrier waits on it"


def test_case_LEN_01(cases: Cases) -> None:
    case, expected = cases["LEN-01"]["input"], cases["LEN-01"]["expectation"]
    for policy in ("look_ahead", "best_fit", "in_order"):
        plan = cloison.plan([case["length_each"]] * case["samples"], case["capacity"], policy=policy)
        assert len(plan) == expected["len"] and len(list(plan)) == expected["yielded"]


def test_case_OVR_01(cases: Cases) -> None:
    case, expected = cases["OVR-01"]["input"], cases["OVR-01"]["expectation"]
    lengths, capacity = case["lengths"], case["capacity"]
    for overflow in ("drop", "truncate", "split"):
        plan = cloison.plan(lengths, capacity, policy="best_fit", overflow=overflow)
        assert plan.ledger.tokens_kept == expected[overflow]["kept_tokens"]
        assert plan.ledger.lost_tokens == expected[overflow]["lost_tokens"]
        assert len(plan) == expected[overflow]["min_packs"]
        if overflow == "drop":
            assert plan.ledger.entries["dropped"].indices.tolist() == expected[overflow]["dropped_indices"]
        if overflow == "split":
            assert sorted(plan.seq_lengths.tolist()) == sorted(expected[overflow]["pieces"])
            further = plan.starts > 0
            assert plan.sample_ids[further].tolist() == [0] and plan.starts[further].tolist() == [capacity]
            assert plan.ledger.entries["continuations"].indices.tolist() == [0]
    with pytest.raises(OverlongError, match=r"Sample 0 has 7 tokens \(1 of 4 samples"):
        cloison.plan(lengths, capacity)


def test_case_OVR_02(cases: Cases) -> None:
    case = cases["OVR-02"]["input"]
    length = case["prompt_tokens"] + case["answer_tokens"]
    with pytest.raises(OverlongError):
        cloison.plan([length], case["capacity"])
    kept = cloison.plan([length], case["capacity"], overflow="truncate")
    assert kept.seq_lengths.tolist() == [6] and kept.seq_lengths[0] - case["prompt_tokens"] == 1
    dropped = cloison.plan([length, 1], case["capacity"], overflow="drop")
    assert dropped.ledger.entries["dropped"].samples == 1
    assert blocks_of(cloison.plan([length], case["capacity"], overflow="split")) != [[6]], "only when asked for by name"


def test_case_OVR_04(cases: Cases) -> None:
    case = cases["OVR-04"]["input"]
    plan = cloison.plan(
        case["lengths"],
        case["capacity"],
        policy="best_fit",
        overflow=case["policy"],
        max_sample_tokens=case["max_sample_len"],
    )
    assert blocks_of(plan) == cases["OVR-04"]["expectation"]["packs_lengths"]


def test_case_OVR_05(cases: Cases) -> None:
    case, expected = cases["OVR-05"]["input"], cases["OVR-05"]["expectation"]["report"]
    plan = cloison.plan(case["lengths"], 100, overflow=case["policy"], max_sample_tokens=case["max_sample_len"])
    ledger = plan.ledger
    assert (ledger.tokens_in, ledger.tokens_kept, ledger.lost_tokens, ledger.lost_share) == (
        expected["tokens_in"],
        expected["tokens_kept"],
        expected["tokens_lost"],
        expected["lost_share"],
    )
    assert ledger.entries["truncated"].samples == expected["samples_cut"]


def test_case_PERF_01_holds_at_a_size_that_is_no_benchmark(cases: Cases) -> None:
    case = cases["PERF-01"]["input"]
    lengths = np.random.default_rng(0).lognormal(np.log(600) - 0.5, 1.0, 50_000).astype(int).clip(1, case["capacity"])
    plan = cloison.plan(lengths, case["capacity"])
    assert plan.utilization >= cases["PERF-01"]["expectation"]["utilisation_at_least"]


def test_case_PERF_02_a_plan_holds_indices_only(cases: Cases) -> None:
    assert cases["PERF-02"]["expectation"]["retokenised"] is False
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    lengths.setflags(write=False)
    plans = [cloison.plan(lengths, 128), cloison.plan(lengths, 256), cloison.plan(lengths, 128, seed=1)]
    assert all(plan.items.lengths is lengths for plan in plans), "what is planned is referred to, never copied or changed"
    assert plans[0] != plans[2]
