"""The interval of keys of each query says what the dense specification says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloison.errors import InputError
from cloison.forms.intervals import cut_into_chunks, key_intervals
from cloison.segments import Segments
from tests.forms.forms_reference import mask_options, segments


@given(st.data(), segments())
def test_intervals_are_the_dense_mask_and_rise(data: st.DataObject, seg: Segments) -> None:
    options = data.draw(mask_options(seg.num_segments))
    first, last = key_intervals(seg, **options)
    key = np.arange(seg.width)
    within = (first[..., None] <= key) & (key <= last[..., None])
    assert np.array_equal(within, seg.dense_mask(**options)[:, 0])
    assert (np.diff(first) >= 0).all()
    assert (np.diff(last) >= 0).all()


@given(segments(), st.integers(1, 9))
def test_chunks_as_boundaries_are_chunked_attention(seg: Segments, chunk: int) -> None:
    cut = cut_into_chunks(seg, chunk)
    valid = seg.segment_ids() > 0
    assert np.array_equal(cut.dense_mask()[:, 0][valid], seg.dense_mask(chunk=chunk)[:, 0][valid])


@pytest.mark.parametrize("options", [{"window": 0}, {"chunk": 0}, {"prefix_lengths": [1]}])
def test_options_out_of_range_raise(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        key_intervals(Segments.from_lengths([[2, 1]]), **options)
    if "chunk" in options:
        with pytest.raises(InputError, match="chunk must be at least 1"):
            cut_into_chunks(Segments.from_lengths([[2, 1]]), 0)
