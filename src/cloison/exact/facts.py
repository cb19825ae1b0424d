"""What adapt finds out about a model before it climbs the rungs: its kinds of layers, and the positions it wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.exact.calling import accepted, call, logits_of
from cloison.forms.hf import kernel_arguments
from cloison.forms.linear import seq_idx
from cloison.proof.setup import FAILURES
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["LENGTHS", "OWN_NAMES", "Facts", "Positions", "facts_of", "own_arguments"]

_WINDOWED = ("sliding_attention", "hybrid_sliding")
_CHUNKED = ("chunked_attention",)
LENGTHS = "linear"
"""The kernel of `forms.hf.KERNELS` that takes offsets; as a word for what a mixer is told by."""

_TOLD = (("seq_idx",), (LENGTHS,), ("seq_idx", LENGTHS))

_ATTENTIONS = ("full_attention", "hybrid", *_WINDOWED, *_CHUNKED)


@dataclass(frozen=True)
class Positions:
    """How positions are passed.

    Attributes:
        start: the first position of a segment, or None where the model takes no ``position_ids``.
        planes: 1 for [B, T], 4 for M-RoPE's [4, B, T] with the text plane first.
    """

    start: int | None = 0
    planes: int = 1

    def keywords(self, segments: Segments, device: torch.device) -> dict[str, Any]:
        """Return ``position_ids`` for ``segments``, or nothing."""
        import torch

        if self.start is None:
            return {}
        flat = torch.from_numpy(segments.position_ids(self.start).copy()).to(device)
        return {"position_ids": flat if self.planes == 1 else flat.expand(self.planes, *flat.shape)}

    def __str__(self) -> str:
        if self.start is None:
            return "no positions"
        return f"positions from {self.start}" + (f" in {self.planes} planes" if self.planes > 1 else "")


@dataclass(frozen=True)
class Facts:
    """What is known of a model before anything is measured on packed blocks.

    Attributes:
        positions: the forms that give a lone sample what the model gives it by itself, the likeliest first.
        window, chunk: of the configuration's text part, in tokens, or None.
        kinds: layer type to (window, chunk), for models whose layers differ; empty where they do not.
        attention: the implementation in use, as "sdpa"; "" outside transformers.
        heeded: names in `forms.hf.KERNELS` whose arguments, together, change what a lone sample gives: kernels heed them.
        named: keywords of `OWN_NAMES` that the forward names and that change what a lone sample gives.
        scaling_limit: the position at which rotary tables change with the longest position of a batch, or None.
    """

    positions: tuple[Positions, ...]
    window: int | None
    chunk: int | None
    kinds: Mapping[str, tuple[int | None, int | None] | None]
    attention: str
    heeded: tuple[tuple[str, ...], ...] = ()
    named: tuple[str, ...] = ()
    scaling_limit: int | None = None


def facts_of(model: torch.nn.Module, sample: torch.Tensor, tolerance: float) -> Facts:
    """Return the facts of ``model``; ``sample`` [1, n] is a lone sample to try positions on."""
    config = getattr(model, "config", None)
    text: Any = config.get_text_config(decoder=True) if config is not None and hasattr(config, "get_text_config") else config
    window = _number(text, "sliding_window", "sliding_window_size", "attention_window_size", "window_size")
    chunk = _number(text, "attention_chunk_size")
    kinds: dict[str, tuple[int | None, int | None] | None] = {}
    for kind in dict.fromkeys(getattr(text, "layer_types", None) or ()):
        if kind in _ATTENTIONS:
            kinds[kind] = (window if kind in _WINDOWED else None, chunk if kind in _CHUNKED else None)
        else:
            kinds[kind] = None
    attention = getattr(config, "_attn_implementation", None) or ""
    positions = _positions(model, text, sample, tolerance)
    heeded, named = _heeded(model, sample, tolerance)
    return Facts(positions, window, chunk, kinds, attention, heeded, named, _scaling_limit(text))


def _heeded(
    model: torch.nn.Module, sample: torch.Tensor, tolerance: float
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return which of `_TOLD`, and which of `OWN_NAMES`, change a lone sample that is said to be two."""
    import torch

    width = int(sample.shape[1])
    halves = Segments.from_lengths([[width // 2, width - width // 2]])
    with torch.no_grad():
        own = logits_of(call(model, sample))

        def changes(keywords: Mapping[str, Any]) -> bool:
            if not keywords or len(accepted(model, keywords)) < len(keywords):
                return False
            on = {name: v.to(sample.device) if isinstance(v, torch.Tensor) else v for name, v in keywords.items()}
            try:
                told = logits_of(call(model, sample, **on))
            except FAILURES:  # a kernel that is not installed, or a model that does not take them
                return False
            return float((told - own).abs().max()) > tolerance * float(own.std())

        found: list[tuple[str, ...]] = []
        for kernels in _TOLD:
            if len(kernels) == 1 or len(found) == len(kernels):  # a second one that nothing heeds adds nothing
                found += [kernels] if changes(kernel_arguments(halves, kernels)) else []
        stated = own_arguments(model, halves)
        return tuple(found), tuple(stated) if changes(stated) else ()


def own_arguments(model: torch.nn.Module, segments: Segments) -> dict[str, Any]:
    """Return the boundaries under every name of `OWN_NAMES` that the model's forward has."""
    import inspect

    names = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters
    return {name: make(segments) for name, make in OWN_NAMES.items() if name in names}


def _covering(segments: Segments) -> Any:
    import torch

    return torch.from_numpy(segments.cu_seqlens(covering=True).copy())


def _longest(segments: Segments) -> int:
    return int(np.diff(segments.cu_seqlens(covering=True)).max())


OWN_NAMES: Mapping[str, Callable[[Segments], Any]] = {
    **dict.fromkeys(("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_q", "cu_seq_k"), _covering),
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "cu_seq_lens"), _covering),
    **dict.fromkeys(("max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_q", "max_k"), _longest),
    **dict.fromkeys(("max_length_q", "max_length_k"), _longest),
    **dict.fromkeys(("seq_idx", "segment_ids", "document_ids", "doc_ids"), seq_idx),
}
"""Names under which models of one's own take boundaries, and what they get: offsets int32 over all tokens, the longest length,
or the number of its segment for each token, from 0."""


def _scaling_limit(config: Any) -> int | None:
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or rope.get("rope_type") not in ("dynamic", "longrope"):
        return None
    stated = rope.get("original_max_position_embeddings")
    return stated if isinstance(stated, int) else _number(config, "original_max_position_embeddings", "max_position_embeddings")


def _number(config: Any, *names: str) -> int | None:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _positions(model: torch.nn.Module, config: Any, sample: torch.Tensor, tolerance: float) -> tuple[Positions, ...]:
    """Return the forms that change nothing for a lone sample, found by trying them."""
    import torch

    if not accepted(model, {"position_ids": None}):
        return (Positions(None),)
    padding = getattr(config, "pad_token_id", None)
    flat = [Positions(start) for start in dict.fromkeys((0, (padding or 0) + 1, 1, 2))]
    planes = [Positions(0, 4)] if "mrope_section" in str(getattr(config, "rope_parameters", None)) else []
    segments = Segments.from_lengths([[sample.shape[1]]])

    def fits(positions: Positions) -> bool:
        try:
            tried = logits_of(call(model, sample, **positions.keywords(segments, sample.device)))
        except FAILURES:  # a form that the model does not take is one that does not fit
            return False
        return float((tried - own).abs().max()) <= tolerance * float(own.std())

    with torch.no_grad():
        own = logits_of(call(model, sample))
        fitting = [form for forms in (planes, flat) for form in [next(filter(fits, forms), None)] if form is not None]
    return tuple(fitting) or (Positions(None),)
