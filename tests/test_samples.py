"""Sample: what holds of every one, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import Sample
from cloison.errors import InputError
from cloison.segments import IGNORE


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), max_size=9))
def test_left_out_labels_train_every_token_but_the_first(ids: list[int]) -> None:
    sample = Sample(np.array(ids, np.int64))
    assert sample.input_ids.dtype == sample.labels.dtype == np.int32
    assert sample.labels.tolist() == [IGNORE] * min(1, len(ids)) + ids[1:]
    assert sample.num_targets == max(0, len(ids) - 1) and len(sample) == len(ids)
    assert not sample.input_ids.flags.writeable and not sample.labels.flags.writeable


def test_the_first_label_is_never_a_target() -> None:
    assert Sample([4, 5], [4, 5]).labels.tolist() == [IGNORE, 5]


def test_the_caller_s_arrays_stay_his() -> None:
    ids = np.array([4, 5, 6])
    sample = Sample(ids, ids)
    ids[:] = 0
    assert sample.input_ids.tolist() == [4, 5, 6] and ids.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "asked", "found"),
    [
        (([[1, 2]],), "flat list of integers", "[1, 2]"),
        (([1.0],), "flat list of integers", "float64"),
        (([1, -2],), "0 or more", "input_ids[1] is -2"),
        (([2**31],), "fit int32", str(2**31)),
        (([1, 2], [1]), "index of input_ids", "1 labels for 2 tokens"),
        (([1, 2], [1, -1]), "or -100", "labels[1] is -1"),
        (([1, 2], None, [1.0]), "index of labels", "1 weights"),
        (([1, 2], None, [1.0, float("nan")]), "finite", "loss_weights[1] is nan"),
        (([1, 2], None, [1.0, float("inf")]), "finite", "loss_weights[1] is inf"),
    ],
)
def test_what_cannot_be_right_is_refused(arguments: tuple[Any, ...], asked: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        Sample(*arguments)
    assert asked in caught.value.asked and found in caught.value.found and caught.value.remedy


def test_equality_looks_at_everything() -> None:
    base = Sample([1, 2, 3], columns={"source": "a"})
    assert base == Sample([1, 2, 3], columns={"source": "a"})
    for other in (
        Sample([1, 2, 4], columns={"source": "a"}),
        Sample([1, 2, 3], [IGNORE, IGNORE, 3], columns={"source": "a"}),
        Sample([1, 2, 3], loss_weights=[1, 1, 1], columns={"source": "a"}),
        Sample([1, 2, 3], columns={"source": "b"}),
        Sample([1, 2, 3]),
    ):
        assert base != other
