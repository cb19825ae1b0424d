"""Rung d: our own attention in place of the model's, with the boundaries where the model passes its mask."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cloison.exact.attention import registered_name
from cloison.exact.batches import PackedBatch
from cloison.exact.boundaries import boundaries
from cloison.exact.facts import Facts
from cloison.exact.masks import Arrangement, arranged, shapes
from cloison.exact.signals import Signal, nothing

if TYPE_CHECKING:
    import torch

__all__ = ["signals"]


def signals(facts: Facts) -> list[Signal]:
    """Return the signals that run `segment_attention`: through transformers' interface, or in place of torch's function."""
    if not facts.attention:
        return [Signal("d", "in place of torch's", nothing, positions, sdpa=True, dense=False) for positions in facts.positions]
    return [
        Signal(
            "d",
            detail.replace("one mask", "").replace("a mask", "windows"),
            partial(_keywords, arrangement=arrangement),
            positions,
            registered_name(),
            dense=False,
        )
        for positions in facts.positions
        for detail, arrangement in shapes(facts)
    ]


def _keywords(model: torch.nn.Module, batch: PackedBatch, *, arrangement: Arrangement) -> dict[str, Any]:
    return {"attention_mask": arranged(arrangement, boundaries, batch.segments)}
