"""Cross entropy of chosen rows of logits: the others are never read, in the forward pass or in the backward pass.

The rows are taken in pieces that fit a cache, so that no float32 copy of all logits is made; the gradient is written once, in
the dtype of the logits. Selecting with an index and calling ``torch.nn.functional.cross_entropy`` means the same, and takes
two to three copies of the logits.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["chosen_cross_entropy"]

_PIECE_ELEMENTS = {"cpu": 2**20, "other": 2**25}


class _ChosenCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        normalizers = torch.empty(rows.numel(), dtype=torch.float32, device=logits.device)
        picked = torch.empty_like(normalizers)
        for piece in _pieces(rows.numel(), logits):
            values = logits.index_select(0, rows[piece]).float()
            normalizers[piece] = torch.logsumexp(values, dim=-1)
            picked[piece] = values.gather(1, targets[piece, None])[:, 0]
        ctx.save_for_backward(logits, rows, targets, normalizers)
        return normalizers - picked

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        logits, rows, targets, normalizers = ctx.saved_tensors
        [factors] = upstream
        gradient = torch.zeros_like(logits)
        for piece in _pieces(rows.numel(), logits):
            values = logits.index_select(0, rows[piece]).float()
            values.sub_(normalizers[piece, None]).exp_()
            values.scatter_add_(1, targets[piece, None], torch.full_like(values[:, :1], -1))
            values.mul_(factors[piece, None])
            gradient.index_copy_(0, rows[piece], values.to(gradient.dtype))
        return gradient, None, None


def chosen_cross_entropy(logits: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return float32 [n], the cross entropy of ``logits[rows[i]]`` against ``targets[i]``.

    Args:
        logits: [tokens, vocabulary], any float dtype. The gradient of rows that are not chosen is exactly 0, whatever they
            hold, NaN included.
        rows: int64 [n], without repeats.
        targets: int64 [n], within the vocabulary.

    Cost: one gradient in the dtype of the logits, and pieces of a few MiB (CPU) or 128 MiB (else). It is differentiable once.
    """
    result: torch.Tensor = _ChosenCrossEntropy.apply(logits, rows, targets)  # type: ignore[no-untyped-call]
    return result


def _pieces(count: int, logits: torch.Tensor) -> list[slice]:
    elements = _PIECE_ELEMENTS["cpu" if logits.device.type == "cpu" else "other"]
    size = max(1, elements // max(1, logits.shape[-1]))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
