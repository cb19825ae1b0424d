"""Epochs: each sample once, in other company, any block by itself, the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError
from tests.planning.planning_oracles import assert_whole


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    policy=st.sampled_from(["look_ahead", "best_fit", "in_order", "wrap"]),
    pairing=st.sampled_from(["auto", "dealt", "planned"]),
    align=st.sampled_from([1, 4]),
    number=st.integers(0, 5),
)
def test_an_epoch_places_every_piece_once(lengths: list[int], policy: str, pairing: str, align: int, number: int) -> None:
    plan = cloison.plan(lengths, 32, policy=policy, overflow="split", align=align, max_segments=6)
    epoch = plan.epoch(number, pairing=pairing)
    whole = epoch.to_plan()
    assert_whole(whole, lengths)
    assert len(epoch) == len(whole)
    for block in range(len(epoch)):
        assert all(np.array_equal(a, b) for a, b in zip(epoch[block], whole[block], strict=True))


def test_epochs_regroup_about_as_a_random_draw_would() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 20_000)
    plan = cloison.plan(lengths, 512)
    epochs = [plan.epoch(e) for e in (1, 2)]
    assert {epoch.pairing for epoch in epochs} == {"dealt"}
    assert all(epoch.recurrence < epoch.random_recurrence + 0.005 for epoch in epochs)
    assert epochs[0].to_plan() != epochs[1].to_plan()
    assert len(epochs[0]) == len(plan) and epochs[0].to_plan().utilization == plan.utilization


def test_rare_lengths_are_planned_again_instead_of_meeting_again() -> None:
    lengths = np.random.default_rng(1).permutation(np.arange(1, 3001))
    plan = cloison.plan(lengths, 8192, policy="best_fit")
    dealt = plan.epoch(1, pairing="dealt")
    assert dealt.recurrence == 1.0, "one sample a length: the same blocks again"
    epoch = plan.epoch(1)
    assert epoch.pairing == "planned" and epoch.recurrence < epoch.random_recurrence + 0.005
    assert epoch.to_plan().utilization > plan.utilization - 0.02


def test_a_plan_is_its_own_epoch_0() -> None:
    plan = cloison.plan([3, 4, 5, 6], 9)
    assert plan.epoch(0).to_plan() is plan and plan.epoch(0).recurrence == 1.0
    for bad in (-1, 1.0, True):
        with pytest.raises(InputError, match="epoch"):
            plan.epoch(bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pairing"):
        plan.epoch(1, pairing="random")
    with pytest.raises(IndexError):
        plan.epoch(1)[len(plan.epoch(1))]


def test_case_SHF_01(cases) -> None:  # type: ignore[no-untyped-def]
    case = cases["SHF-01"]["input"]
    lengths = [case["length_each"]] * case["samples"]
    plan = cloison.plan(lengths, case["capacity"], seed=case["seed"])
    groups = [{frozenset(ids.tolist()) for ids, _, _ in plan.epoch(e)} for e in (0, 1)]
    assert groups[0] != groups[1]
    for epoch in (0, 1):
        assert sorted(i for ids, _, _ in plan.epoch(epoch) for i in ids.tolist()) == list(range(case["samples"]))
    script = (
        f"import cloison; p = cloison.plan({lengths}, {case['capacity']}, seed={case['seed']}, threads=1);"
        "print(p.epoch(1).to_plan().sample_ids.tobytes().hex())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert elsewhere == plan.epoch(1).to_plan().sample_ids.tobytes().hex()
