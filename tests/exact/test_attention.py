"""Our own attention against the dense specification: values and gradients, every kind of attention, any rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from cloison.errors import BoundaryError  # noqa: E402
from cloison.exact.attention import segment_attention  # noqa: E402
from cloison.exact.boundaries import boundaries, is_boundaries  # noqa: E402
from cloison.segments import Segments  # noqa: E402

HEADS, SIZE, VALUE = 4, 8, 6


def dense(seg, query, key, value, *, causal=True, window=None, chunk=None, softcap=None, s_aux=None, position_bias=None):
    """Attention with the dense mask, every step written out in float64."""
    mask = torch.from_numpy(np.array(seg.dense_mask(causal=causal, window=window, chunk=chunk)))
    query, key, value = query.double(), key.double(), value.double()
    key, value = (t.repeat_interleave(HEADS // t.shape[1], 1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * 0.3
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if position_bias is not None:
        scores = scores + position_bias.double()
    scores = scores.masked_fill(~mask, -torch.inf)
    if s_aux is not None:
        sinks = s_aux.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    return (scores.softmax(-1)[..., : seg.width] @ value).transpose(1, 2)


@st.composite
def rows(draw):
    lists = draw(st.lists(st.lists(st.integers(1, 13), min_size=1, max_size=4), min_size=1, max_size=2))
    return Segments.from_lengths(lists, capacity=max(map(sum, lists)) + draw(st.integers(0, 3)))


@settings(max_examples=60, deadline=None)
@given(
    seg=rows(),
    key_heads=st.sampled_from([1, 2, 4]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 2, 3, 5]),
    chunk=st.sampled_from([None, 3]),
    softcap=st.sampled_from([None, 4.0]),
    sinks=st.booleans(),
    by_keyword=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_equals_the_dense_specification(seg, key_heads, causal, window, chunk, softcap, sinks, by_keyword, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    tensors = [
        draw(seg.num_rows, heads, seg.width, size).requires_grad_()
        for heads, size in ((HEADS, SIZE), (key_heads, SIZE), (key_heads, VALUE))
    ]
    s_aux = draw(HEADS) if sinks else None
    carried = boundaries(seg, None if by_keyword else window, chunk)
    out, weights = segment_attention(
        SimpleNamespace(is_causal=causal), *tensors, carried, scaling=0.3, softcap=softcap, s_aux=s_aux,
        sliding_window=window if by_keyword else None,
    )  # fmt: skip
    wanted = dense(seg, *tensors, causal=causal, window=window, chunk=chunk, softcap=softcap, s_aux=s_aux)
    assert weights is None
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-6)
    towards = draw(*wanted.shape)
    for got, right in zip(
        torch.autograd.grad(out, tensors, towards), torch.autograd.grad(wanted, tensors, towards.double()), strict=True
    ):
        torch.testing.assert_close(got, right.float(), rtol=0, atol=2e-5)


def test_a_position_bias_is_cut_to_each_segment():
    seg = Segments.from_lengths([[3, 5, 3]])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, 11, size, generator=generator) for size in (SIZE, SIZE, VALUE))
    bias = torch.randn(1, HEADS, 11, 11, generator=generator)
    out, _ = segment_attention(SimpleNamespace(), q, k, v, boundaries(seg), scaling=0.3, position_bias=bias)
    torch.testing.assert_close(out.double(), dense(seg, q, k, v, position_bias=bias), rtol=0, atol=2e-6)


def test_long_windowed_segments_need_memory_that_grows_with_the_window():
    """A segment of 1,000 windows never makes a square of its length (8e8 entries would not fit the test's machine kindly)."""
    seg = Segments.from_lengths([[4096, 37]])
    q, k, v = (torch.randn(1, heads, 4133, 4) for heads in (2, 1, 1))
    with torch.profiler.profile(profile_memory=True) as profile:
        out, _ = segment_attention(SimpleNamespace(), q, k, v, boundaries(seg, window=4))
    largest = max((event.self_cpu_memory_usage for event in profile.key_averages()), default=0)
    assert largest < 4133 * 2 * 4 * 4 * 100
    mask = torch.from_numpy(np.array(Segments.from_lengths([[64]]).dense_mask(window=4)))
    alone = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, :64], k[:, :, :64].repeat(1, 2, 1, 1), v[:, :, :64].repeat(1, 2, 1, 1), attn_mask=mask
    )
    torch.testing.assert_close(out[:, :64].transpose(1, 2), alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("mask", [None, torch.zeros(1, 1, 5, 5), torch.ones(1, 5)])
def test_a_mask_that_is_no_boundaries_is_refused(mask):
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(BoundaryError, match="reads the boundaries from the mask"):
        segment_attention(SimpleNamespace(), q, q, q, mask)
    assert not is_boundaries(mask)


def test_boundaries_of_another_batch_are_refused():
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(BoundaryError, match="must cover the 5 tokens"):
        segment_attention(SimpleNamespace(), q, q, q, boundaries(Segments.from_lengths([[3, 3]])))


def test_boundaries_that_a_low_precision_rounded_are_refused():
    """bfloat16 has no 4,133: a model that casts its mask must not run on other boundaries in silence."""
    seg = Segments.from_lengths([[4000, 133]])
    q = torch.randn(1, 1, 4133, 2)
    with pytest.raises(BoundaryError):
        segment_attention(SimpleNamespace(), q, q, q, boundaries(seg).to(torch.bfloat16))
