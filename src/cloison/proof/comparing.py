"""What comparing packed with alone takes: a floor, a margin, the loss of each token, the response to one more rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.gradients import embedding_of
from cloison.proof.run import Subject
from cloison.segments import IGNORE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "GRADIENT_MARGIN",
    "JITTER_MARGIN",
    "MARGIN",
    "Comparison",
    "gap",
    "jittered",
    "last_place",
    "rounding_of",
    "token_losses",
]

MARGIN = 3.0
"""How many times the floor a packed run may differ: the same rounding errors in another order."""

GRADIENT_MARGIN = 8.0
"""The same for parameter gradients, which are sums over all tokens, in another order."""

JITTER_MARGIN = 16.0
"""The same where the floor is the response to one rounding of the embeddings: every later operation rounds too."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same samples, packed and alone.

    Attributes:
        quantity: "logits", "hidden states", "loss per token" or "parameter gradients".
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
    at = wanted != IGNORE
    values = logits[at] if logits.dtype in (torch.float32, torch.float64) else logits[at].float()
    return torch.nn.functional.cross_entropy(values, wanted[at], reduction="none")


def rounding_of(dtype: torch.dtype) -> float:
    """Return half the distance of 1 to the next number in ``dtype``; of float32 for float64, since models cast down inside."""
    import torch

    return max(torch.finfo(dtype).eps / 2, 2.0**-24)


def last_place(values: Tensor) -> float:
    """Return what one rounding does to the largest finite number of ``values``.

    A floor that is measured on a handful of tokens may come out smaller than this by luck; none can be in truth.
    """
    import torch

    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) * torch.finfo(values.dtype).eps if finite.numel() else 0.0


@contextmanager
def jittered(subject: Subject, relative: float) -> Iterator[None]:
    """Multiply every number of the input embeddings by 1 + ``relative`` or 1 - ``relative``, at random with a fixed seed."""
    import torch

    def hook(inner: Any, args: Any, output: Tensor) -> Tensor:
        signs = torch.randint(0, 2, output.shape, generator=torch.Generator().manual_seed(1)).to(output) * 2 - 1
        return output * (1 + relative * signs)

    if subject.module is None:
        raise InputError("a rounding of the embeddings needs the module.", "The callable shows none.", "Pass the module.")
    handle = embedding_of(subject.module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def gap(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of two tensors of one shape, 0.0 only for equal bits."""
    import torch

    difference = torch.where(first == second, 0.0, (first.double() - second.double()).abs())
    return float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0
