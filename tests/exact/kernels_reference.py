"""Slow references that consume exactly the arguments of kernels which do not run on a host: what those kernels document."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace

import torch


def _rows(q, k, v, starts_q, starts_k, longest, scale, window, softcap=None):
    """Attention of each interval of offsets, written out; queries and keys of one interval are aligned at their ends."""
    assert q.dim() == k.dim() == v.dim() == 3 and q.shape[2] == k.shape[2] == v.shape[2], "[tokens, heads, size], of one size"
    assert starts_q.dtype == starts_k.dtype == torch.int32 and starts_q.device == q.device
    assert torch.equal(starts_q, starts_k) and int(starts_q[-1]) == q.shape[0] and int(starts_q[0]) == 0
    assert isinstance(longest, int) and int(torch.diff(starts_q).max()) == longest
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    left, right = window
    out = []
    for first, last in zip(starts_q.tolist(), starts_q.tolist()[1:], strict=False):
        scores = torch.einsum("qhd,khd->hqk", q[first:last], k[first:last]) * (scale or 1 / math.sqrt(q.shape[2]))
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(last - first)
        behind = place[:, None] - place[None]
        hidden = torch.zeros_like(behind, dtype=torch.bool)
        if left >= 0:
            hidden |= behind > left
        if right >= 0:
            hidden |= -behind > right
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, v[first:last]))
    return torch.cat(out)


def varlen_attn(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """torch.nn.attention.varlen.varlen_attn of torch 2.13."""
    assert return_aux is seqused_k is block_table is num_splits is None
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert max_q == max_k and isinstance(window_size, tuple)
    return _rows(query, key, value, cu_seq_q, cu_seq_k, max_q, scale, window_size)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """flash_attn.flash_attn_varlen_func of flash-attn 2.8; dropout leaves everything as it is here."""
    assert alibi_slopes is block_table is None and max_seqlen_q == max_seqlen_k
    window = (window_size[0], 0) if causal else tuple(window_size)
    return _rows(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, softmax_scale, window, softcap)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, **_):
    """flash_attn.flash_attn_func of flash-attn 2.8: rows of one length."""
    rows, width = q.shape[:2]
    starts = torch.arange(rows + 1, dtype=torch.int32) * width
    flat = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
    out = flash_attn_varlen_func(*flat, starts, starts, width, width, 0.0, softmax_scale, causal, window_size, softcap)
    return out.reshape(rows, width, *out.shape[1:])


def flash_attn_module():
    """A module ``flash_attn`` with these functions."""
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func, module.flash_attn_func = flash_attn_varlen_func, flash_attn_func
    module.__version__ = "2.8.0"
    module.__spec__ = SimpleNamespace(name="flash_attn")
    return module
