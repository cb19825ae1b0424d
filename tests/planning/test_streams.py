"""stream: the blocks of look_ahead, nothing lost or repeated over a resume."""

from __future__ import annotations

import json
from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError, OverlongError


def samples_of(lengths: list[int]) -> list[list[int]]:
    return [[index] * length for index, length in enumerate(lengths)]


def indices(blocks: object) -> list[list[int]]:
    return [[index for index, _ in block] for block in blocks]  # type: ignore[attr-defined]


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=60),
    ahead=st.integers(1, 20),
    align=st.sampled_from([1, 4]),
    max_segments=st.none() | st.integers(1, 4),
)
def test_a_stream_gives_the_blocks_of_the_plan(lengths: list[int], ahead: int, align: int, max_segments: int | None) -> None:
    plan = cloison.plan(lengths, 32, order="input", look_ahead=ahead, align=align, max_segments=max_segments)
    blocks = cloison.stream(samples_of(lengths), 32, look_ahead=ahead, align=align, max_segments=max_segments)
    assert sorted(indices(blocks)) == sorted(ids.tolist() for ids, _, _ in plan)


overflows = st.sampled_from(["truncate", "drop", "split"])
long_lists = st.lists(st.integers(0, 30) | st.integers(31, 150), max_size=50)


def letters(lengths: list[int]) -> list[list[int]]:
    """Samples of which every token is told from every other."""
    return [[index * 1000 + token for token in range(length)] for index, length in enumerate(lengths)]


@settings(max_examples=100, deadline=None)
@given(lengths=long_lists, ahead=st.integers(1, 20), align=st.sampled_from([1, 5]), overflow=overflows)
def test_samples_over_the_capacity_become_what_they_become_in_the_plan(
    lengths: list[int], ahead: int, align: int, overflow: str
) -> None:
    samples = letters(lengths)
    blocks = cloison.stream(samples, 32, look_ahead=ahead, align=align, overflow=overflow)
    found = []
    for block in blocks:
        assert len(blocks.starts) == len(block)
        for (index, piece), start in zip(block, blocks.starts, strict=True):
            assert piece == samples[index][start : start + len(piece)]
        found.append([(index, start, len(piece)) for (index, piece), start in zip(block, blocks.starts, strict=True)])
    if overflow == "drop" and not any(0 < length <= 32 // align * align for length in lengths):
        assert found == []
        return
    plan = cloison.plan(lengths, 32, order="input", look_ahead=ahead, align=align, overflow=overflow)
    assert sorted(found) == sorted(list(zip(*(part.tolist() for part in block), strict=True)) for block in plan)
    state = blocks.state_dict()
    told = {"truncate": "truncated", "drop": "dropped", "split": "split"}[overflow]
    entry = plan.ledger.entries.get(told)
    assert state[told] == (entry.samples if entry else 0) and state["pending"] == [] and state["rest"] is None


@settings(max_examples=100, deadline=None)
@given(lengths=long_lists, ahead=st.integers(1, 20), done=st.integers(0, 20), overflow=overflows, data=st.data())
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(
    lengths: list[int], ahead: int, done: int, overflow: str, data: st.DataObject
) -> None:
    samples = letters(lengths)
    options = {"look_ahead": ahead, "overflow": overflow}
    whole = list(cloison.stream(samples, 32, **options))  # type: ignore[arg-type]
    first = cloison.stream(samples, 32, **options)  # type: ignore[arg-type]
    begun = list(islice(first, done))
    seekable = data.draw(st.booleans())
    state = json.loads(json.dumps(first.state_dict(samples=not seekable)))
    if seekable:
        second = cloison.stream([], 32, **options)  # type: ignore[arg-type]
        second.load_state_dict(state, source=lambda place: iter(samples[place:]))
    else:
        second = cloison.stream(iter(samples[state["cursor"] :]), 32, **options)  # type: ignore[arg-type]
        second.load_state_dict(state)
    assert begun + list(second) == whole
    assert second.state_dict() == {**second.state_dict(), "cursor": len(lengths), "blocks": len(whole)}


def test_what_is_no_sequence_is_cut_by_the_function_that_is_passed() -> None:
    samples = [{"tokens": 7, "from": 0}, {"tokens": 2, "from": 0}]

    def cut(sample: dict[str, int], start: int, stop: int) -> dict[str, int]:
        return {"tokens": stop - start, "from": sample["from"] + start}

    blocks = cloison.stream(samples, 4, overflow="split", length=lambda sample: sample["tokens"], cut=cut)
    assert list(blocks) == [
        [(0, {"tokens": 4, "from": 0})],
        [(0, {"tokens": 3, "from": 4})],
        [(1, {"tokens": 2, "from": 0})],
    ]


def test_a_stream_without_end_holds_only_what_it_looks_at() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 4096)
    endless = cloison.stream((int(lengths[i % 4096]) for i in count()), 1024, look_ahead=64, length=int)
    for _ in range(2000):
        next(endless)
    assert len(endless.state_dict()["pending"]) <= 64
    assert len(endless._view) <= 64


def test_case_RES_01(cases) -> None:  # type: ignore[no-untyped-def]
    case = cases["RES-01"]
    lengths, capacity = case["input"]["stream_lengths"], case["input"]["capacity"]
    whole = cloison.stream(samples_of(lengths), capacity)
    assert indices(whole) == case["expectation"]["packs_continuous"]
    first = cloison.stream(samples_of(lengths), capacity)
    next(first)
    state = first.state_dict()
    second = cloison.stream(samples_of(lengths)[state["cursor"] :], capacity)
    second.load_state_dict(state)
    assert indices(second) == case["expectation"]["packs_after_resume"]


def test_case_RES_02(cases) -> None:  # type: ignore[no-untyped-def]
    case = cases["RES-02"]["input"]
    size = case["samples_per_pack"]
    stream = cloison.stream(samples_of([1] * 50), size, look_ahead=1)
    for _ in range(case["packs_done"]):
        next(stream)
    state = stream.state_dict()
    placed = state["cursor"] - len(state["pending"])
    assert placed == cases["RES-02"]["expectation"]["next_sample"]
    assert state["blocks"] == 2 != placed


def test_what_a_stream_refuses() -> None:
    with pytest.raises(OverlongError, match=r"Sample 1 of the stream has 9 tokens"):
        list(cloison.stream(samples_of([3, 9]), 8))
    dropping = cloison.stream(samples_of([3, 9, 2]), 8, overflow="drop")
    assert indices(dropping) == [[0, 2]] and dropping.state_dict()["dropped"] == 1
    for bad in ({"capacity": 0}, {"look_ahead": 0}, {"max_segments": 0}, {"align": 9}, {"overflow": "shorten"}):
        with pytest.raises(InputError):
            cloison.stream([], **{"capacity": 8, **bad})  # type: ignore[arg-type]
    stream = cloison.stream(samples_of([3, 3, 3]), 3)
    next(stream)
    with pytest.raises(InputError, match="without"):
        cloison.stream([], 3).load_state_dict(stream.state_dict(samples=False))
    with pytest.raises(InputError, match="state_dict"):
        cloison.stream([], 3).load_state_dict({"cursor": 1})
