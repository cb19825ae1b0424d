"""Kernels that compute our own attention, each from the same boundaries: torch's SDPA per segment, varlen kernels, flex.

Which one runs is found by experiment (`exact.faster`): a kernel that does not run here, or that does not do what the model
asks for, raises, and is not kept. None falls back to another in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError
from cloison.exact.boundaries import kept_on
from cloison.exact.per_segment import Kind, per_segment
from cloison.forms import flash as flash_form
from cloison.forms.flex import block_mask
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["BY_DEVICE", "KERNELS", "SDPA", "Kernel", "cast_to"]

Kernel = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", Sequence[int], Kind, Any], "torch.Tensor"]
"""See `per_segment` for the arguments and what is returned."""

SDPA = "sdpa"
"""The name of `per_segment`, which defines what the others must give."""


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Sequence[int], kind: Kind, mask: Any
) -> torch.Tensor:
    """FlashAttention's ``flash_attn_varlen_func`` (package flash_attn, 2.5 or newer)."""
    from flash_attn import flash_attn_varlen_func

    _only("flash", kind, softcap=True, dropout=True)
    arguments = _varlen(flash_form.varlen, query, pieces, kind, mask)
    more: dict[str, Any] = {} if kind.softcap is None else {"softcap": kind.softcap}
    q, k, v = _tokens_first(query, key, value)
    out = flash_attn_varlen_func(q, k, v, softmax_scale=kind.scaling, dropout_p=kind.dropout, **arguments, **more)
    return _cut(out, value)


def _varlen_attn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Sequence[int], kind: Kind, mask: Any
) -> torch.Tensor:
    """torch's own ``varlen_attn`` (2.10 or newer, CUDA)."""
    from torch.nn.attention import varlen

    _only("varlen_attn", kind)
    arguments = _varlen(flash_form.varlen_attn, query, pieces, kind, mask)
    q, k, v = _tokens_first(query, key, value)
    out: Any = varlen.varlen_attn(q, k, v, scale=kind.scaling, enable_gqa=q.shape[1] != k.shape[1], **arguments)
    return _cut(out, value)


def _flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: Sequence[int], kind: Kind, mask: Any
) -> torch.Tensor:
    """torch's compiled ``flex_attention`` over the BlockMask that `cloison.forms.flex` builds from the boundaries."""
    import torch

    _only("flex", kind, softcap=True, sinks=True)

    def make() -> Any:
        segments = Segments.from_lengths([list(pieces)])
        return block_mask(segments, causal=kind.causal, window=kind.window or None, device=query.device)

    blocks = kept_on(mask, ("flex", tuple(pieces), kind.causal, kind.window, query.device), make)
    options: dict[str, Any] = {"block_mask": blocks, "scale": kind.scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    if kind.softcap is not None:
        options["score_mod"] = _capped(kind.softcap)
    if kind.sinks is None:
        out = compiled_flex()(query, key, value, **options)
        return _tokens_first(out)[0]
    from torch.nn.attention.flex_attention import AuxRequest

    out, found = compiled_flex()(query, key, value, return_aux=AuxRequest(lse=True), **options)
    # A sink is one more score without a value: the weights of the others shrink by exp(lse) / (exp(lse) + exp(sink)).
    share = torch.sigmoid(found.lse.float() - kind.sinks.float()[None, :, None])
    return _tokens_first((out * share[..., None]).to(out.dtype))[0]


KERNELS: Mapping[str, Kernel] = {SDPA: per_segment, "flash": _flash, "varlen_attn": _varlen_attn, "flex": _flex}
"""Name to kernel."""

BY_DEVICE: Mapping[str, tuple[str, ...]] = {"cuda": ("flash", "varlen_attn", "flex")}
"""Type of device to the kernels that are tried there beside `per_segment`, the fastest first."""


@cache
def compiled_flex() -> Any:
    """Return ``flex_attention``, compiled: uncompiled it makes all scores of the row."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@cache
def _capped(softcap: float) -> Callable[..., Any]:
    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return softcap * (score / softcap).tanh()

    return score_mod


def cast_to(device: torch.device) -> torch.dtype | None:
    """Return the dtype that autocast gives attention on ``device``, as it gives SDPA, or None where it is off."""
    import torch

    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def _only(name: str, kind: Kind, *, softcap: bool = False, sinks: bool = False, dropout: bool = False) -> None:
    """Raise an InputError that names what of ``kind`` this kernel does not know."""
    asked = {
        "soft caps": kind.softcap is not None and not softcap,
        "attention sinks": kind.sinks is not None and not sinks,
        "dropout": bool(kind.dropout) and not dropout,
        "a position bias": kind.bias is not None,
    }
    unknown = [what for what, wanted in asked.items() if wanted]
    if unknown:
        raise InputError(
            f"the kernel {name!r} computes plain and windowed attention.",
            f"The model asks for {' and '.join(unknown)}.",
            "Call cloison.adapt(model) with the model in the mode in which it will run, or with kernels=().",
        )


def _varlen(
    form: Callable[..., dict[str, Any]], query: torch.Tensor, pieces: Sequence[int], kind: Kind, mask: Any
) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        segments = Segments.from_lengths([list(pieces)])
        return form(segments, causal=kind.causal, window=kind.window or None, device=query.device)

    found: dict[str, Any] = kept_on(mask, (form, tuple(pieces), kind.causal, kind.window, query.device), make)
    return found


def _tokens_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return each [1, heads, T, size] as [T, heads, size], values filled up with 0 to the size of the queries."""
    import torch

    size = tensors[0].shape[-1]
    return [
        torch.nn.functional.pad(t[0].transpose(0, 1), (0, size - t.shape[-1])) if t.shape[-1] < size else t[0].transpose(0, 1)
        for t in tensors
    ]


def _cut(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return out[..., : value.shape[-1]]
