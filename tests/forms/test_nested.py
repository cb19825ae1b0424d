"""Jagged tensors: one component a segment, the same memory, and attention inside components only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cloison.errors import BoundaryError
from cloison.forms import nested
from cloison.segments import Segments
from tests.forms.forms_reference import segments

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@settings(max_examples=30, deadline=None)
@given(segments())
def test_components_are_the_segments(seg: Segments) -> None:
    values = torch.arange(seg.num_tokens * 3.0).reshape(-1, 3)
    found = nested.jagged(values, seg)
    assert found.values().data_ptr() == values.data_ptr()
    pieces = found.unbind()
    assert [len(piece) for piece in pieces] == seg.seq_lengths.tolist()
    assert torch.equal(torch.cat(pieces), values)


@settings(max_examples=30, deadline=None)
@given(segments())
def test_padded_rows_give_their_tails_as_components(seg: Segments) -> None:
    values = torch.arange(seg.num_rows * seg.width * 2.0).reshape(seg.num_rows, seg.width, 2)
    if seg.num_rows == seg.num_tokens:
        return  # [tokens, ...] and [B, T, ...] look alike: taken as tokens
    offsets = torch.tensor(seg.cu_seqlens(covering=True))
    pieces = nested.jagged(values, seg).unbind()
    assert [len(piece) for piece in pieces] == offsets.diff().tolist()
    assert torch.equal(torch.cat(pieces), values.flatten(0, 1))


def test_attention_stays_inside_components() -> None:
    seg = Segments.from_lengths([[9, 1, 14]])
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(seg.num_tokens, 2, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    found = attend(*(nested.jagged(x, seg).transpose(1, 2) for x in (q, k, v))).transpose(1, 2).values()
    mask = torch.tensor(seg.dense_mask(causal=False))
    wanted = attend(*(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=mask)[0].transpose(0, 1)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_values_of_another_batch_raise() -> None:
    with pytest.raises(BoundaryError, match=r"The shape is \[6, 2\]"):
        nested.jagged(torch.zeros(6, 2), Segments.from_lengths([[3, 2]], 8))
