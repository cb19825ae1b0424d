"""Way: one exact-if-proven manner of running a packed batch on a model, the unit that adapt tries and an adapter keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cloison.exact.batches import PackedBatch
from cloison.exact.kernels import SDPA

if TYPE_CHECKING:
    import torch

__all__ = ["RUNGS", "Way"]

RUNGS = {
    "a": "lengths to a varlen kernel",
    "b": "position_ids",
    "c": "own masks",
    "d": "own attention",
    "e": "wrapped mixers",
    "f": "unpacked rows",
    "g": "one segment at a time",
}
"""The letter of each rung and what it does."""


@dataclass(frozen=True)
class Way:
    """One manner of running packed batches.

    Attributes:
        rung: its letter in `RUNGS`.
        detail: the choice within the rung, for people.
        run: (model, batch) to the model's outputs in packed row order, without a loss; a function of a module, or a partial of
            one, so that a way can be copied and pickled.
        layout: how `Adapter.collate` should lay out blocks: "flat" is one row for all, "rows" a row for each, where memory
            grows with the square of a row.
        fixed_shapes: whether equal [B, T] give equal graphs, whatever the segments: what compiled models need.
        choice: plain data that names the same choice on another model of the same kind.
    """

    rung: str
    detail: str
    run: Callable[[torch.nn.Module, PackedBatch], Any]
    layout: Literal["flat", "rows"] = "flat"
    fixed_shapes: bool = False
    choice: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        """What computes our own attention; "sdpa" also where that does not run."""
        return str(self.choice.get("below", self.choice).get("kernel", SDPA))

    @property
    def name(self) -> str:
        """The rung and the choice within it, on one line."""
        return f"{self.rung}: {RUNGS[self.rung]}" + (f" ({self.detail})" if self.detail else "")
