"""Rung f: the whole batch unpacked, a row for each segment, right-padded, and the outputs packed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.calling import accepted, call
from cloison.exact.layout import Layout
from cloison.exact.outputs import repacked
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["ways"]


def ways() -> list[Way]:
    """Return the unpacked rows without a mask (causality makes the padding harmless), and with the mask of the valid tokens."""
    return [
        Way("f", "no mask", lambda model, batch: _run(model, batch, masked=False)),
        Way("f", "2-D mask", lambda model, batch: _run(model, batch, masked=True)),
    ]


def _run(model: torch.nn.Module, batch: PackedBatch, masked: bool) -> Any:
    layout = Layout.of(batch.segments, batch.input_ids.device)
    ids = layout.to_rows(batch.input_ids)
    keywords = accepted(model, {"attention_mask": layout.valid.long()}) if masked else {}
    return repacked([call(model, ids, **keywords, **batch.options)], [layout])
