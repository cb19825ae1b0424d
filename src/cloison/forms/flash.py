"""Varlen attention kernels, which take the boundaries as offsets: FlashAttention's and torch's own ``varlen_attn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.errors import InputError
from cloison.forms.intervals import cut_into_chunks
from cloison.forms.tensors import tensor
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["varlen", "varlen_attn"]


def varlen(
    segments: Segments,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    static: int | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of ``flash_attn_varlen_func(q, k, v, **arguments)`` for q, k, v of [B * T, heads, dim].

    The offsets cover all B * T tokens, each row's padding tail as a segment of its own: kernels leave what no segment covers
    unwritten. For tensors of valid tokens only, pass Segments without a capacity, in one row.

    Args:
        causal, window: as in `Segments.dense_mask`; flash counts the keys beside the query, so ``window`` 4 becomes (3, 0).
        chunk: attention inside chunks of this many positions of each segment, said to the kernel as more boundaries.
        static: a fixed number of segments (of chunks, where cut): ``static + 2`` offsets whose last repeats, and T as the
            longest length. Of several rows, every padding tail but one counts as a segment.
        device: of the offsets; None: the CPU. The longest lengths are Python integers: nothing waits for a device.

    Returns:
        ``cu_seqlens_q``, ``cu_seqlens_k`` (the same int32 [segments + 1]), ``max_seqlen_q``, ``max_seqlen_k``, ``causal``,
        ``window_size`` (left, right).

    Raises:
        BoundaryError: more segments than ``static``.
    """
    offsets, longest = _offsets(segments, chunk, static, device)
    return {
        "cu_seqlens_q": offsets,
        "cu_seqlens_k": offsets,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "causal": causal,
        "window_size": (-1, -1) if window is None else _window(window, causal),
    }


def varlen_attn(
    segments: Segments,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    static: int | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of ``torch.nn.attention.varlen.varlen_attn(q, k, v, **arguments)``; as `varlen`.

    torch 2.13 has no ``is_causal``: causality is said by ``window_size=(-1, 0)``.
    """
    offsets, longest = _offsets(segments, chunk, static, device)
    unlimited = (-1, 0) if causal else (-1, -1)
    return {
        "cu_seq_q": offsets,
        "cu_seq_k": offsets,
        "max_q": longest,
        "max_k": longest,
        "window_size": unlimited if window is None else _window(window, causal),
    }


def _offsets(
    segments: Segments, chunk: int | None, static: int | None, device: str | torch.device | None
) -> tuple[torch.Tensor, int]:
    pieces = segments if chunk is None else cut_into_chunks(segments, chunk)
    offsets = pieces.cu_seqlens(covering=True, static=static)
    longest = pieces.width if static is not None else int(np.diff(offsets).max(initial=0))
    return tensor(offsets, np.int32, device), longest


def _window(window: int, causal: bool) -> tuple[int, int]:
    if window < 1:
        raise InputError("window must be at least 1 token.", f"It is {window}.", "Pass None for no limit.")
    return (window - 1, 0 if causal else window - 1)
