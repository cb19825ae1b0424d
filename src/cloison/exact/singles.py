"""Rung g: one segment at a time, as the samples would run alone: exact by construction, and as slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.calling import call
from cloison.exact.layout import Layout
from cloison.exact.outputs import repacked
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["forget", "ways"]


def ways() -> list[Way]:
    """Return the one way of this rung."""
    return [Way("g", "", _run)]


def _run(model: torch.nn.Module, batch: PackedBatch) -> Any:
    layouts = [Layout.of(batch.segments, batch.input_ids.device, chosen=[i]) for i in range(batch.segments.num_segments)]
    outputs = []
    for layout in layouts:
        forget(model)
        outputs.append(call(model, layout.to_rows(batch.input_ids), **batch.options))
    return repacked(outputs, layouts)


def forget(model: torch.nn.Module) -> None:
    """Put rotary tables that grew with an earlier, longer input back to what they were at first (dynamic scaling keeps them).

    transformers 5.24, ``modeling_rope_utils.dynamic_rope_update``: ``max_seq_len_cached`` grows, and shrinks again only when an
    input is shorter than the original limit.
    """
    for module in model.modules():
        own = vars(module)
        if "max_seq_len_cached" in own and "original_max_seq_len" in own and hasattr(module, "original_inv_freq"):
            if module.max_seq_len_cached != module.original_max_seq_len:  # type: ignore[operator]
                module.max_seq_len_cached = module.original_max_seq_len  # type: ignore[assignment]
                module.inv_freq = module.original_inv_freq  # type: ignore[assignment]
