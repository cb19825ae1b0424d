"""Rung c: masks that we make, with the windows inside each segment, one for each kind of layer where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

__all__ = ["Arrangement", "arranged", "shapes", "signals"]

Make = Callable[[Segments, int | None, int | None], Any]
Sizes = tuple[int | None, int | None]
Arrangement = Sizes | Mapping[str, Sizes | None]
"""(window, chunk) of the one mask, or of each kind of layer: None where a kind gets no mask."""


def signals(facts: Facts) -> list[Signal]:
    """Return the signals with masks: a plain one, a windowed one, and a mapping from kinds of layers to masks.

    They are dense, and before that BlockMasks where the model runs flex attention: those take the square of blocks of 128.
    """
    blocks = [_block_mask] if facts.attention == "flex_attention" else []
    return [
        Signal(
            "c",
            f"{detail}, in blocks" if form is _block_mask else detail,
            partial(_keywords, arrangement=arrangement, form=form),
            positions,
            fixed_shapes=True,
        )
        for form in (*blocks, _dense_mask)
        for positions in facts.positions
        for detail, arrangement in shapes(facts)
    ]


def shapes(facts: Facts) -> list[tuple[str, Arrangement]]:
    """Return (name, arrangement) of the masks to try, whatever a mask is."""
    found: list[tuple[str, Arrangement]] = [("one mask", (None, None))]
    if facts.kinds:
        found.append(("a mask per kind of layer", dict(facts.kinds)))
    if facts.window:
        found.append(("the window", (facts.window, None)))
    if facts.chunk:
        found.append(("the chunk", (None, facts.chunk)))
    return found


def arranged(arrangement: Arrangement, make: Make, segments: Segments) -> Any:
    """Return the masks of ``arrangement``, each made by ``make``: one, or a mapping from kinds of layers."""
    if isinstance(arrangement, Mapping):
        return {kind: None if sizes is None else make(segments, *sizes) for kind, sizes in arrangement.items()}
    return make(segments, *arrangement)


Form = Callable[["torch.nn.Module", PackedBatch, Segments, int | None, int | None], Any]


def _keywords(model: torch.nn.Module, batch: PackedBatch, *, arrangement: Arrangement, form: Form) -> dict[str, Any]:
    return {"attention_mask": arranged(arrangement, partial(form, model, batch), batch.segments)}


def _dense_mask(
    model: torch.nn.Module, batch: PackedBatch, segments: Segments, window: int | None, chunk: int | None
) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    return mask4d(segments, dtype, window=window, chunk=chunk).to(batch.input_ids.device)


def _block_mask(model: torch.nn.Module, batch: PackedBatch, segments: Segments, window: int | None, chunk: int | None) -> Any:
    return block_mask(segments, window=window, chunk=chunk, device=batch.input_ids.device)
