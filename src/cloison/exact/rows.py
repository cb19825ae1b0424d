"""Rung f: the whole batch unpacked, a row for each segment, right-padded, and the outputs packed again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.calling import accepted, call, forget
from cloison.exact.layout import Layout, equal_lengths
from cloison.exact.outputs import repacked
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["ways"]


def ways() -> list[Way]:
    """Return the unpacked rows without a mask (causality makes the padding harmless), with the mask of the valid tokens, and
    in groups of equal length without any padding, for models that look at the length of the batch."""
    return [
        Way("f", "no mask", partial(_padded, masked=False), choice={"rung": "f", "detail": "no mask"}),
        Way("f", "2-D mask", partial(_padded, masked=True), choice={"rung": "f", "detail": "2-D mask"}),
        Way("f", "equal lengths together", _equal, choice={"rung": "f", "detail": "equal lengths together"}),
    ]


def _padded(model: torch.nn.Module, batch: PackedBatch, masked: bool) -> Any:
    layout = Layout.of(batch.segments, batch.input_ids.device)
    ids = layout.to_rows(batch.input_ids)
    keywords = accepted(model, {"attention_mask": layout.valid.long()}) if masked else {}
    return repacked([call(model, ids, **keywords, **layout.options(batch.options))], [layout])


def _equal(model: torch.nn.Module, batch: PackedBatch) -> Any:
    groups = equal_lengths(batch.segments)
    layouts = [Layout.of(batch.segments, batch.input_ids.device, chosen=group) for group in groups]
    outputs = []
    for layout in layouts:
        forget(model)
        outputs.append(call(model, layout.to_rows(batch.input_ids), **layout.options(batch.options)))
    return repacked(outputs, layouts)
