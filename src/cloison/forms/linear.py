"""Recurrent, convolutional and linear-attention kernels: ``seq_idx`` (mamba, causal-conv1d) and ``cu_seqlens`` (FLA).

The state of the recurrence and the taps of the short convolution must both stop at every boundary; a kernel that takes one of
these arguments does both. Eager fallbacks in model code often take it and drop it: `cloison.verify` finds those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cloison.errors import BoundaryError
from cloison.forms.tensors import tensor
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["cu_seqlens", "seq_idx"]


def seq_idx(segments: Segments) -> torch.Tensor:
    """Return int32 [B, T]: 0, 1, ... in each row, the padding tail as one more segment, as mamba and causal-conv1d want it.

    >>> seq_idx(Segments.from_lengths([[2, 1], [3]], capacity=4)).tolist()
    [[0, 0, 1, 2], [0, 0, 0, 1]]
    """
    ids = segments.segment_ids()
    counts = np.diff(segments.row_offsets)[:, None]
    return tensor(np.where(ids > 0, ids - 1, counts), np.int32)


def cu_seqlens(segments: Segments, attention_mask: npt.ArrayLike | None = None) -> torch.Tensor:
    """Return int64 [segments + 1] covering offsets for flash-linear-attention, whose kernels take one row [1, B * T].

    Args:
        attention_mask: a mask [B, T] that the caller has as well: 1 on valid tokens, 0 on padding. It adds nothing and is
            only compared, since those kernels let one of the two win in silence.

    Raises:
        BoundaryError: the mask states other valid tokens than the segments.
    """
    if attention_mask is not None:
        given = np.asarray(attention_mask).reshape(-1) != 0
        valid = segments.segment_ids().reshape(-1) > 0
        if given.shape != valid.shape or not np.array_equal(given, valid):
            raise BoundaryError(
                f"the attention_mask and the segments must agree on which of {valid.size} tokens are valid.",
                f"The mask has {int(given.sum())} of {given.size}, the segments {int(valid.sum())}.",
                "Pass the lengths alone.",
            )
    return tensor(segments.cu_seqlens(covering=True), np.int64)
