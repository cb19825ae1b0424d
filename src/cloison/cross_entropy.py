"""Cross entropy of chosen rows of logits: the others are never read, in the forward pass or in the backward pass.

The rows are taken in pieces that fit a cache, so that no float32 copy of all logits is made; the gradient is written once, in
the dtype of the logits. Selecting with an index and calling ``torch.nn.functional.cross_entropy`` means the same, and takes
two to three copies of the logits. `UnmadeLogits` goes further: the head runs on a piece at a time, and no logits are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["UnmadeLogits", "chosen_cross_entropy"]

_PIECE_ELEMENTS = {"cpu": 2**20, "other": 2**25}
_HEAD_PIECE_ELEMENTS = {"cpu": 2**23, "other": 2**28}
"""Logits that a head makes at a time."""
_LEAST_ROWS = 256
"""Rows that a head makes at a time at least: each piece adds once to the gradient of the head's weights, which is as large for
few rows as for many (with 50,000 x 512 weights on a CPU, pieces of 64 rows took 1.5 times the time of pieces of 256)."""


class _ChosenCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, rows: torch.Tensor | None, targets: torch.Tensor) -> torch.Tensor:
        normalizers = torch.empty(targets.numel(), dtype=torch.float32, device=logits.device)
        picked = torch.empty_like(normalizers)
        for piece in _pieces(targets.numel(), logits):
            values = _taken(logits, rows, piece).float()
            normalizers[piece] = torch.logsumexp(values, dim=-1)
            picked[piece] = values.gather(1, targets[piece, None])[:, 0]
        ctx.save_for_backward(logits, rows, targets, normalizers)
        return normalizers - picked

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        logits, rows, targets, normalizers = ctx.saved_tensors
        [factors] = upstream
        gradient = torch.empty_like(logits) if rows is None else torch.zeros_like(logits)
        for piece in _pieces(targets.numel(), logits):
            values = _taken(logits, rows, piece).float()
            values = torch.sub(values, normalizers[piece, None]).exp_()
            values.scatter_add_(1, targets[piece, None], torch.full_like(values[:, :1], -1))
            values.mul_(factors[piece, None])
            if rows is None:
                gradient[piece] = values
            else:
                gradient.index_copy_(0, rows[piece], values.to(gradient.dtype))
        return gradient, None, None


def _taken(logits: torch.Tensor, rows: torch.Tensor | None, piece: slice) -> torch.Tensor:
    return logits[piece] if rows is None else logits.index_select(0, rows[piece])


def chosen_cross_entropy(logits: torch.Tensor, rows: torch.Tensor | None, targets: torch.Tensor) -> torch.Tensor:
    """Return float32 [n], the cross entropy of ``logits[rows[i]]`` against ``targets[i]``.

    Args:
        logits: [tokens, vocabulary], any float dtype. The gradient of rows that are not chosen is exactly 0, whatever they
            hold, NaN included.
        rows: int64 [n], without repeats; None: all of them, in order.
        targets: int64 [n], within the vocabulary.

    Cost: one gradient in the dtype of the logits, and pieces of a few MiB (CPU) or 128 MiB (else). It is differentiable once.
    """
    result: torch.Tensor = _ChosenCrossEntropy.apply(logits, rows, targets)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class UnmadeLogits:
    """Logits that are made when they are asked for, piece by piece, and again in the backward pass: none are kept.

    Every loss of `cloison.losses` takes one in place of logits. Only the rows of targets go through the head. Cost: the head's
    forward once more, and logits of 8 M numbers (CPU), 256 M (else), or 256 rows at a time, whichever is most.

    Attributes:
        hidden: [B, T, width], what enters the head.
        head: [n, width] to logits [n, vocabulary].
        vocabulary: how many logits a row has.
        piece: rows at a time; 0: by memory.
    """

    hidden: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]
    vocabulary: int
    piece: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, T, vocabulary)."""
        return (*self.hidden.shape[:2], self.vocabulary)

    @property
    def ndim(self) -> int:
        """3."""
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        """Where they would be."""
        return self.hidden.device

    def cross_entropy(self, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return what `chosen_cross_entropy` returns of the logits, flattened to [B * T, vocabulary]."""
        from torch.utils.checkpoint import checkpoint

        def losses(hidden: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return chosen_cross_entropy(self.head(hidden), None, wanted)

        chosen = self.hidden.reshape(-1, self.hidden.shape[-1])[rows]
        elements = _HEAD_PIECE_ELEMENTS["cpu" if self.device.type == "cpu" else "other"]
        size = self.piece or max(_LEAST_ROWS, elements // self.vocabulary)
        parts = [
            checkpoint(losses, hidden, wanted, use_reentrant=False, preserve_rng_state=False)
            for hidden, wanted in zip(torch.split(chosen, size), torch.split(targets, size), strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pieces(count: int, logits: torch.Tensor) -> list[slice]:
    elements = _PIECE_ELEMENTS["cpu" if logits.device.type == "cpu" else "other"]
    size = max(1, elements // max(1, logits.shape[-1]))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
