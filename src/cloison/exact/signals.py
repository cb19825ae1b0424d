"""Signals: what a packed row is passed along with, so that its segments stay apart (rungs a to d share this shape)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.exact.attention import register, registered_name
from cloison.exact.batches import PackedBatch
from cloison.exact.calling import Changes, call
from cloison.exact.facts import Positions
from cloison.exact.kernels import SDPA
from cloison.exact.layout import Layout
from cloison.exact.outputs import repacked
from cloison.exact.ways import Way
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["Signal", "nothing", "run_packed", "way_of"]


@dataclass(frozen=True)
class Signal:
    """One way of telling a model where segments begin.

    Attributes:
        rung: its letter.
        detail: the choice within the rung.
        keywords: (model, batch) to what is passed beside ``input_ids``, positions aside.
        positions: the form of positions.
        attention: the registered attention that runs, or None for the model's own.
        sdpa: whether calls of torch's ``scaled_dot_product_attention`` are answered segment by segment.
        dense: whether memory grows with the square of the row.
        fixed_shapes: see `Way`.
        kernel: what computes our own attention, where that runs.
        one_row: whether rows are put one after the other first, for kernels that take a single one.
    """

    rung: str
    detail: str
    keywords: Callable[[torch.nn.Module, PackedBatch], dict[str, Any]]
    positions: Positions
    attention: str | None = None
    sdpa: bool = False
    dense: bool = True
    fixed_shapes: bool = False
    kernel: str = SDPA
    one_row: bool = False

    @property
    def choice(self) -> dict[str, Any]:
        """Plain data that names this signal on any model."""
        plain = {"rung": self.rung, "detail": self.detail, "positions": [self.positions.start, self.positions.planes]}
        return plain if self.kernel == SDPA else plain | {"kernel": self.kernel}

    def by(self, kernel: str) -> Signal:
        """Return this signal with our own attention computed by ``kernel``; itself where that does not run."""
        if self.attention is None and not self.sdpa:
            return self
        return replace(self, kernel=kernel, attention=self.attention and registered_name(kernel))

    @property
    def name(self) -> str:
        """The choice and the positions, for people."""
        kernel = "" if self.kernel == SDPA else f"{self.kernel} kernel"
        return ", ".join(part for part in (self.detail, kernel, str(self.positions)) if part)


Forwards = Callable[[PackedBatch], Mapping[Any, Callable[..., Any]]]
"""A batch to modules and the forwards that stand in for their own on it."""


def run_packed(model: torch.nn.Module, batch: PackedBatch, signal: Signal, forwards: Forwards | None = None) -> Any:
    """Return the outputs of the packed rows as they are, under ``signal``."""
    if signal.one_row and batch.segments.num_rows > 1:
        layout = Layout.of_one_row(batch.segments, batch.input_ids.device)
        segments = Segments.from_lengths([np.diff(batch.segments.cu_seqlens(covering=True))])
        flat = PackedBatch(layout.to_rows(batch.input_ids), segments, options=layout.options(batch.options))
        return repacked([run_packed(model, flat, signal, forwards)], [layout])
    if signal.attention is not None:
        register()  # in this process: a way may come from another
    inside = batch.segments if signal.sdpa else None
    changes = Changes(signal.attention, inside, forwards(batch) if forwards is not None else {}, signal.kernel)
    keywords = signal.keywords(model, batch) | signal.positions.keywords(batch.segments, batch.input_ids.device)
    with changes.on_with_recomputation(model):
        return call(model, batch.input_ids, **keywords, **batch.options)


def nothing(model: torch.nn.Module, batch: PackedBatch) -> dict[str, Any]:
    """Return the keywords of a signal that passes positions alone."""
    return {}


def way_of(signal: Signal) -> Way:
    """Return ``signal`` as a way."""
    return Way(
        signal.rung,
        signal.name,
        partial(run_packed, signal=signal),
        "rows" if signal.dense else "flat",
        signal.fixed_shapes,
        signal.choice,
    )
