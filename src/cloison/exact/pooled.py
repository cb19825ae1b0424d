"""Models that give one output a sample (rewards, classes): the base runs packed, and their own forward pools each sample.

Such a model takes the last token (or the first, or the mean) of a row, and of a packed row that is one sample's. Here the base
runs in any way that is exact for its hidden states; those are unpacked to a row for each sample, and the model's own forward,
with the base held to them, makes its outputs: [segments, features], in packed order. A padded row repeats the sample's last
token and its hidden state, so that looking for the last token finds an equal one; a mask of the valid tokens is passed along
for those that take means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from cloison.exact.batches import PackedBatch
from cloison.exact.calling import accepted, call, lock_of, logits_of
from cloison.exact.layout import Layout
from cloison.exact.outputs import changed
from cloison.exact.splitting import Split, splits_of
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["POOLED", "STYLES", "Style", "pooled", "spread_over_tokens"]

POOLED = "pooled"
"""The key under which a choice says that, and how, samples are pooled."""

Style = Literal["together", "one by one"]
"""Whether the samples are pooled in one call, or each in its own (models without a padding id refuse several rows)."""

STYLES: tuple[Style, ...] = ("together", "one by one")


def spread_over_tokens(outputs: torch.Tensor, lengths: Iterable[int]) -> torch.Tensor:
    """Return ``outputs`` [segments, features] as [tokens, features]: each token has the output of its sample."""
    import torch

    return outputs.repeat_interleave(torch.tensor(list(lengths), device=outputs.device), dim=0)


def pooled(way: Way, split: Split, style: Style) -> Way:
    """Return the way that gives the outputs of samples of a model split by ``split``, whose base runs by ``way``."""
    run = partial(_run, way=way, split=split, style=style)
    return replace(way, run=run, detail=f"{way.detail}; samples pooled {style}", choice={**way.choice, POOLED: style})


def _run(model: torch.nn.Module, batch: PackedBatch, *, way: Way, split: Split, style: Style) -> Any:
    at = _same(split, model)
    with lock_of(model):
        with at.base_alone() as kinds:
            hidden = logits_of(way.run(model, batch))
        segments = range(batch.segments.num_segments)
        groups = [list(segments)] if style == "together" else [[segment] for segment in segments]
        return _joined([_heads(model, at, kinds[0], hidden, batch, group) for group in groups])


def _same(split: Split, model: torch.nn.Module) -> Split:
    """Return ``split`` on ``model``: the same place in another model of its kind, where it is another."""
    if any(module is split.whole for module in model.modules()):
        return split
    kind = type(split.base)
    return next(other for other in splits_of(model) if type(other.base) is kind)


def _heads(model: torch.nn.Module, split: Split, kind: type, hidden: torch.Tensor, batch: PackedBatch, group: list[int]) -> Any:
    layout = Layout.of(batch.segments, batch.input_ids.device, chosen=group)
    ids, rows = layout.to_rows(batch.input_ids), layout.to_rows(hidden)
    mask = accepted(model, {"attention_mask": layout.valid.long()}) if layout.longest * len(group) > sum(layout.lengths) else {}
    with split.held(rows, kind):
        return call(model, ids, **mask)


def _joined(outputs: list[Any]) -> Any:
    import torch

    return changed(outputs[0], logits=torch.cat([logits_of(output) for output in outputs]))
