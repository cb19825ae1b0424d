"""Rung a: the lengths go to a varlen kernel, where the model runs one (flash attention)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.exact.facts import Facts
from cloison.exact.signals import Signal
from cloison.forms.hf import kernel_arguments

if TYPE_CHECKING:
    import torch

__all__ = ["signals"]


def signals(facts: Facts) -> list[Signal]:
    """Return the signals with ``cu_seq_lens_q`` and the rest of flash attention's arguments; none for other attention."""
    if "flash" not in facts.attention:
        return []
    return [Signal("a", facts.attention, _keywords, positions, dense=False) for positions in facts.positions]


def _keywords(model: torch.nn.Module, batch: PackedBatch) -> dict[str, Any]:
    import torch

    device = batch.input_ids.device
    arguments = kernel_arguments(batch.segments, "flash")
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
