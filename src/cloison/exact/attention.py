"""Our own attention: each segment attends to itself alone, in memory and time that grow with the tokens, not with their square.

It is registered with transformers' `AttentionInterface` under the name `NAME`. The boundaries come as the tensor that the model
passes as ``attention_mask`` (transformers returns a 4-D mask untouched), so that a second forward, a recomputation in the
backward and a pipeline schedule each read those of their own micro-batch. Nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.errors import BoundaryError
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["NAME", "boundaries", "is_boundaries", "register", "segment_attention"]

NAME = "cloison_segments"
"""The name of our attention in transformers' interfaces."""

_MARK = -7
_HEAD = 4  # entries before the offsets: mark, window, chunk, tokens


@dataclass(frozen=True)
class _Boundaries:
    lengths: tuple[int, ...]
    window: int
    chunk: int


def boundaries(
    segments: Segments, window: int | None = None, chunk: int | None = None, *, like: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the boundaries of ``segments`` as an int32 tensor [1, 1, 1, n] that `segment_attention` reads as its mask.

    Each row's padding is a segment of its own. ``window`` and ``chunk`` are as in `Segments.dense_mask`; None leaves the window
    to the keyword that the model passes; ``like`` gives both from boundaries made before. The tensor lives on the host:
    reading it never waits for a device.
    """
    import torch

    if like is not None:
        window, chunk = int(like[0, 0, 0, 1]), int(like[0, 0, 0, 2])

    offsets = segments.cu_seqlens(covering=True)
    head = [_MARK, window or 0, chunk or 0, segments.num_rows * segments.width]
    return torch.from_numpy(np.concatenate([np.array(head, np.int32), offsets]))[None, None, None]


def is_boundaries(mask: Any) -> bool:
    """Whether ``mask`` is what `boundaries` makes."""
    return getattr(mask, "ndim", 0) == 4 and tuple(mask.shape[:3]) == (1, 1, 1) and int(mask[0, 0, 0, 0]) == _MARK


def register() -> None:
    """Make `NAME` known to transformers' attention and mask interfaces; again is harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, segment_attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: where the model makes one by itself, the boundaries were not passed on, and the attention says so."""


def segment_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return (output [B, T, heads, value size], None): attention inside each segment, causal unless the module says otherwise.

    Args:
        query: [B, heads, T, size]. key, value: [B, key heads, T, size or value size].
        attention_mask: what `boundaries` returned.
        sliding_window, softcap, s_aux, position_bias: as models pass them; ``s_aux`` are attention sinks [heads],
            ``position_bias`` is added to the scores, [1 or B, 1 or heads, 1 or T, T].

    Raises:
        BoundaryError: the mask is not the boundaries, or they do not fit the tokens.
    """
    import torch

    batch, heads, width, _size = query.shape
    stated = _read(attention_mask, batch * width, key.shape[2] * batch)
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    window = stated.window or int(sliding_window or 0)
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    if batch > 1:
        query, key, value = (t.transpose(0, 1).reshape(1, t.shape[1], -1, t.shape[3]) for t in (query, key, value))
        if position_bias is not None:
            raise BoundaryError("position_bias needs one row.", f"There are {batch}.", "Flatten the batch.")
    pieces = _chunked(stated.lengths, stated.chunk)
    starts = [0, *np.cumsum(pieces).tolist()]
    queries, keys, values = (torch.split(t, pieces, dim=2) for t in (query, key, value))
    parts: list[Any] = [None] * len(pieces)
    for places in _together(pieces, apart=position_bias is not None):
        q, k, v = (_stacked([part[i] for i in places]) for part in (queries, keys, values))
        place = slice(starts[places[0]], starts[places[0] + 1])
        bias = None if position_bias is None else position_bias[..., place, place]
        out = _attend(q, k, v, _Kind(causal, window, scaling, dropout, softcap, sinks, bias))
        for index, part in zip(places, torch.split(out, 1), strict=True):
            parts[index] = part
    output = _joined(parts).reshape(heads, batch, width, -1).permute(1, 2, 0, 3)
    return output.contiguous(), None


def _read(mask: Any, tokens: int, key_tokens: int) -> _Boundaries:
    if not is_boundaries(mask):
        raise BoundaryError(
            "this attention reads the boundaries from the mask that the model passes.",
            "The model passed no mask." if mask is None else f"The model passed a mask of shape {list(mask.shape)}.",
            "This model does not hand its attention_mask to its attention: adapt tries the next way.",
        )
    entries = [int(entry) for entry in mask[0, 0, 0].tolist()]
    lengths = np.diff(entries[_HEAD:])
    if entries[3] != tokens or entries[-1] != tokens or key_tokens != tokens or (lengths <= 0).any():
        raise BoundaryError(
            f"the boundaries must cover the {tokens} tokens of the queries.",
            f"They cover {entries[-1]}, and there are {key_tokens} keys.",
            "Pass the boundaries of this batch, without a cache.",
        )
    return _Boundaries(tuple(lengths.tolist()), entries[1], entries[2])


def _chunked(lengths: Sequence[int], chunk: int) -> list[int]:
    """Return ``lengths`` with each segment cut into chunks: those attend to themselves alone."""
    if not chunk:
        return list(lengths)
    return [min(chunk, length - start) for length in lengths for start in range(0, length, chunk)]


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


# ---------------------------------------------------------------------- one group of segments of equal length


@dataclass(frozen=True)
class _Kind:
    """What kind of attention a module asks for."""

    causal: bool
    window: int
    scaling: float | None
    dropout: float
    softcap: float | None
    sinks: torch.Tensor | None
    bias: torch.Tensor | None


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: _Kind) -> torch.Tensor:
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


def _allowed(length: int, kind: _Kind, device: torch.device) -> torch.Tensor:
    import torch

    place = torch.arange(length, device=device)
    distance = place[:, None] - place[None]
    allowed = distance >= 0 if kind.causal else torch.ones_like(distance, dtype=torch.bool)
    return allowed & (distance.abs() < kind.window) if kind.window else allowed


def _mask(length: int, kind: _Kind, like: torch.Tensor) -> torch.Tensor:
    import torch

    allowed = _allowed(length, kind, like.device)
    if kind.bias is None:
        return allowed
    return torch.where(allowed, kind.bias.to(like.dtype), torch.finfo(like.dtype).min)


def _banded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: _Kind) -> torch.Tensor:
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


def _written_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: _Kind) -> torch.Tensor:
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
