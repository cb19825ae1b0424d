"""Varlen arguments: a reference kernel that follows them sees what the dense specification allows."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.errors import BoundaryError, InputError
from cloison.forms import flash
from cloison.segments import Segments
from tests.forms.forms_reference import flattened, mask_options, segments, varlen_mask

torch = pytest.importorskip("torch")


@settings(max_examples=60, deadline=None)
@given(st.data(), segments())
def test_both_kernels_see_the_dense_mask(data: st.DataObject, seg: Segments) -> None:
    options = data.draw(mask_options(seg.num_segments, prefix=False))
    total = seg.num_rows * seg.width
    wanted = flattened(seg, **options)
    real = slice(None) if "chunk" not in options else seg.segment_ids().reshape(-1) > 0
    found = flash.varlen(seg, **options)
    mask = varlen_mask(found["cu_seqlens_q"].numpy(), found["max_seqlen_q"], found["window_size"], found["causal"], total)
    assert np.array_equal(mask[real], wanted[real])
    found = flash.varlen_attn(seg, **options)
    mask = varlen_mask(found["cu_seq_q"].numpy(), found["max_q"], found["window_size"], False, total)
    assert np.array_equal(mask[real], wanted[real])


@given(segments(), st.integers(17, 20))
def test_static_offsets_keep_their_shape_and_their_meaning(seg: Segments, limit: int) -> None:
    found = flash.varlen(seg, static=limit)
    assert found["cu_seqlens_q"].shape == (limit + 2,)
    assert found["max_seqlen_q"] == seg.width
    mask = varlen_mask(found["cu_seqlens_q"].numpy(), seg.width, (-1, -1), True, seg.num_rows * seg.width)
    assert np.array_equal(mask, flattened(seg))


def test_too_many_segments_for_the_static_shape_raise() -> None:
    with pytest.raises(BoundaryError, match="Raise static"):
        flash.varlen(Segments.from_lengths([[1] * 5], 8), static=3)


def test_a_window_below_one_raises() -> None:
    with pytest.raises(InputError, match="window must be at least 1"):
        flash.varlen(Segments.from_lengths([[3]]), window=0)


def test_torch_takes_every_argument_by_name() -> None:
    kernel = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
    found = flash.varlen_attn(Segments.from_lengths([[3, 2]]))
    inspect.signature(kernel).bind(None, None, None, **found)


def test_case_NAN_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NAN-02"]
    seg = Segments.from_lengths([[len(sample) for sample in case["input"]["samples"]]])
    assert seg.seq_lengths.tolist() == case["expectation"]["segments"]
    assert flash.varlen(seg)["cu_seqlens_q"].tolist() == case["expectation"]["cu_seqlens"]


def test_case_NAN_05(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NAN-05"]
    seg = Segments.from_lengths([case["input"]["lengths"]], case["input"]["row_length"])
    found = flash.varlen(seg)["cu_seqlens_q"].tolist()
    assert found == case["expectation"]["cu_seqlens_covering"]
    assert found[-1] == case["input"]["row_length"]


def _alone(q: Any, k: Any, v: Any, seg: Segments) -> Any:
    attend = torch.nn.functional.scaled_dot_product_attention
    pieces = [x.split(seg.seq_lengths.tolist()) for x in (q, k, v)]
    outs = [attend(*(x.transpose(0, 1) for x in piece), is_causal=True).transpose(0, 1) for piece in zip(*pieces, strict=True)]
    return torch.cat(outs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flash_attn", "torch"])
def test_on_a_gpu_the_kernels_give_each_segment_its_own_attention(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    seg = Segments.from_lengths([[300, 1, 77, 500]])
    q, k, v = (torch.randn(seg.num_tokens, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    if name == "torch":
        kernel = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
        found = kernel(q, k, v, **flash.varlen_attn(seg, device="cuda"))
    else:
        found = pytest.importorskip("flash_attn").flash_attn_varlen_func(q, k, v, **flash.varlen(seg, device="cuda"))
    exact = _alone(q.double(), k.double(), v.double(), seg)
    floor = (_alone(q, k, v, seg).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= 2 * floor + 1e-3
