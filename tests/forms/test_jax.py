"""JAX arrays: ids and masks that say what the dense specification says, and the names of grain and MaxText."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.forms import jax as forms_jax
from cloison.segments import IGNORE, Segments
from tests.forms.forms_reference import a_block, mask_options, segments


@given(st.data(), segments())
def test_ids_and_mask_are_the_dense_mask(data: st.DataObject, seg: Segments) -> None:
    ids = forms_jax.segment_ids(seg)
    assert ids.dtype == np.int32
    assert np.array_equal(ids[:, :, None] == ids[:, None, :], seg.dense_mask(causal=False)[:, 0])
    options = data.draw(mask_options(seg.num_segments))
    assert np.array_equal(forms_jax.mask(seg, **options), seg.dense_mask(**options))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3), st.integers(36, 40))
def test_grain_rows_hold_the_segments_and_train_targets_only(rows: list[list[int]], capacity: int) -> None:
    blocks = [a_block(row, seed=index) for index, row in enumerate(rows)]
    found = forms_jax.grain(blocks, capacity)
    assert all(array.dtype == np.int32 and array.shape == (len(rows), capacity) for array in found.values())
    for row, block in enumerate(blocks):
        valid = found["inputs_segment_ids"][row] > 0
        assert found["inputs"][row][valid].tolist() == block.input_ids.tolist()
        trained = found["targets_segment_ids"][row] > 0
        assert not trained[~valid].any()
        assert np.array_equal(trained[valid], block.targets != IGNORE)
        assert found["targets"][row][trained].tolist() == block.targets[block.targets != IGNORE].tolist()
        assert found["inputs_positions"][row][valid].tolist() == block.segments.position_ids()[0, : block.num_tokens].tolist()
        assert not found["inputs_positions"][row][~valid].any()


def test_names() -> None:
    block = a_block([3, 2], 8)
    assert list(forms_jax.grain(block)) == [
        f"{feature}{suffix}" for feature in ("inputs", "targets") for suffix in ("", "_segment_ids", "_positions")
    ]
    assert list(forms_jax.maxtext(block)) == [
        f"{feature}{suffix}" for feature in ("inputs", "targets") for suffix in ("", "_segmentation", "_position")
    ]


def test_case_LBL_09(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["LBL-09"]
    tokens, ids = case["input"]["tokens"], case["input"]["segment_ids"]
    seg = Segments.from_segment_ids([ids], padding=-1)
    from cloison.blocks import Block

    real = tokens[: seg.num_tokens]
    block = Block(real, [IGNORE, *real[1:]], seg, [0])
    found = forms_jax.grain(block, len(tokens))["targets_segment_ids"][0]
    assert found.tolist() == case["expectation"]["predictor_weights"]
