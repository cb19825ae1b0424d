"""Rung c: masks that we make, with the windows inside each segment, one for each kind of layer where they differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.facts import Facts
from cloison.exact.signals import Signal
from cloison.forms.flex import block_mask
from cloison.forms.hf import mask4d
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["shapes", "signals"]

Make = Callable[[Segments, int | None, int | None], Any]


def signals(facts: Facts) -> list[Signal]:
    """Return the signals with masks: a plain one, a windowed one, and a mapping from kinds of layers to masks.

    They are dense, and before that BlockMasks where the model runs flex attention: those take the square of blocks of 128.
    """
    blocks = [_block_mask] if facts.attention == "flex_attention" else []
    return [
        Signal(
            "c",
            f"{detail}, in blocks" if form is _block_mask else detail,
            _keywords(arrange, form),
            positions,
            fixed_shapes=True,
        )
        for form in (*blocks, _dense_mask)
        for positions in facts.positions
        for detail, arrange in shapes(facts)
    ]


def shapes(facts: Facts) -> list[tuple[str, Callable[[Make, Segments], Any]]]:
    """Return (name, arrangement) of the masks to try, whatever a mask is: ``arrange(make, segments)`` calls ``make``."""
    found: list[tuple[str, Callable[[Make, Segments], Any]]] = [("one mask", lambda make, segments: make(segments, None, None))]
    if facts.kinds:
        found.append(("a mask per kind of layer", lambda make, segments: _by_kind(make, segments, facts)))
    if facts.window:
        found.append(("the window", lambda make, segments: make(segments, facts.window, None)))
    if facts.chunk:
        found.append(("the chunk", lambda make, segments: make(segments, None, facts.chunk)))
    return found


def _by_kind(make: Make, segments: Segments, facts: Facts) -> dict[str, Any]:
    return {kind: None if size is None else make(segments, *size) for kind, size in facts.kinds.items()}


Form = Callable[["torch.nn.Module", PackedBatch, Segments, int | None, int | None], Any]


def _keywords(arrange: Callable[[Make, Segments], Any], form: Form) -> Callable[[torch.nn.Module, PackedBatch], dict[str, Any]]:
    def keywords(model: torch.nn.Module, batch: PackedBatch) -> dict[str, Any]:
        return {"attention_mask": arrange(partial(form, model, batch), batch.segments)}

    return keywords


def _dense_mask(
    model: torch.nn.Module, batch: PackedBatch, segments: Segments, window: int | None, chunk: int | None
) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    return mask4d(segments, dtype, window=window, chunk=chunk).to(batch.input_ids.device)


def _block_mask(model: torch.nn.Module, batch: PackedBatch, segments: Segments, window: int | None, chunk: int | None) -> Any:
    return block_mask(segments, window=window, chunk=chunk, device=batch.input_ids.device)
