"""balance: every block once, as many steps on every rank, and the dearest rank near the mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError
from cloison.planning import Cost, calibrate


@settings(max_examples=80, deadline=None)
@given(
    blocks=st.integers(0, 60),
    ranks=st.integers(1, 5),
    per_step=st.integers(1, 4),
    window=st.integers(1, 4),
    more=st.integers(0, 2),
    remainder=st.sampled_from(["fill", "drop"]),
)
def test_every_block_is_dealt_once(blocks: int, ranks: int, per_step: int, window: int, more: int, remainder: str) -> None:
    lengths = np.random.default_rng(blocks).integers(5, 9, blocks)
    plan = cloison.plan(lengths, 9)
    assert len(plan) == blocks
    if remainder == "drop" and 0 < blocks < ranks * per_step:
        with pytest.raises(InputError, match="no step would be left"):
            cloison.balance(plan, ranks, per_step, window=window, remainder=remainder)
        return
    dealt = cloison.balance(plan, ranks, per_step, window=window, most_blocks=per_step + more, remainder=remainder)
    assert dealt.blocks.shape[1:] == (ranks, per_step + more)
    real = dealt.blocks[dealt.blocks >= 0]
    assert sorted([*real.tolist(), *dealt.left_out.tolist()]) == list(range(blocks))
    assert dealt.fillers == (dealt.blocks < 0).sum()
    assert dealt.left_out.size == (blocks % (ranks * per_step) if remainder == "drop" else 0)
    assert dealt.displacement_max_steps < window and dealt.factor >= 1 - 1e-9


def test_longest_processing_time_beats_the_plan_order() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1.3, 60_000).astype(int).clip(1, 16384)
    plan = cloison.plan(lengths, 16384)
    cost = Cost(per_token=1000.0)
    plain = cloison.balance(plan, 8, 8, cost)
    wide = cloison.balance(plan, 8, 8, cost, window=4)
    free = cloison.balance(plan, 8, 8, cost, window=4, most_blocks=16)
    assert plain.factor < plain.unbalanced_factor
    assert wide.factor < 1.06 and free.factor <= wide.factor + 1e-9
    costs = cost.of(plan)
    loads = np.where(wide.blocks >= 0, costs[wide.blocks], 0).sum(axis=2)
    assert wide.factor == pytest.approx(loads.max(axis=1).sum() / loads.mean(axis=1).sum())
    assert np.array_equal(wide.blocks, cloison.balance(plan, 8, 8, cost.of, window=4).blocks)


def test_a_cost_is_calibrated_from_a_few_measurements() -> None:
    tokens, squares = np.array([1000, 2000, 4000, 4000]), np.array([1e6, 1e6, 1e6, 16e6])
    found = calibrate(tokens, squares, 2e-4 * tokens + 3e-8 * squares + 0.01)
    assert (found.per_token, found.per_square, found.fixed) == pytest.approx((2e-4, 3e-8, 0.01))
    assert min(calibrate(tokens, squares, [0.1, 0.2, 0.4, 0.1]).__dict__.values()) >= 0
    with pytest.raises(InputError, match="three or more"):
        calibrate([1], [1], [1.0])


def test_what_balance_refuses() -> None:
    plan = cloison.plan([3] * 8, 3)
    for arguments in ({"ranks": 0}, {"blocks_per_step": 0}, {"window": 0}, {"most_blocks": 1}, {"remainder": "lose"}):
        with pytest.raises(InputError):
            cloison.balance(plan, **{"ranks": 2, "blocks_per_step": 2, **arguments})  # type: ignore[arg-type]
    for cost in ([1.0] * 3, [-1.0] * 8, [float("nan")] * 8):
        with pytest.raises(InputError, match="cost"):
            cloison.balance(plan, 2, 2, cost)


def test_case_DDP_01(cases) -> None:  # type: ignore[no-untyped-def]
    case, expected = cases["DDP-01"]["input"], cases["DDP-01"]["expectation"]
    plan = cloison.plan([4] * case["packs"], 4)
    dropped = cloison.balance(plan, case["world"], case["micro_batch"], remainder="drop")
    assert (len(dropped), dropped.left_out.size) == (expected["drop_last"]["steps"], expected["drop_last"]["packs_lost"])
    filled = cloison.balance(plan, case["world"], case["micro_batch"], remainder="fill")
    assert (len(filled), filled.fillers) == (expected["fill"]["steps"], expected["fill"]["zero_weight_packs"])


def test_case_DDP_02(cases) -> None:  # type: ignore[no-untyped-def]
    case, expected = cases["DDP-02"]["input"], cases["DDP-02"]["expectation"]
    packs = sum(case["local_pack_counts"])
    dealt = cloison.balance(cloison.plan([4] * packs, 4), case["world"], 1)
    assert len(dealt) == expected["global_plan_steps"]
    assert packs - (dealt.blocks >= 0).sum() == expected["lost"]


def test_case_LEN_02(cases) -> None:  # type: ignore[no-untyped-def]
    case = cases["LEN-02"]["input"]
    plan = cloison.plan([4] * case["packs"], 4)
    filled = cloison.balance(plan, case["world"], case["micro_batch"])
    assert (len(filled), filled.fillers) == (1, 3)
    with pytest.raises(InputError, match=r"4 places.*The plan has 1 block, so no step"):
        cloison.balance(plan, case["world"], case["micro_batch"], remainder="drop")
