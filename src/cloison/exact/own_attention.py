"""Rung d: our own attention in place of the model's, with the boundaries where the model passes its mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloison.exact.attention import register, registered_name
from cloison.exact.batches import PackedBatch
from cloison.exact.boundaries import boundaries
from cloison.exact.facts import Facts
from cloison.exact.masks import shapes
from cloison.exact.signals import Signal

if TYPE_CHECKING:
    import torch

__all__ = ["signals"]


def signals(facts: Facts) -> list[Signal]:
    """Return the signals that run `segment_attention`: through transformers' interface, or in place of torch's function."""
    if not facts.attention:
        return [
            Signal("d", "in place of torch's", lambda model, batch: {}, positions, sdpa=True, dense=False)
            for positions in facts.positions
        ]
    register()
    return [
        Signal(
            "d",
            detail.replace("one mask", "").replace("a mask", "windows"),
            _keywords(arrange),
            positions,
            registered_name(),
            dense=False,
        )
        for positions in facts.positions
        for detail, arrange in shapes(facts)
    ]


def _keywords(arrange: Callable[..., Any]) -> Callable[[torch.nn.Module, PackedBatch], dict[str, Any]]:
    return lambda model, batch: {"attention_mask": arrange(boundaries, batch.segments)}
