"""Our own attention: each segment attends to itself alone, in memory and time that grow with the tokens, not with their square.

It is registered with transformers' `AttentionInterface`, a name for each kernel that may compute it. The boundaries come as the
tensor that the model passes as ``attention_mask`` (see `exact.boundaries`). Nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from cloison.errors import BoundaryError
from cloison.exact.boundaries import read
from cloison.exact.kernels import KERNELS, SDPA, cast_to
from cloison.exact.per_segment import Kind

if TYPE_CHECKING:
    import torch

__all__ = ["observed", "register", "registered_name", "segment_attention"]

_NAME = "cloison_segments"

_OBSERVERS: list[Callable[..., None]] = []


def registered_name(kernel: str = SDPA) -> str:
    """Return the name of our attention in transformers' interfaces, computed by ``kernel``.

    The kernel is a number there: models look for "flash" in the name of their attention (transformers 5.24).
    """
    return _NAME if kernel == SDPA else f"{_NAME}_{list(KERNELS).index(kernel)}"


@cache
def register() -> None:
    """Make our attention known to transformers' attention and mask interfaces, with each kernel; again is harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for kernel in KERNELS:
        AttentionInterface.register(registered_name(kernel), partial(segment_attention, kernel=kernel))
        AttentionMaskInterface.register(registered_name(kernel), _no_mask)


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
    kernel: str = SDPA,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return (output [B, T, heads, value size], None): attention inside each segment, causal unless the module says otherwise.

    Args:
        query: [B, heads, T, size]. key, value: [B, key heads, T, size or value size].
        attention_mask: what `boundaries` returned.
        sliding_window, softcap, s_aux, position_bias: as models pass them; ``s_aux`` are attention sinks [heads],
            ``position_bias`` is added to the scores, [1 or B, 1 or heads, 1 or T, T].
        kernel: what computes it, of `KERNELS`.

    Raises:
        BoundaryError: the mask is not the boundaries, or they do not fit the tokens.
        InputError: the kernel cannot do what the model asks for.
    """
    batch, heads, width, _size = query.shape
    stated = read(attention_mask, batch * width, key.shape[2] * batch)
    if batch > 1:
        if position_bias is not None:
            raise BoundaryError("position_bias needs one row.", f"There are {batch}.", "Flatten the batch.")
        query, key, value = (t.transpose(0, 1).reshape(1, t.shape[1], -1, t.shape[3]) for t in (query, key, value))
    kind = Kind(
        is_causal if is_causal is not None else bool(getattr(module, "is_causal", True)),
        stated.window or int(sliding_window or 0),
        scaling,
        dropout,
        softcap,
        s_aux if s_aux is not None else getattr(module, "sinks", None),
        position_bias,
    )
    pieces = _chunked(stated.lengths, stated.chunk)
    for observer in list(_OBSERVERS):
        observer(query, key, value, kind, stated.chunk)
    to = cast_to(query.device) if kernel != SDPA else None
    if to is not None:  # autocast knows SDPA and no other kernel; rotary embeddings come in float32 under it
        query, key, value = query.to(to), key.to(to), value.to(to)
    output = KERNELS[kernel](query, key, value, pieces, kind, attention_mask)
    return output.reshape(batch, width, heads, -1), None


@contextmanager
def observed(observer: Callable[..., None]) -> Iterator[None]:
    """Call ``observer(query, key, value, kind, chunk)`` at every attention while the context lasts: for experiments only."""
    _OBSERVERS.append(observer)
    try:
        yield
    finally:
        _OBSERVERS.remove(observer)


def _chunked(lengths: Sequence[int], chunk: int) -> list[int]:
    """Return ``lengths`` with each segment cut into chunks: those attend to themselves alone."""
    if not chunk:
        return list(lengths)
    return [min(chunk, length - start) for length in lengths for start in range(0, length, chunk)]
