"""xformers: the lengths that ``from_seqlens`` takes describe the dense specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from cloison.errors import InputError, MissingDependencyError
from cloison.forms import xformers
from cloison.segments import Segments
from tests.forms.forms_reference import flattened, segments


@settings(max_examples=40, deadline=None)
@given(segments())
def test_blocks_of_these_lengths_are_the_dense_mask(seg: Segments) -> None:
    lengths = xformers.seqlens(seg)
    assert all(type(length) is int for length in lengths)
    index = np.repeat(np.arange(len(lengths)), lengths)
    assert np.array_equal(index[:, None] == index, flattened(seg, causal=False))


def test_a_window_without_causality_raises() -> None:
    with pytest.raises(InputError, match="for causal attention only"):
        xformers.attn_bias(Segments.from_lengths([[3]]), causal=False, window=2)


def test_its_absence_is_said_plainly() -> None:
    try:
        import xformers as installed  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependencyError, match="xformers"):
            xformers.attn_bias(Segments.from_lengths([[3, 2]]))


@settings(max_examples=30, deadline=None)
@given(segments())
def test_the_biases_of_the_library_are_the_dense_mask(seg: Segments) -> None:
    pytest.importorskip("xformers.ops.fmha.attn_bias")
    total = seg.num_rows * seg.width
    for options in ({}, {"causal": False}, {"window": 3}, {"window": 1}):
        bias = xformers.attn_bias(seg, **options).materialize((total, total))
        assert np.array_equal((bias == 0).numpy(), flattened(seg, **options))
