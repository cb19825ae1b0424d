"""seq_idx and offsets: recurrences and short convolutions that follow them start anew in each segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from cloison.errors import BoundaryError
from cloison.forms import linear
from cloison.segments import Segments
from tests.forms.forms_reference import causal_sum, recurrence, segments

torch = pytest.importorskip("torch")


@given(segments())
def test_equal_seq_idx_is_the_dense_mask(seg: Segments) -> None:
    found = linear.seq_idx(seg).numpy()
    assert found.dtype == np.int32
    assert np.array_equal(found[:, :, None] == found[:, None, :], seg.dense_mask(causal=False)[:, 0])
    assert (np.diff(found) >= 0).all()
    assert (np.diff(found) <= 1).all()
    assert (found[:, 0] == 0).all()


@given(segments())
def test_a_recurrence_over_the_row_is_that_of_each_segment_alone(seg: Segments) -> None:
    values = np.arange(1, seg.num_rows * seg.width + 1, dtype=float).reshape(seg.num_rows, seg.width)
    for row, index, lengths in zip(values, linear.seq_idx(seg).numpy(), seg.rows(), strict=True):
        whole, wide = recurrence(row, index), causal_sum(row, index, 4)
        start = 0
        for length in lengths:
            alone = row[start : start + length]
            assert whole[start : start + length] == recurrence(alone, [0] * length)
            assert wide[start : start + length] == causal_sum(alone, [0] * length, 4)
            start += length


@given(segments())
def test_offsets_for_linear_attention_cover_the_flattened_row(seg: Segments) -> None:
    found = linear.cu_seqlens(seg)
    assert found.dtype == torch.int64
    assert found.tolist() == seg.cu_seqlens(covering=True).tolist()
    assert torch.equal(linear.cu_seqlens(seg, (seg.segment_ids() > 0).astype(int)), found)


def _seq_idx(docs: list[list[float]]) -> Any:
    return linear.seq_idx(Segments.from_lengths([[len(doc) for doc in docs]]))[0]


def test_case_SSM_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["SSM-01"]
    docs = case["input"]["docs"]
    assert recurrence(np.concatenate(docs), _seq_idx(docs)) == case["expectation"]["h"]
    assert recurrence(np.concatenate(docs), [0, 0, 0]) == case["expectation"]["wrong_if"]["state_carried"]


def test_case_SSM_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["SSM-02"]
    docs = case["input"]["docs"]
    assert causal_sum(np.concatenate(docs), _seq_idx(docs), 3) == case["expectation"]["y"]
    assert causal_sum(np.concatenate(docs), [0] * 5, 3) == case["expectation"]["wrong_if"]["no_boundary"]


def test_case_SSM_04(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["SSM-04"]
    seg = Segments.from_cu_seqlens(case["input"]["cu_seqlens"])
    assert seg.seq_lengths.tolist() == case["expectation"]["segments_used"]
    assert linear.cu_seqlens(seg, case["input"]["attention_mask"]).tolist() == case["input"]["cu_seqlens"]
    assert case["expectation"]["if_mask_conflicts"] == "raise"
    with pytest.raises(BoundaryError, match="must agree") as raised:
        linear.cu_seqlens(seg, [1, 1, 1, 1, 0])
    assert "The mask has 4 of 5" in raised.value.found


def test_case_SSM_05(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["SSM-05"]
    docs = case["input"]["docs"]
    assert causal_sum(np.concatenate(docs), _seq_idx(docs), 4) == case["expectation"]["y"]
