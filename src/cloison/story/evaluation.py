"""What is true of a trained model: the loss of answers on samples alone, and by place in the block as training saw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cloison.samples import Sample
from cloison.segments import IGNORE
from cloison.story.configuration import Run
from cloison.story.setups import blocks_of, collate_as

__all__ = ["answer_loss", "loss_by_place"]


def answer_loss(model: Any, samples: Sequence[Sample]) -> float:
    """Return the mean loss per answer token of ``samples``, each alone in its row."""
    losses = [_losses(model, "alone", samples[start : start + 64], 1) for start in range(0, len(samples), 64)]
    return float(np.concatenate([loss for part in losses for loss in part]).mean())


def loss_by_place(model: Any, run: Run, steps: Sequence[Sequence[Sample]]) -> list[float]:
    """Return the mean answer loss by place in the block, in the form that the set-up trains in."""
    found: list[list[Any]] = [[] for _ in range(run.samples_per_block)]
    for samples in steps:
        for index, loss in enumerate(_losses(model, run.setup, samples, run.samples_per_block)):
            found[index % run.samples_per_block].append(loss)
    return [float(np.concatenate(losses).mean()) for losses in found]


def _losses(model: Any, setup: str, samples: Sequence[Sample], samples_per_block: int) -> list[Any]:
    """Return for each sample the losses of its answer's tokens, float32 [targets]."""
    import torch

    blocks = blocks_of(setup, samples, samples_per_block)
    batch = collate_as(setup, blocks)
    model.eval()
    with torch.no_grad():
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits[:, :-1].float()
    model.train()
    ids = batch["input_ids"]
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    losses = torch.nn.functional.pad(flat.view(ids.shape[0], -1), (1, 0)).numpy()
    out = []
    for row, block in zip(losses, blocks, strict=True):
        start = 0
        for sample in block.samples():
            out.append(row[start : start + len(sample)][sample.labels != IGNORE])
            start += len(sample)
    return out
