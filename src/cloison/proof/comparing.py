"""What comparing packed with alone takes: a floor, a margin, the loss of each token or what stands in for it, the response to
one more rounding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.gradients import embedding_of, given_embeddings
from cloison.proof.pieces import gaps, pieces
from cloison.proof.run import Subject
from cloison.segments import IGNORE

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = [
    "BLUNT",
    "GRADIENT_MARGIN",
    "JITTER_MARGIN",
    "MARGIN",
    "Comparison",
    "coarsest",
    "computing",
    "gap",
    "has_losses",
    "jittered",
    "last_place",
    "rounding_of",
    "signed_sum",
    "token_losses",
]

MARGIN = 3.0
"""How many times the floor a packed run may differ: the same rounding errors in another order."""

GRADIENT_MARGIN = 8.0
"""The same for parameter gradients, which are sums over all tokens, in another order."""

BLUNT = 0.5
"""Where rounding may move outputs by more standard deviations than this, a mismatch would not show: equality is not tested."""

JITTER_MARGIN = 16.0
"""The same where the floor is the response to one rounding of the embeddings: every later operation rounds too."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same samples, packed and alone.

    Attributes:
        quantity: "logits", "hidden states", "loss per token" or "parameter gradients", of the loss or, without one, of a
            fixed sum of the outputs.
        error: the largest difference, in standard deviations of the quantity (for gradients: of each parameter's largest).
        floor: the measured noise, in the same unit.
        allowed: what ``error`` may be.
        where: the segment (or the parameter) with the largest difference.
    """

    quantity: str
    error: float
    floor: float
    allowed: float
    where: str = ""

    @property
    def equal(self) -> bool:
        """Whether the difference is rounding."""
        return bool(self.error <= self.allowed)


def token_losses(logits: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Return the cross entropy of every target, [targets], in packed order: labels shifted inside each segment."""
    import torch

    targets = np.concatenate([block.targets for block in blocks]).astype(np.int64)
    wanted = torch.from_numpy(targets).to(logits.device)
    at = (wanted != IGNORE).nonzero()[:, 0]
    values = logits.index_select(0, at)  # its backward adds rows; that of logits[at] adds numbers
    values = values if logits.dtype in (torch.float32, torch.float64) else values.float()
    return torch.nn.functional.cross_entropy(values, wanted[at], reduction="none")


def has_losses(features: int, blocks: Sequence[Block]) -> bool:
    """Whether outputs of that many features can be logits of the labels of ``blocks``: an entry for each, and a target at all.

    Hidden states of a base model, and the scores of a classifier, mostly have none for most ids.
    """
    highest = max((int(block.labels.max(initial=0)) for block in blocks), default=0)
    return highest < features and sum(block.num_targets for block in blocks) > 0


def signed_sum(outputs: Tensor, first: int) -> Tensor:
    """Return the sum of ``outputs`` [tokens, features] under fixed random signs: what gradients are taken of where there is no
    loss. ``first`` is the place of the first token among all that are compared; a token at a place has the same signs always.
    """
    import torch

    count = (first + outputs.shape[0]) * outputs.shape[1]
    signs = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(2))[first * outputs.shape[1] :] * 2 - 1
    return (outputs * signs.reshape(outputs.shape).to(outputs)).sum()


def rounding_of(dtype: torch.dtype) -> float:
    """Return half the distance of 1 to the next number in ``dtype``; of float32 for float64, since models cast down inside."""
    import torch

    return max(torch.finfo(dtype).eps / 2, 2.0**-24)


@contextmanager
def computing(module: nn.Module | None) -> Iterator[set[torch.dtype]]:
    """Note in which dtypes the linear layers of ``module`` give what they compute: autocast is to be seen nowhere else."""
    import torch

    seen: set[torch.dtype] = set()

    def note(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):  # llama4's router is a Linear that returns two
            seen.add(output.dtype)

    layers = [] if module is None else [inner for inner in module.modules() if isinstance(inner, torch.nn.Linear)]
    hooks = [inner.register_forward_hook(note) for inner in layers[:8]]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def coarsest(dtypes: Collection[torch.dtype], outputs: Tensor) -> float:
    """Return the relative rounding of the coarsest of ``dtypes`` and that of ``outputs``."""
    return max(rounding_of(dtype) for dtype in (*dtypes, outputs.dtype))


def last_place(values: Tensor) -> float:
    """Return what one rounding does to the largest finite number of ``values``.

    A floor that is measured on a handful of tokens may come out smaller than this by luck; none can be in truth.
    """
    import torch

    largest = 0.0
    for part in pieces(values, values[:1].numel()):
        top = part.abs().max()
        if not bool(torch.isfinite(top)):
            top = part.abs().masked_fill_(~part.isfinite(), 0.0).max()
        largest = max(largest, float(top))
    return largest * torch.finfo(values.dtype).eps


@contextmanager
def jittered(subject: Subject, relative: float) -> Iterator[None]:
    """Multiply every number of the input embeddings by 1 + ``relative`` or 1 - ``relative``, at random with a fixed seed."""
    import torch

    def rounded(output: Tensor) -> Tensor:
        signs = torch.randint(0, 2, output.shape, generator=torch.Generator().manual_seed(1)).to(output) * 2 - 1
        return output * (1 + relative * signs)

    if subject.module is None:
        raise InputError("a rounding of the embeddings needs the module.", "The callable shows none.", "Pass the module.")
    table = embedding_of(subject.module).register_forward_hook(lambda _, args, output: rounded(output))
    given = given_embeddings(subject.module, rounded)
    try:
        yield
    finally:
        table.remove()
        given.remove()


def gap(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of two tensors of one shape, 0.0 only for equal bits."""
    width = first.shape[-1] if first.dim() else 1
    return float(gaps(first.reshape(-1, width), second.reshape(-1, width)).max()) if first.numel() else 0.0
