"""Attention by torch's SDPA, a call for each group of segments of equal length: what our own attention means, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["Kind", "per_segment"]


@dataclass(frozen=True)
class Kind:
    """What kind of attention a module asks for.

    Attributes:
        causal: whether keys after the query are hidden.
        window: tokens that are seen, the query's own included; 0: all.
        scaling: of the scores; None: 1 / sqrt(size).
        dropout: of the weights.
        softcap: of the scores, or None.
        sinks: [heads] attention sinks, or None.
        bias: added to the scores, [1, 1 or heads, 1 or T, T], or None.
    """

    causal: bool
    window: int
    scaling: float | None
    dropout: float
    softcap: float | None
    sinks: torch.Tensor | None
    bias: torch.Tensor | None


def per_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Sequence[int], kind: Kind, mask: Any = None
) -> torch.Tensor:
    """Return [T, heads, value size]: the attention of each of ``pieces`` over itself.

    Args:
        query: [1, heads, T, size]. key, value: [1, key heads, T, size or value size].
        pieces: lengths that sum to T.
        kind: what is asked for.
        mask: what carries the boundaries; not needed here.

    Cost: linear in T (in T times the window, where there is one); a soft cap, sinks or a bias take squares of the pieces.
    """
    import torch

    starts = [0, *np.cumsum(pieces).tolist()]
    queries, keys, values = (torch.split(t, list(pieces), dim=2) for t in (query, key, value))
    parts: list[Any] = [None] * len(pieces)
    for places in _together(pieces, apart=kind.bias is not None):
        q, k, v = (_stacked([part[i] for i in places]) for part in (queries, keys, values))
        place = slice(starts[places[0]], starts[places[0] + 1])
        own = kind if kind.bias is None else replace(kind, bias=kind.bias[..., place, place])
        for index, part in zip(places, torch.split(_attend(q, k, v, own), 1), strict=True):
            parts[index] = part
    return _joined(parts)[0].transpose(0, 1).contiguous()


def _together(lengths: Sequence[int], apart: bool) -> list[list[int]]:
    """Return the places of the segments that share a call: those of equal length, or each alone."""
    groups: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        groups.setdefault(place if apart else length, []).append(place)
    return list(groups.values())


def _stacked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Return the attention of [group, heads, n, size] segments over themselves."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    length = query.shape[2]
    if kind.softcap is not None or kind.sinks is not None:
        return _written_out(query, key, value, kind)
    grouped = query.shape[1] != key.shape[1]
    if kind.bias is None and not 0 < kind.window < length:
        return scaled_dot_product_attention(
            query, key, value, is_causal=kind.causal, dropout_p=kind.dropout, scale=kind.scaling, enable_gqa=grouped
        )
    if kind.bias is None and kind.causal and length > 4 * kind.window:
        return _banded(query, key, value, kind)
    mask = _mask(length, kind, query)
    if grouped:  # the kernels with a mask want as many heads on both sides
        key, value = (torch.repeat_interleave(t, query.shape[1] // t.shape[1], dim=1) for t in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=kind.dropout, scale=kind.scaling)


def _allowed(length: int, kind: Kind, device: torch.device) -> torch.Tensor:
    import torch

    place = torch.arange(length, device=device)
    distance = place[:, None] - place[None]
    allowed = distance >= 0 if kind.causal else torch.ones_like(distance, dtype=torch.bool)
    return allowed & (distance.abs() < kind.window) if kind.window else allowed


def _mask(length: int, kind: Kind, like: torch.Tensor) -> torch.Tensor:
    import torch

    allowed = _allowed(length, kind, like.device)
    if kind.bias is None:
        return allowed
    return torch.where(allowed, kind.bias.to(like.dtype), torch.finfo(like.dtype).min)


def _banded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Return windowed causal attention in blocks of one window of queries over two windows of keys: linear in the length."""
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    group, heads, length, size = query.shape
    window, blocks = kind.window, -(-length // kind.window)
    rest = blocks * window - length
    repeats = heads // key.shape[1]
    q = pad(query, (0, 0, 0, rest)).reshape(group, heads, blocks, window, size).transpose(1, 2)
    k, v = (
        pad(t, (0, 0, window, rest)).unfold(2, 2 * window, window).permute(0, 2, 1, 4, 3).repeat_interleave(repeats, dim=2)
        for t in (key, value)
    )
    place = torch.arange(window, device=query.device)
    distance = place[:, None] + window - torch.arange(2 * window, device=query.device)[None]
    allowed = ((distance >= 0) & (distance < window)).repeat(blocks, 1, 1)
    allowed[0, :, :window] = False  # there is nothing before the first block
    out = scaled_dot_product_attention(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        attn_mask=allowed.repeat(group, 1, 1)[:, None],
        dropout_p=kind.dropout,
        scale=kind.scaling,
    )
    out = out.reshape(group, blocks, heads, window, -1).transpose(1, 2).flatten(2, 3)
    return out[:, :, :length]


def _written_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Return attention with a soft cap or sinks, which no kernel on the host knows: scores [group, heads, n, n]."""
    import torch

    repeats = query.shape[1] // key.shape[1]
    key, value = (torch.repeat_interleave(t, repeats, dim=1) for t in (key, value))
    scale = query.shape[-1] ** -0.5 if kind.scaling is None else kind.scaling
    scores = query @ key.transpose(2, 3) * scale
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    if kind.bias is not None:
        scores = scores + kind.bias
    scores = scores.masked_fill(~_allowed(query.shape[2], kind, query.device), torch.finfo(scores.dtype).min)
    if kind.sinks is not None:
        sinks = kind.sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores.float(), dim=-1).to(query.dtype)
    if kind.sinks is not None:
        weights = weights[..., :-1]
    if kind.dropout:
        weights = torch.nn.functional.dropout(weights, kind.dropout)
    return weights @ value
