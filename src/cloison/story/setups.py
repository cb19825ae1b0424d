"""What each set-up feeds the model: the same samples in the same steps, as rows that differ in one thing each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from cloison.blocks import Block
from cloison.packing.memory import pack_samples
from cloison.samples import Sample
from cloison.story.configuration import Configuration, Run
from cloison.story.dialogs import Dialogs

__all__ = ["batch_of", "blocks_of", "collate_as", "steps_of"]


def steps_of(dialogs: Dialogs, run: Run, configuration: Configuration) -> Iterator[list[Sample]]:
    """Yield the samples of every step of the training, in order: the same for every set-up."""
    order = random.Random(run.seed)
    for _ in range(configuration.epochs):
        groups = [list(group) for group in dialogs.trained]
        order.shuffle(groups)
        samples = [sample for group in groups for sample in group]
        if run.neighbours == "unrelated":
            order.shuffle(samples)
        size = configuration.samples_per_step
        yield from (samples[start : start + size] for start in range(0, len(samples) - size + 1, size))


def blocks_of(setup: str, samples: Sequence[Sample], samples_per_block: int) -> list[Block]:
    """Return ``samples`` in blocks, in their order: one a block for "alone", else ``samples_per_block``."""
    size = 1 if setup == "alone" else samples_per_block
    room = sum(map(len, samples))
    return pack_samples(samples, capacity=room, policy="in_order", order="input", max_segments=size)


def batch_of(setup: str, samples: Sequence[Sample], samples_per_block: int) -> dict[str, Any]:
    """Return one step's batch, as ``setup`` would feed it to the model."""
    return collate_as(setup, blocks_of(setup, samples, samples_per_block))


def collate_as(setup: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the rows that ``setup`` makes of ``blocks``: the first two of `SETUPS` are right, each other has one fault."""
    import torch

    from cloison.forms import hf

    batch = hf.rows(blocks, capacity=max(block.num_tokens for block in blocks))
    if setup in ("alone", "packed"):
        return batch
    ids, labels, positions = batch["input_ids"], batch["labels"], batch["position_ids"]
    if setup == "plain causal":
        return batch | {"position_ids": torch.arange(ids.shape[1]).expand_as(ids)}
    starts = positions == 0
    starts[:, 0] = False
    valid = torch.zeros_like(starts)
    for row, block in zip(valid, blocks, strict=True):
        row[: block.num_tokens] = True
    if setup == "boundary targets":
        return batch | {"labels": torch.where(starts & valid, ids, labels)}
    if setup == "prompts and padding":
        return batch | {"labels": torch.where(starts & valid, labels, ids)}
    raise KeyError(setup)
