"""Trial: what ways are tried on, and what its samples give alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloison.blocks import Block
from cloison.exact import singles
from cloison.exact.labels import Asks
from cloison.exact.pooled import STYLES, Style, pooled
from cloison.exact.probe import Reference, measure, reference
from cloison.exact.splitting import Split, splits_of
from cloison.exact.twin import stand_in
from cloison.proof.blocks import synthetic, vocabulary
from cloison.proof.setup import FAILURES

if TYPE_CHECKING:
    import torch

__all__ = ["Trial", "in_eval", "trial_of"]


@dataclass(frozen=True)
class Base:
    """Where the base of a model that gives one output a sample may end.

    Attributes:
        split: the place.
        style: how samples are pooled behind it.
        against: the hidden states of the samples alone.
    """

    split: Split
    style: Style
    against: Reference


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
        ids: the ids below which those of the blocks are.
        bases: for a model of one output a sample.
        asks: what labels ask of the model.
    """

    model: torch.nn.Module
    stand_in: str
    blocks: Sequence[Block]
    sample: torch.Tensor
    against: Reference
    synthetic: bool
    ids: int
    bases: tuple[Base, ...] = ()
    asks: Asks = "next tokens"


def trial_of(model: torch.nn.Module, blocks: Sequence[Block] | None, seed: int) -> Trial:
    """Return the trial of ``model`` on ``blocks``, or on synthetic ones and then perhaps on a twin."""
    import torch

    tried, twin = stand_in(model, seed, cut=blocks is None)
    config = getattr(tried, "config", None)
    given = list(synthetic(config, seed=seed) if blocks is None else blocks)
    longest = max((sample.input_ids for block in given for sample in block.samples()), key=len)
    device = next(tried.parameters()).device
    sample = torch.from_numpy(longest.astype(np.int64))[None].to(device)
    ids = vocabulary(config)
    above = 1 + max(int(ids.max()), *(int(block.input_ids.max()) for block in given))
    with in_eval(tried):
        against = reference(tried, given, ids, seed)
        bases = _bases(tried, against, seed) if against.of_samples else []
        return Trial(tried, twin, given, sample, against, blocks is None, above, tuple(bases))


def _bases(model: torch.nn.Module, against: Reference, seed: int) -> Iterator[Base]:
    """Yield every split of ``model`` behind which its own forward pools samples right, found on hidden states made alone."""
    for split in splits_of(model):
        try:
            with split.base_alone():
                hidden = reference(model, against.blocks, against.ids, seed)
        except FAILURES:  # no base of this call
            continue
        for style in STYLES:
            found = measure(model, pooled(singles.ways()[0], split, style), against)
            if max(found.leak, found.equality) <= against.floor:
                yield Base(split, style, hidden)
                break


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
