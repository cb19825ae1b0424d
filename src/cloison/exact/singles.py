"""Rung g: one segment at a time, as the samples would run alone: exact by construction, and as slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.calling import call, forget
from cloison.exact.layout import Layout
from cloison.exact.outputs import repacked
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["ways"]


def ways() -> list[Way]:
    """Return the one way of this rung."""
    return [Way("g", "", _run, choice={"rung": "g", "detail": ""})]


def _run(model: torch.nn.Module, batch: PackedBatch) -> Any:
    layouts = [Layout.of(batch.segments, batch.input_ids.device, chosen=[i]) for i in range(batch.segments.num_segments)]
    outputs = []
    for layout in layouts:
        forget(model)
        outputs.append(call(model, layout.to_rows(batch.input_ids), **layout.options(batch.options)))
    return repacked(outputs, layouts)
