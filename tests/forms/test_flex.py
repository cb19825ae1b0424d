"""The BlockMask from the boundaries is torch's own, entry by entry, and compiled flex attention takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.errors import InputError
from cloison.forms import flex
from cloison.segments import Segments
from tests.forms.forms_reference import mask_options, segments

torch = pytest.importorskip("torch")
attention = pytest.importorskip("torch.nn.attention.flex_attention")

TENSORS = tuple(f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices"))


def reference(seg: Segments, block_size: tuple[int, int], **options: Any) -> Any:
    dense = torch.tensor(seg.dense_mask(**options))[:, 0]

    def look_up(b: Any, h: Any, q: Any, k: Any) -> Any:
        return dense[b, q, k]

    return attention.create_block_mask(look_up, seg.num_rows, None, seg.width, seg.width, device="cpu", BLOCK_SIZE=block_size)


@settings(max_examples=150, deadline=None)
@given(st.data(), segments(max_width=60), st.integers(1, 11), st.integers(1, 11))
def test_all_eight_tensors_are_those_of_create_block_mask(
    data: st.DataObject, seg: Segments, q_size: int, kv_size: int
) -> None:
    options = data.draw(mask_options(seg.num_segments))
    ours = flex.block_mask(seg, block_size=(q_size, kv_size), **options)
    theirs = reference(seg, (q_size, kv_size), **options)
    assert len(TENSORS) == 8
    for name in TENSORS:
        mine, his = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == his.dtype, name
        assert mine.stride() == his.stride(), name
        assert torch.equal(mine, his), name
    assert ours.seq_lengths == theirs.seq_lengths
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert ours.shape == theirs.shape


@settings(max_examples=80, deadline=None)
@given(st.data(), segments())
def test_mask_mod_is_the_dense_mask(data: st.DataObject, seg: Segments) -> None:
    options = data.draw(mask_options(seg.num_segments))
    b, q = torch.arange(seg.num_rows)[:, None, None], torch.arange(seg.width)
    for mod in (flex.block_mask(seg, **options).mask_mod, flex.mask_mod(seg, **options)):
        assert np.array_equal(mod(b, 0, q[:, None], q).numpy(), seg.dense_mask(**options)[:, 0])


@pytest.mark.parametrize("width", [128, 700, 1024])
def test_at_the_default_block_size_on_rows_of_many_blocks(width: int) -> None:
    rng = np.random.default_rng(width)
    rows = [np.diff(np.sort(rng.choice(np.arange(1, width), 9, replace=False)), prepend=0) for _ in range(2)]
    seg = Segments.from_lengths(rows, width)
    for options in ({}, {"causal": False}, {"window": 200}, {"prefix_lengths": [150] * seg.num_segments}):
        ours, theirs = flex.block_mask(seg, **options), reference(seg, (128, 128), **options)
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in TENSORS)


def test_a_detector_would_see_one_wrong_entry() -> None:
    seg = Segments.from_lengths([[5, 3]], 10)
    other = Segments.from_lengths([[4, 4]], 10)
    ours, theirs = flex.block_mask(other, block_size=2), reference(seg, (2, 2))
    assert not all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in TENSORS)


@pytest.mark.slow
def test_compiled_flex_takes_a_new_mask_without_compiling_again() -> None:
    import torch._dynamo

    width = 384
    q, k, v = (torch.randn(2, 2, width, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))

    def attend(q: Any, k: Any, v: Any, block_mask: Any) -> Any:
        return attention.flex_attention(q, k, v, block_mask=block_mask)

    torch._dynamo.reset()
    compiled = torch.compile(attend, dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in ([[100, 200], [384]], [[300], [7, 9, 200]], [[4] * 90, [1]]):
            seg = Segments.from_lengths(rows, width)
            found = compiled(q, k, v, flex.block_mask(seg))
            wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(seg.dense_mask()))
            assert torch.allclose(found, wanted, atol=2e-6)


def test_case_CMP_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["CMP-02"]
    seg = Segments.from_lengths([case["input"]["lengths"]])
    size = case["input"]["block"]
    found = flex.block_map(seg, block_size=size)[0] > 0
    assert found.astype(int).tolist() == case["expectation"]["block_map"]
    assert found.sum() == case["expectation"]["non_empty"]
    whole = flex.block_map(Segments.from_lengths([[seg.num_tokens]]), block_size=size)[0] > 0
    assert whole.sum() == case["expectation"]["causal_only_non_empty"]
    mask = flex.block_mask(seg, block_size=size)
    assert int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()) == case["expectation"]["non_empty"]


def test_a_block_size_below_one_raises() -> None:
    with pytest.raises(InputError, match="block_size must be at least 1"):
        flex.block_mask(Segments.from_lengths([[3]]), block_size=0)


@pytest.mark.gpu
def test_on_a_gpu_forward_and_backward_are_those_of_the_dense_mask() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    seg = Segments.from_lengths([[700, 300, 900], [2048]], 2048)
    q, k, v = (torch.randn(2, 4, 2048, 64, device="cuda", requires_grad=True) for _ in range(3))
    compiled = torch.compile(attention.flex_attention, dynamic=False)
    found = compiled(q, k, v, block_mask=flex.block_mask(seg, device="cuda"))
    dense = torch.tensor(seg.dense_mask(), device="cuda")
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense)
    assert torch.allclose(found, wanted, atol=2e-3)
    weight = torch.randn_like(found)
    mine = torch.autograd.grad((found * weight).sum(), (q, k, v))
    his = torch.autograd.grad((wanted * weight).sum(), (q, k, v))
    assert all(torch.allclose(a, b, atol=2e-2) for a, b in zip(mine, his, strict=True))
