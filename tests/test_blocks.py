"""Block: its arrays fit its lengths, and its samples come back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import Block, Sample, Segments
from cloison.errors import BoundaryError
from cloison.segments import IGNORE

samples = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), min_size=1, max_size=5)


def block_of(listed: list[list[int]], **more: Any) -> Block:
    made = [Sample(ids) for ids in listed]
    return Block(
        np.concatenate([one.input_ids for one in made]),
        np.concatenate([one.labels for one in made]),
        Segments.from_lengths([len(one) for one in made], capacity=64),
        np.arange(len(made)),
        **more,
    )


@settings(deadline=None)
@given(samples)
def test_the_samples_of_a_block_are_those_it_was_made_of(listed: list[list[int]]) -> None:
    block = block_of(listed)
    assert list(block.samples()) == [Sample(ids) for ids in listed]
    assert len(block) == len(listed) and block.num_tokens == sum(map(len, listed))
    assert block.num_targets == sum(len(ids) - 1 for ids in listed)
    assert block.targets.tolist() == [t for ids in listed for t in [*ids[1:], IGNORE]]
    assert block == block_of(listed)
    for array in (block.input_ids, block.labels, block.sample_ids, block.starts):
        assert not array.flags.writeable


def test_columns_go_with_their_tokens_and_segments() -> None:
    block = block_of([[1, 2], [3]], token_columns={"score": np.array([0.1, 0.2, 0.3])}, segment_columns={"source": ["a", "b"]})
    first, second = block.samples()
    assert first.columns["score"].tolist() == [0.1, 0.2] and first.columns["source"] == "a"
    assert second.columns["score"].tolist() == [0.3] and second.columns["source"] == "b"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"labels": [IGNORE, 2]}, "It has 2"),
        ({"sample_ids": [0]}, "It has 1"),
        ({"starts": [0]}, "It has 1"),
        ({"loss_weights": [1.0]}, "It has 1"),
        ({"token_columns": {"x": [1]}}, "It has 1"),
        ({"segment_columns": {"x": [1]}}, "It has 1"),
        ({"labels": [IGNORE, 2, 3]}, "Segment 1 has label 3"),
        ({"segments": Segments.from_lengths([[2], [1]])}, "have 2"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], found: str) -> None:
    right: dict[str, Any] = {
        "input_ids": [1, 2, 3],
        "labels": [IGNORE, 2, IGNORE],
        "segments": Segments.from_lengths([2, 1]),
        "sample_ids": [0, 1],
    }
    Block(**right)
    with pytest.raises(BoundaryError) as caught:
        Block(**(right | changes))
    assert found in caught.value.found and caught.value.remedy


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_blocks_and_samples_are_copied_whole_and_read_only(copied: Callable[[Any], Any]) -> None:
    weights = np.array([0.5, 1.0, 2.0], np.float32)
    block = block_of([[1, 2], [3]], loss_weights=weights, token_columns={"score": weights}, segment_columns={"of": ["a", "b"]})
    for value in (block, block_of([[1, 2], [3]]), *block.samples()):
        other = copied(value)
        assert other == value and not other.input_ids.flags.writeable
    assert copied(block).segment_columns == {"of": ["a", "b"]}
