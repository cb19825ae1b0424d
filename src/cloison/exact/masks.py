"""Rung c: additive masks that we make, with the windows inside each segment, one for each kind of layer where they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.facts import Facts
from cloison.exact.signals import Signal
from cloison.forms.hf import mask4d
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["shapes", "signals"]

Make = Callable[[Segments, int | None, int | None], Any]


def signals(facts: Facts) -> list[Signal]:
    """Return the signals with dense masks: a plain one, a windowed one, and a mapping from kinds of layers to masks."""
    return [
        Signal("c", detail, _keywords(arrange), positions, fixed_shapes=True)
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


def _keywords(arrange: Callable[[Make, Segments], Any]) -> Callable[[torch.nn.Module, PackedBatch], dict[str, Any]]:
    def keywords(model: torch.nn.Module, batch: PackedBatch) -> dict[str, Any]:
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)

        def make(segments: Segments, window: int | None, chunk: int | None) -> Any:
            return mask4d(segments, dtype, window=window, chunk=chunk).to(batch.input_ids.device)

        return {"attention_mask": arrange(make, batch.segments)}

    return keywords
