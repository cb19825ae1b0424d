"""The loader: each block once an epoch over all ranks, the same steps on each, and resumes that lose and double nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.blocks import Block
from cloison.errors import ChangedError, InputError
from cloison.loading.loader import Loader
from cloison.planning.balancing import Cost
from cloison.segments import IGNORE


def some_blocks(count: int) -> list[Block]:
    rng = np.random.default_rng(count)
    blocks = []
    for index in range(count):
        [block] = cloison.pack_samples([rng.integers(1, 50, n) for n in rng.integers(1, 9, 3)], capacity=24)
        blocks.append(Block(block.input_ids, block.labels, block.segments, block.sample_ids + 10 * index, block.starts))
    return blocks


def ids(batch: list[Block]) -> list[int]:
    """Which of `some_blocks` are in a batch, -1 for a filler."""
    return [int(block.sample_ids[0]) // 10 if block.sample_ids[0] >= 0 else -1 for block in batch]


def make(blocks: Any, **options: Any) -> Loader:
    return cloison.loader(blocks, list, **{"blocks_per_step": 1, "prefetch": 0, **options})


def all_ranks(blocks: Any, world_size: int, **options: Any) -> list[Loader]:
    return [make(blocks, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


worlds = st.integers(1, 5)
pytestmark = pytest.mark.filterwarnings("ignore:a step of")


# ---------------------------------------------------------------------- epochs


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), worlds, st.integers(1, 4), st.sampled_from([0, 1, 3]), st.booleans(), st.sampled_from([0, 2]))
def test_an_epoch_has_each_block_once(count: int, world: int, size: int, window: int, shuffle: bool, ahead: int) -> None:
    blocks = some_blocks(count)
    ranks = all_ranks(blocks, world, blocks_per_step=size, balance_window=window, shuffle=shuffle, prefetch=ahead)
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) == -(-count // (world * size))
    for epoch in range(2):
        assert {rank.epoch for rank in ranks} == {epoch}
        given_out = [[ids(batch) for batch in rank] for rank in ranks]
        assert {len(batches) for batches in given_out} == {len(ranks[0])}
        seen = Counter(block for batches in given_out for batch in batches for block in batch)
        fillers = seen.pop(-1, 0)
        assert seen == Counter(range(count))
        assert fillers == len(ranks[0]) * world * size - count


def test_epochs_differ_and_the_seed_decides() -> None:
    blocks = some_blocks(30)
    straight = make(blocks, seed=4)
    first, second = [[ids(b)[0] for b in straight] for _ in range(2)]
    assert first != second
    assert [ids(b)[0] for b in make(blocks, seed=4)] == first
    assert [ids(b)[0] for b in make(blocks, seed=5)] != first
    again = make(blocks, seed=4)
    again.set_epoch(1)
    assert [ids(b)[0] for b in again] == second


def test_fillers_train_nothing() -> None:
    torch = pytest.importorskip("torch")
    ranks = [cloison.loader(some_blocks(5), blocks_per_step=2, rank=rank, world_size=2) for rank in (0, 1)]
    *_, last = [list(rank) for rank in ranks]
    batch = last[-1]
    assert (batch["labels"] == IGNORE).sum() >= 1
    logits = torch.randn(1, batch["labels"].shape[1], 60)
    both = cloison.losses.loss_sum(logits, batch["labels"])[1]
    blocks = [block for block in ranks[1].blocks(1) if block.sample_ids[0] >= 0]
    assert float(both) == sum(block.num_targets for block in blocks)


def test_dropping_says_how_many() -> None:
    ranks = all_ranks(some_blocks(11), 2, blocks_per_step=2, last="drop")
    assert [len(rank) for rank in ranks] == [2, 2]
    assert ranks[0].dropped_blocks == 3
    seen = [block for rank in ranks for batch in rank for block in ids(batch)]
    assert len(set(seen)) == len(seen) == 8


@pytest.mark.parametrize("window", [1, None])
def test_a_balanced_step_keeps_its_blocks_with_a_window_of_one(window: int | None) -> None:
    blocks = some_blocks(24)
    plain = all_ranks(blocks, 3, blocks_per_step=2, balance_window=0)
    dealt = all_ranks(blocks, 3, blocks_per_step=2, balance_window=window, cost=Cost(1.0, 1.0))
    assert dealt[0].deal.window == 1
    assert (
        dealt[0].balance_factor
        < make(blocks, world_size=3, blocks_per_step=2, balance_window=0, cost=Cost(1.0, 1.0)).balance_factor
    )
    for batches in zip(*plain, *dealt, strict=True):
        one, other = batches[:3], batches[3:]
        assert sorted(b for batch in one for b in ids(batch)) == sorted(b for batch in other for b in ids(batch))
    windowed = make(blocks, world_size=3, blocks_per_step=2, balance_window=4, cost=Cost(1.0, 1.0))
    plain_factor = make(blocks, world_size=3, blocks_per_step=2, balance_window=0, cost=Cost(1.0, 1.0)).balance_factor
    assert 1 <= windowed.balance_factor < plain_factor


@pytest.mark.parametrize(("world", "size"), [(1, 4), (4, 1)])
def test_where_nothing_can_be_evened_out_blocks_are_dealt_in_turn(world: int, size: int) -> None:
    assert make(some_blocks(8), world_size=world, blocks_per_step=size).deal.window == 0


def test_a_loader_says_what_it_is_and_where() -> None:
    loader = make(some_blocks(18), blocks_per_step=4, micro_batches=2, rank=1, world_size=2)
    next(iter(loader))
    assert repr(loader) == "Loader(18 blocks, rank 1 of 2, 4 blocks a step, epoch 0: 1 of 6 batches done)"


@pytest.mark.filterwarnings("default:a step of")
def test_a_step_of_more_blocks_than_there_are_is_said(recwarn: pytest.WarningsRecorder) -> None:
    make(some_blocks(18), blocks_per_step=18)
    make(some_blocks(18), blocks_per_step=100, rank=1, world_size=2)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="1 ranks x 200 blocks takes 200 blocks, and there are 18: .* 182 fillers") as caught:
        assert len(make(some_blocks(18), blocks_per_step=200)) == 1
    assert caught[0].filename == __file__


def test_micro_batches_are_the_step_in_parts() -> None:
    blocks = some_blocks(12)
    whole = [ids(batch) for batch in make(blocks, blocks_per_step=4)]
    parts = [ids(batch) for batch in make(blocks, blocks_per_step=4, micro_batches=2)]
    assert [parts[i] + parts[i + 1] for i in range(0, len(parts), 2)] == whole


# ---------------------------------------------------------------------- resume


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), worlds, st.integers(1, 3), st.sampled_from([0, 3]), st.integers(0, 60))
def test_a_resume_is_the_straight_run(count: int, world: int, size: int, window: int, taken: int) -> None:
    blocks = some_blocks(count)
    options = {"blocks_per_step": size, "balance_window": window, "micro_batches": size, "world_size": world}
    straight = make(blocks, **options)
    whole = [ids(batch) for _ in range(3) for batch in straight]
    taken = min(taken, 2 * len(straight))
    begun = make(blocks, **options)
    for _ in range(taken):
        next(iter(begun))
    state = json.loads(json.dumps(begun.state_dict()))
    resumed = make(some_blocks(count), **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    rest: list[list[int]] = []
    while len(rest) < len(whole) - taken:
        rest += [ids(batch) for batch in resumed]
    assert rest[: len(whole) - taken] == whole[taken:]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60),
    st.lists(st.tuples(worlds, st.integers(1, 4), st.sampled_from([0, 1, 3]), st.integers(0, 6)), min_size=1, max_size=4),
)
def test_a_resume_on_other_ranks_loses_and_doubles_nothing(count: int, legs: list[tuple[int, int, int, int]]) -> None:
    blocks = some_blocks(count)
    seen: Counter[int] = Counter()
    state = None
    for leg, (world, size, window, steps) in enumerate(legs):
        ranks = all_ranks(blocks, world, blocks_per_step=size, balance_window=window)
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(json.loads(json.dumps(state)))
        steps = ranks[0].remaining if leg == len(legs) - 1 else min(steps, ranks[0].remaining)
        for rank in ranks:
            for batch in range(rank.done, rank.done + steps):
                seen.update(ids(rank[batch]))
            rank.skip(steps)
        states = [rank.state_dict() for rank in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    seen.pop(-1, None)
    assert seen == Counter(range(count))


def test_the_same_global_steps_on_another_number_of_ranks() -> None:
    blocks = some_blocks(48)

    def steps_of(ranks: list[Loader]) -> list[list[int]]:
        return [sorted(b for batch in batches for b in ids(batch)) for batches in zip(*ranks, strict=True)]

    straight = steps_of(all_ranks(blocks, 4, blocks_per_step=2))
    ranks = all_ranks(blocks, 4, blocks_per_step=2)
    for rank in ranks:
        rank.skip(2)
    state = ranks[0].state_dict()
    fewer = all_ranks(blocks, 2, blocks_per_step=4)
    for rank in fewer:
        rank.load_state_dict(state)
    assert len(fewer[0]) == len(straight)
    assert steps_of(fewer) == straight[2:]


def test_a_state_is_small_and_plain() -> None:
    loader = make(some_blocks(40), world_size=2, balance_window=3)
    loader.skip(4)
    assert len(json.dumps(loader.state_dict())) < 600


def test_states_that_do_not_fit_raise() -> None:
    blocks = some_blocks(10)
    loader = make(blocks, blocks_per_step=2, micro_batches=2)
    loader.skip(3)
    state = loader.state_dict()
    with pytest.raises(ChangedError, match="must be of this data set"):
        make(some_blocks(11), blocks_per_step=2).load_state_dict(state)
    with pytest.raises(InputError, match="seed must be what the run began with"):
        make(blocks, blocks_per_step=2, seed=1).load_state_dict(state)
    with pytest.raises(InputError, match="same micro-batches"):
        make(blocks, blocks_per_step=2).load_state_dict(state)
    with pytest.raises(InputError, match="version 1"):
        make(blocks).load_state_dict({**state, "version": 9})
    other = make(blocks, blocks_per_step=2, micro_batches=2)
    other.load_state_dict(state)
    assert other.done == 3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"world_size": 0}, "world_size must be an integer of at least 1"),
        ({"rank": 2, "world_size": 2}, "rank must be 0 .. 1"),
        ({"blocks_per_step": 0}, "blocks_per_step must be"),
        ({"blocks_per_step": 3, "micro_batches": 2}, "micro_batches must divide"),
        ({"last": "pad"}, 'last must be "fill" or "drop"'),
        ({"prefetch": -1}, "prefetch must be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": True}, "seed must be"),
        ({"rank": 0.0}, "rank must be"),
        ({"world_size": True}, "world_size must be"),
        ({"last": "drop", "world_size": 2, "blocks_per_step": 3}, "no step would be left"),
    ],
)
def test_wrong_arguments_raise(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        make(some_blocks(4), **options)


def test_data_that_is_no_blocks_raises() -> None:
    with pytest.raises(InputError, match="a list of blocks"):
        make("packed/")
    with pytest.raises(InputError, match="at least one block"):
        make([])


def test_an_error_while_collating_reaches_the_training_loop() -> None:
    def broken(blocks: list[Block]) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        list(cloison.loader(some_blocks(4), broken, blocks_per_step=1, prefetch=2))


# ---------------------------------------------------------------------- real data


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("loader")
    rng = np.random.default_rng(0)
    lines = [json.dumps({"input_ids": rng.integers(1, 500, int(n)).tolist()}) for n in rng.integers(5, 120, 900)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    spec = cloison.PackSpec(128)
    return cloison.pack(str(folder / "data.jsonl"), folder / "out", spec)


def test_packed_blocks_come_once_and_whole(packed: Any) -> None:
    found = Counter()
    for rank in range(3):
        loader = cloison.loader(packed, list, blocks_per_step=4, rank=rank, world_size=3, prefetch=3)
        for batch in range(len(loader)):
            for index, block in zip(loader.block_ids(batch).tolist(), loader.blocks(batch), strict=True):
                if index >= 0:
                    assert block == packed[index]
                    found[index] += 1
    assert found == Counter(range(len(packed)))


def test_resume_over_packed_blocks_in_a_fresh_process(packed: Any, tmp_path: Path) -> None:
    import subprocess
    import sys

    loader = cloison.loader(packed, list, blocks_per_step=4, world_size=2, balance_window=3)
    batches = [[int(b.input_ids.sum()) for b in batch] for batch in loader]
    loader.set_epoch(0)
    loader.skip(5)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    code = (
        "import json, sys, cloison\n"
        "loader = cloison.loader(cloison.open(sys.argv[1]), list, blocks_per_step=4, world_size=2, balance_window=3)\n"
        "loader.load_state_dict(json.load(open(sys.argv[2])))\n"
        "print(json.dumps([[int(b.input_ids.sum()) for b in batch] for batch in loader]))\n"
    )
    arguments = [sys.executable, "-c", code, str(packed.path), str(tmp_path / "state.json")]
    out = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=200)
    assert json.loads(out.stdout) == batches[5:]


# ---------------------------------------------------------------------- moving while it runs, and wrong states


def test_the_present_epoch_keeps_its_place_when_a_trainer_names_it() -> None:
    blocks = some_blocks(9)
    whole = [ids(batch) for batch in make(blocks)]
    loader = make(blocks)
    loader.skip(4)
    loader.set_epoch(0)
    assert [ids(batch) for batch in loader] == whole[4:]


def test_a_loader_that_is_moved_while_it_runs_says_so() -> None:
    for move in (lambda one: one.skip(1), lambda one: one.set_epoch(3), lambda one: next(iter(one))):
        loader = make(some_blocks(9), prefetch=2)
        running = iter(loader)
        next(running)
        move(loader)
        with pytest.raises(InputError, match="one iteration at a time"):
            next(running)


def test_a_filler_has_the_columns_of_the_blocks() -> None:
    sample = cloison.Sample([3, 4, 5], loss_weights=[0, 1, 1], columns={"reward": np.array([1.0, 2.0, 3.0]), "source": "web"})
    blocks = cloison.pack_samples([sample], capacity=4)
    ranks = all_ranks(blocks, 2)
    [[real], [dummy]] = [next(iter(rank)) for rank in ranks]
    assert real.sample_ids.tolist() == [0]
    assert (dummy.sample_ids.tolist(), dummy.input_ids.tolist(), dummy.labels.tolist()) == ([-1], [3], [IGNORE])
    assert dummy.loss_weights is not None and dummy.loss_weights.tolist() == [0]
    assert (set(dummy.token_columns), set(dummy.segment_columns)) == ({"reward"}, {"source"})
    batches = [cloison.collate(part, loss_weights="keep", columns=["reward"]) for part in ([real], [dummy])]
    assert batches[0].keys() == batches[1].keys()


@pytest.mark.parametrize("state", [None, {}, [1], {"version": 1}, {"version": 1, "fingerprint": "x"}])
def test_what_is_no_state_raises(state: Any) -> None:
    with pytest.raises(InputError, match="a loader's state"):
        make(some_blocks(3)).load_state_dict(state)


# ---------------------------------------------------------------------- reported faults


def test_case_DDP_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["DDP-01"]
    packs, world, size = (case["input"][key] for key in ("packs", "world", "micro_batch"))
    dropped = all_ranks(some_blocks(packs), world, blocks_per_step=size, last="drop")
    assert {len(rank) for rank in dropped} == {case["expectation"]["drop_last"]["steps"]}
    assert dropped[0].dropped_blocks == case["expectation"]["drop_last"]["packs_lost"]
    filled = all_ranks(some_blocks(packs), world, blocks_per_step=size)
    assert {len(rank) for rank in filled} == {case["expectation"]["fill"]["steps"]}
    given_out = [block for rank in filled for batch in rank for block in batch]
    assert (
        sum(block.num_targets == 0 and block.sample_ids[0] < 0 for block in given_out)
        == (case["expectation"]["fill"]["zero_weight_packs"])
    )


def test_case_DDP_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["DDP-02"]
    packs, world = sum(case["input"]["local_pack_counts"]), case["input"]["world"]
    ranks = all_ranks(some_blocks(packs), world)
    assert {len(rank) for rank in ranks} == {case["expectation"]["global_plan_steps"]}
    seen = {block for rank in ranks for batch in rank for block in ids(batch)} - {-1}
    assert packs - len(seen) == case["expectation"]["lost"]


def test_case_DDP_04(cases: dict[str, dict[str, Any]]) -> None:
    """No process group is there, and every rank finds the same plan and the same deal by itself."""
    from torch import distributed

    assert not distributed.is_initialized()
    lengths = np.random.default_rng(0).integers(1, 400, cases["DDP-04"]["input"]["samples"] // 20)
    plans = [cloison.plan(lengths, 4096, seed=7) for _ in range(2)]
    assert plans[0] == plans[1]
    given_out = [[rank.block_ids(step).tolist() for step in range(len(rank))] for rank in all_ranks(some_blocks(23), 4)]
    again = [[rank.block_ids(step).tolist() for step in range(len(rank))] for rank in all_ranks(some_blocks(23), 4)]
    assert given_out == again


def test_case_NAN_03(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NAN-03"]
    samples = [sample for rank in case["input"]["rank_samples"] for sample in rank]
    world = len(case["input"]["rank_samples"])
    ranks = all_ranks(cloison.pack_samples(samples, capacity=4), world)
    batches = [next(iter(rank)) for rank in ranks]
    assert all(len(batch) == 1 and batch[0].num_tokens >= 1 for batch in batches)
    [dummy] = [batch[0] for batch in batches if batch[0].sample_ids[0] < 0]
    assert dummy.num_targets == case["expectation"]["dummy_pack"]["weight"]


def test_case_RES_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["RES-01"]
    samples = [[1] * n for n in case["input"]["stream_lengths"]]
    blocks = cloison.pack_samples(samples, capacity=case["input"]["capacity"], order="input")
    loader = make(blocks, shuffle=False)
    continuous = [batch[0].sample_ids.tolist() for batch in loader]
    assert continuous == case["expectation"]["packs_continuous"]
    loader.set_epoch(0)
    loader.skip(case["input"]["checkpoint_after_pack"])
    resumed = make(blocks, shuffle=False)
    resumed.load_state_dict(loader.state_dict())
    assert [batch[0].sample_ids.tolist() for batch in resumed] == case["expectation"]["packs_after_resume"]


def test_case_RES_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["RES-02"]
    size = case["input"]["samples_per_pack"]
    blocks = cloison.pack_samples([[1, 2]] * (4 * size), capacity=2 * size, order="input")
    loader = make(blocks, shuffle=False)
    loader.skip(case["input"]["packs_done"])
    resumed = make(blocks, shuffle=False)
    resumed.load_state_dict(loader.state_dict())
    assert int(next(iter(resumed))[0].sample_ids[0]) == case["expectation"]["next_sample"]


def test_case_LEN_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["LEN-02"]
    packs, world, size = (case["input"][key] for key in ("packs", "world", "micro_batch"))
    ranks = all_ranks(some_blocks(packs), world, blocks_per_step=size)
    given_out = [[block for batch in rank for block in ids(batch)] for rank in ranks]
    assert [len(rank) for rank in ranks] == [1] * world
    assert sorted(block for part in given_out for block in part) == [-1] * (world * size - packs) + list(range(packs))
    with pytest.raises(InputError, match=f"has {packs}, so that no step"):
        all_ranks(some_blocks(packs), world, blocks_per_step=size, last="drop")
