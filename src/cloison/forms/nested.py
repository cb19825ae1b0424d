"""Nested tensors of torch, jagged layout: one component a segment, over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cloison.errors import BoundaryError
from cloison.forms.tensors import tensor
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["jagged"]


def jagged(values: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Return ``values`` as a nested tensor [segments, length of each, ...]; ``.values()`` of it gives the flat tokens back.

    Args:
        values: [tokens, ...], the valid tokens of all rows, one row after the other; or [B, T, ...], where each row's
            padding tail becomes a component of its own. No memory is copied for the first.

    Raises:
        BoundaryError: ``values`` has another number of tokens than ``segments``.
    """
    import torch

    batch = (segments.num_rows, segments.width)
    covering = tuple(values.shape[:2]) == batch and values.shape[0] != segments.num_tokens
    if not covering and values.shape[0] != segments.num_tokens:
        raise BoundaryError(
            f"values must be [{segments.num_tokens}, ...] or [{batch[0]}, {batch[1]}, ...].",
            f"The shape is {list(values.shape)}.",
            "Pass values and segments of the same batch.",
        )
    offsets = segments.cu_seqlens(covering=covering)
    lengths = np.diff(offsets)
    return torch.nested.nested_tensor_from_jagged(
        values.flatten(0, 1) if covering else values,
        tensor(offsets, np.int64, values.device),
        min_seqlen=int(lengths.min(initial=0)),
        max_seqlen=int(lengths.max(initial=0)),
    )
