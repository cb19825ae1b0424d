"""Packing in memory: unpack after pack is the identity, blocks keep their promises, errors name what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import Sample, pack_samples, unpack
from cloison.errors import BoundaryError, InputError, OverlongError
from cloison.segments import IGNORE


@st.composite
def samples(draw: st.DrawFn, longest: int = 12) -> list[Sample]:
    """Samples with masked and foreign labels, weights, and columns per token and per sample; empty ones among them."""
    weighted = draw(st.booleans())
    out = []
    for number in range(draw(st.integers(0, 12))):
        size = draw(st.integers(0, longest))
        ids = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
        labels = [draw(st.sampled_from([IGNORE, token, 7])) for token in ids]
        weights = np.linspace(0, 2, size, dtype=np.float32) if weighted else None
        columns = {"logprobs": np.arange(size) / 4 + number, "source": f"s{number}", "scores": [number, 1.5]}
        out.append(Sample(ids, labels, weights, columns))
    return out


@settings(max_examples=60, deadline=None)
@given(samples(), st.integers(1, 16), st.sampled_from(["look_ahead", "best_fit", "in_order"]), st.integers(0, 3))
def test_unpack_after_pack_is_the_identity(given_samples: list[Sample], capacity: int, policy: str, seed: int) -> None:
    blocks = pack_samples(given_samples, capacity=capacity, overflow="split", policy=policy, seed=seed)
    assert all(block.num_tokens <= capacity for block in blocks)
    assert unpack(blocks) == [sample for sample in given_samples if len(sample)]


@settings(max_examples=30, deadline=None)
@given(samples(longest=8), st.integers(0, 3))
def test_every_sample_is_there_once_and_first_tokens_are_no_targets(given_samples: list[Sample], seed: int) -> None:
    blocks = pack_samples(given_samples, capacity=8, seed=seed)
    ids = np.concatenate([np.zeros(0, np.int64), *(block.sample_ids for block in blocks)])
    assert sorted(ids.tolist()) == [number for number, sample in enumerate(given_samples) if len(sample)]
    for block in blocks:
        assert (block.labels[block.segments.first_tokens()] == IGNORE).all()


def test_a_label_that_a_continuation_cannot_train_comes_back() -> None:
    sample = Sample([1, 2, 3, 4, 5], [IGNORE, IGNORE, 3, 4, IGNORE])
    blocks = pack_samples([sample], capacity=2, overflow="split", order="input")
    assert [block.labels.tolist() for block in blocks] == [[IGNORE, IGNORE], [IGNORE, 4], [IGNORE]]
    assert unpack(blocks) == [sample]


def test_case_AUX_01(cases: dict[str, Any]) -> None:
    case = cases["AUX-01"]
    given_samples = [
        Sample(s["ids"], loss_weights=np.full(len(s["ids"]), s["weight"], np.float32), columns={"source": s["source"]})
        for s in case["input"]["samples"]
    ]
    (block,) = pack_samples(given_samples, capacity=8, order="input")
    assert block.loss_weights is not None
    assert block.loss_weights.tolist() == case["expectation"]["token_weight"]
    assert block.segment_columns["source"] == case["expectation"]["segment_source"]


def test_case_AUX_02(cases: dict[str, Any]) -> None:
    case = cases["AUX-02"]
    columns = case["input"]["columns"]
    given_samples = [
        Sample(ids, columns={"text": text}) for ids, text in zip(columns["input_ids"], columns["text"], strict=True)
    ]
    blocks = pack_samples(given_samples, capacity=case["input"]["capacity"], overflow="split", order="input")
    assert [block.segment_columns["text"] for block in blocks] == case["expectation"]["text_out"]


def test_case_AUX_04(cases: dict[str, Any]) -> None:
    case = cases["AUX-04"]
    given_samples = [Sample(s["ids"], columns={"label": s["label"]}) for s in case["input"]["samples"]]
    (block,) = pack_samples(given_samples, capacity=8, order="input")
    assert block.segment_columns["label"] == case["expectation"]["segment_labels"]


def test_case_BND_01(cases: dict[str, Any]) -> None:
    case = cases["BND-01"]
    (block,) = pack_samples(case["input"]["samples"], capacity=16, order="input")
    assert block.segments.seq_lengths.tolist() == case["expectation"]["segments"]


def test_case_BND_04(cases: dict[str, Any]) -> None:
    case = cases["BND-04"]["input"]
    assert case["pad_id"] == case["eos_id"]
    given_samples = [row[:size] for row, size in zip(case["padded_rows"], case["true_lengths"], strict=True)]
    (block,) = pack_samples(given_samples, capacity=16, order="input")
    assert block.segments.seq_lengths.tolist() == cases["BND-04"]["expectation"]["segments"]
    assert block.input_ids.tolist() == [token for sample in given_samples for token in sample]


def test_case_LEN_01(cases: dict[str, Any]) -> None:
    case = cases["LEN-01"]
    given_samples = [[1] * case["input"]["length_each"]] * case["input"]["samples"]
    blocks = pack_samples(given_samples, capacity=case["input"]["capacity"])
    assert len(blocks) == case["expectation"]["len"]
    assert len(list(iter(blocks))) == case["expectation"]["yielded"]


def test_case_OVR_01(cases: dict[str, Any]) -> None:
    case = cases["OVR-01"]["input"]
    given_samples = [list(range(size)) for size in case["lengths"]]
    sizes = {
        overflow: sorted(
            size
            for block in pack_samples(given_samples, capacity=case["capacity"], overflow=overflow)
            for size in block.segments.seq_lengths.tolist()
        )
        for overflow in ("drop", "truncate", "split")
    }
    expected = cases["OVR-01"]["expectation"]
    assert sum(sizes["drop"]) == expected["drop"]["kept_tokens"]
    assert sum(sizes["truncate"]) == expected["truncate"]["kept_tokens"]
    assert sizes["split"] == sorted(expected["split"]["pieces"])
    with pytest.raises(OverlongError) as caught:
        pack_samples(given_samples, capacity=case["capacity"])
    assert f"Sample {expected['error']['raises_with_indices'][0]} has 7 tokens" in caught.value.found
    assert "overflow" in caught.value.remedy


def test_case_OVR_04(cases: dict[str, Any]) -> None:
    case = cases["OVR-04"]
    given = case["input"]
    blocks = pack_samples(
        [list(range(size)) for size in given["lengths"]],
        capacity=given["capacity"],
        overflow=given["policy"],
        max_sample_tokens=given["max_sample_len"],
        order="input",
    )
    assert [block.segments.seq_lengths.tolist() for block in blocks] == case["expectation"]["packs_lengths"]


def test_samples_with_other_columns_are_refused() -> None:
    with pytest.raises(InputError, match="same columns") as caught:
        pack_samples([Sample([1, 2], columns={"a": 1}), Sample([3], columns={})], capacity=4)
    assert "sample 1 has []" in caught.value.found


def test_a_lost_piece_is_noticed() -> None:
    blocks = pack_samples([[1, 2, 3, 4, 5]], capacity=2, overflow="split", order="input")
    with pytest.raises(BoundaryError, match="pieces of sample 0"):
        unpack([blocks[0], blocks[2]])
    with pytest.raises(BoundaryError, match="pieces of sample 0"):
        unpack([*blocks, blocks[0]])


def test_on_empty_is_what_the_caller_says() -> None:
    silent = Sample([1, 2], [IGNORE, IGNORE])
    assert unpack(pack_samples([silent, Sample([3, 4])], capacity=4)) == [silent, Sample([3, 4])]
    assert unpack(pack_samples([silent, Sample([3, 4])], capacity=4, on_empty="drop")) == [Sample([3, 4])]
    with pytest.raises(InputError, match="must have a target") as caught:
        pack_samples([Sample([3, 4]), silent], capacity=4, on_empty="raise")
    assert caught.value.found.startswith("Sample 1 has none (1 of 2")
