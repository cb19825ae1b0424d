"""Unpacking and packing again is the identity on tokens, whatever the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from cloison.exact.layout import Layout, equal_lengths  # noqa: E402
from cloison.segments import Segments  # noqa: E402

CPU = torch.device("cpu")


@st.composite
def rows(draw):
    lists = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3))
    return Segments.from_lengths(lists, capacity=max(map(sum, lists)) + draw(st.integers(0, 3)))


@settings(max_examples=60, deadline=None)
@given(seg=rows(), padding=st.booleans())
def test_there_and_back(seg, padding):
    packed = torch.arange(1, seg.num_rows * seg.width + 1).reshape(seg.num_rows, seg.width)[..., None].repeat(1, 1, 2)
    layout = Layout.of(seg, CPU, padding=padding)
    unpacked = layout.to_rows(packed)
    valid = torch.from_numpy(np.array(seg.segment_ids() > 0))
    keep = torch.ones_like(valid) if padding else valid
    assert torch.equal(layout.to_packed(unpacked), packed * keep[..., None])
    for row, length in zip(unpacked, layout.lengths, strict=True):
        assert (row[1:length, 0] - row[: length - 1, 0] == 1).all()


@settings(max_examples=40, deadline=None)
@given(seg=rows())
def test_groups_of_equal_length_cover_every_segment_once(seg):
    groups = equal_lengths(seg)
    assert sorted(index for group in groups for index in group) == list(range(seg.num_segments))
    assert all(len({int(seg.seq_lengths[index]) for index in group}) == 1 for group in groups)
    packed = torch.rand(seg.num_rows, seg.width)
    layouts = [Layout.of(seg, CPU, chosen=group) for group in groups]
    total = torch.stack([layout.to_packed(layout.to_rows(packed)) for layout in layouts]).sum(0)
    assert torch.equal(total, packed * torch.from_numpy(np.array(seg.segment_ids() > 0)))


@settings(max_examples=40, deadline=None)
@given(seg=rows(), window=st.sampled_from([None, 2]))
def test_a_dense_mask_becomes_the_mask_of_each_segment(seg, window):
    mask = torch.from_numpy(np.array(seg.dense_mask(window=window)))
    layout = Layout.of(seg, CPU, padding=True)
    found = layout.mask_to_rows(mask)
    for row, length in zip(found, layout.lengths, strict=True):
        alone = torch.from_numpy(np.array(Segments.from_lengths([[length]]).dense_mask(window=window)))[0]
        assert torch.equal(row[:, :length, :length], alone)
        assert not row[:, :length, length:].any()
