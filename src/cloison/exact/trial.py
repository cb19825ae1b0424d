"""Trial: what ways are tried on, and what its samples give alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloison.blocks import Block
from cloison.exact.probe import Reference, reference
from cloison.exact.twin import stand_in
from cloison.proof.blocks import synthetic, vocabulary

if TYPE_CHECKING:
    import torch

__all__ = ["Trial", "in_eval", "trial_of"]


@dataclass(frozen=True)
class Trial:
    """What ways are tried on.

    Attributes:
        model: the model itself, or what stands in for it.
        stand_in: what stands in, "" where nothing does.
        blocks: packed samples of awkward lengths.
        sample: int64 [1, n], the longest of them.
        against: what the samples give alone.
        synthetic: whether the blocks were made here.
    """

    model: torch.nn.Module
    stand_in: str
    blocks: Sequence[Block]
    sample: torch.Tensor
    against: Reference
    synthetic: bool


def trial_of(model: torch.nn.Module, blocks: Sequence[Block] | None, seed: int) -> Trial:
    """Return the trial of ``model`` on ``blocks``, or on synthetic ones and then perhaps on a twin."""
    import torch

    tried, twin = stand_in(model, seed, cut=blocks is None)
    config = getattr(tried, "config", None)
    given = list(synthetic(config, seed=seed) if blocks is None else blocks)
    longest = max((sample.input_ids for block in given for sample in block.samples()), key=len)
    device = next(tried.parameters()).device
    sample = torch.from_numpy(longest.astype(np.int64))[None].to(device)
    with in_eval(tried):
        return Trial(tried, twin, given, sample, reference(tried, given, vocabulary(config), seed), blocks is None)


@contextmanager
def in_eval(model: torch.nn.Module) -> Iterator[None]:
    """Hold a model in eval mode, and put every module's own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
