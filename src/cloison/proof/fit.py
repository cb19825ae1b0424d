"""From the gradient of a loss to what it trains: in each row the target token and its weight, over the whole vocabulary.

At logits that are all equal, the gradient of a loss that asks for one token is one entry that stands out and a level that the
others share: the place of that entry is the target, its size and sign the weight. At the last hidden state zero the gradient is
``w * (m - W[t])`` with the head's weight W and m its mean under the softmax of the head's bias: t is searched over all rows of
W. Nothing here knows labels, shifts or masks.

A second gradient, at logits that differ, says what kind of loss it is: cross entropy is ``w * (p - e_t)``; label smoothing adds
a constant, a z-loss scales p alone, a loss weighted by the model's confidence changes w with p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.proof.pieces import pieces

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Fit",
    "Shape",
    "from_hidden",
    "from_logits",
    "from_real_hidden",
    "from_real_logits",
    "shape_from_hidden",
    "shape_from_logits",
]

NOTHING = -1
"""The token of a row that trains nothing."""

_AT_ONCE = 8
"""Pieces that go through the head are so many times larger."""

_COLUMNS = 4096
"""The level of a row and the shape of a loss are read from at most this many columns, evenly spaced."""

_FAINT = 1e-7
"""A row whose deviation is below this share of the largest one is rounding."""


@dataclass(frozen=True, eq=False)
class Fit:
    """What each row asks for.

    Attributes:
        tokens: int64 [rows], the target token, -1 where the row trains nothing.
        weights: float64 [rows], the derivative that pulls it up (1 / targets each in a mean); negative pushes down.
        runners_up: float64 [rows], how much of the gradient one target does not explain, 0 for a single target: soft targets
            have much.
        ties: int64 [rows], how many other vocabulary rows explain the gradient as well (identical rows of the head).
    """

    tokens: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    runners_up: npt.NDArray[np.float64]
    ties: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shape:
    """The coefficients of ``a * p + b * e_t + c`` in the gradient of some trained rows, at logits that differ.

    Attributes:
        rows: int64 [fitted], which rows.
        softmax, target, constant: float64 [fitted], a, b and c.
        log_partition: float64 [fitted], log sum exp of the logits.
        misfit: float64 [fitted], the share of the gradient that the three do not explain.
        vocab_size: how many entries a row has.
    """

    rows: npt.NDArray[np.int64]
    softmax: npt.NDArray[np.float64]
    target: npt.NDArray[np.float64]
    constant: npt.NDArray[np.float64]
    log_partition: npt.NDArray[np.float64]
    misfit: npt.NDArray[np.float64]
    vocab_size: int


def from_logits(grad: Tensor) -> Fit:
    """Return what each row of ``grad`` [rows, vocabulary] asks for, the gradient at logits that are equal in a row."""
    import torch

    columns = _spaced(grad.shape[1], grad.device)
    tokens, weights, second = [], [], []
    for part in pieces(grad, grad.shape[1]):
        level = part[:, columns].double().median(dim=1).values
        deviation = (part.float() - level.float()[:, None]).abs_()
        top = deviation.topk(min(2, part.shape[1]), dim=1)
        token = top.indices[:, 0]
        tokens.append(token)
        weights.append(level - part.gather(1, token[:, None])[:, 0].double())
        second.append(top.values[:, -1].double())
    token, weight, runner = torch.cat(tokens), torch.cat(weights), torch.cat(second)
    return _fit(token, weight, runner / weight.abs().clamp_min(1e-300), torch.zeros_like(token))


def from_hidden(grad: Tensor, weight: Tensor, bias: Tensor | None = None) -> Fit:
    """Return what each row of ``grad`` [rows, width] asks for, the gradient at hidden states that are zero.

    Args:
        weight: [vocabulary, width], the head's.
        bias: [vocabulary] or None; in the units of the logits that the loss sees.

    Cost: rows with a gradient x vocabulary x width multiplications, as one head.
    """
    import torch

    device, dtype = grad.device, torch.float64 if weight.numel() <= 2**22 else torch.float32
    rows = grad.shape[0]
    token = torch.full((rows,), NOTHING, dtype=torch.int64, device=device)
    strength = torch.zeros(rows, dtype=torch.float64, device=device)
    runner = torch.zeros(rows, dtype=torch.float64, device=device)
    ties = torch.zeros(rows, dtype=torch.int64, device=device)
    norms = grad.double().norm(dim=1)
    real = (norms > _FAINT * norms.max().clamp_min(1e-300)).nonzero()[:, 0]
    if real.numel():
        head = weight.detach().to(device, dtype)
        mean = head.mean(0) if bias is None else torch.softmax(bias.detach().to(device, dtype), 0) @ head
        along = mean / mean.norm().clamp_min(1e-30)
        if mean.norm() < 1e-6 * head.norm(dim=1).mean():
            along = torch.zeros_like(along)
        across = head - (head @ along)[:, None] * along
        lengths = across.norm(dim=1).clamp_min(1e-30)
        directions = across / lengths[:, None]
        for part in pieces(real, head.shape[0], _AT_ONCE):
            g = grad[part].to(dtype)
            share = g @ along
            projected = (g - share[:, None] * along) @ directions.T
            score = projected.abs()
            best, at = score.max(dim=1)
            token[part] = at
            strength[part] = (-projected.gather(1, at[:, None])[:, 0] / lengths[at]).double()
            ties[part] = ((head[at][:, None] == head[None]).all(2).sum(1) - 1) if head.shape[0] <= 4096 else _equal(head, at)
            left = (g.double().pow(2).sum(1) - share.double() ** 2 - best.double() ** 2).clamp_min(0).sqrt()
            runner[part] = left / g.double().norm(dim=1).clamp_min(1e-300)
    return _fit(token, strength, runner, ties)


def from_real_logits(grad: Tensor, logits: Tensor) -> Fit:
    """Return what each row of ``grad`` asks for, the gradient at the ``logits`` [rows, vocabulary] of a real step.

    The softmax and a constant are fitted to the row first; what stands out from them is the target. Where the model is so sure
    of a target that its gradient is below rounding, nothing can be read: substitution has no such blind spot.
    """
    import torch

    columns = _spaced(grad.shape[1], grad.device)
    tokens, weights, second = [], [], []
    for part, values in zip(pieces(grad, grad.shape[1]), pieces(logits, grad.shape[1]), strict=True):
        g = part.double()
        p = torch.softmax(values.double(), 1)
        keep = torch.ones_like(g)
        for _ in range(3):
            subset = keep[:, columns]
            count = subset.sum(1).clamp_min(1)
            p_mean, g_mean = (p[:, columns] * subset).sum(1) / count, (g[:, columns] * subset).sum(1) / count
            p_off, g_off = (p[:, columns] - p_mean[:, None]) * subset, (g[:, columns] - g_mean[:, None]) * subset
            a = (p_off * g_off).sum(1) / p_off.pow(2).sum(1).clamp_min(1e-300)
            deviation = g - a[:, None] * p - (g_mean - a * p_mean)[:, None]
            top = deviation.abs().topk(min(2, g.shape[1]), dim=1)
            keep = torch.ones_like(g).scatter_(1, top.indices[:, :1], 0.0)
        token = top.indices[:, 0]
        tokens.append(token)
        weights.append(-deviation.gather(1, token[:, None])[:, 0])
        second.append(top.values[:, -1])
    token, weight, runner = torch.cat(tokens), torch.cat(weights), torch.cat(second)
    none = grad.abs().amax(1).double() == 0
    weight = torch.where(none, 0.0, weight)
    return _fit(token, weight, runner / weight.abs().clamp_min(1e-300), torch.zeros_like(token))


def from_real_hidden(grad: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Fit:
    """Return what each row of ``grad`` asks for, the gradient at the ``hidden`` states [rows, width] of a real step.

    The logits of the loss are ``scale * hidden @ weight.T + bias``. What `from_real_logits` cannot see, this cannot either.
    """
    import torch

    rows, device = grad.shape[0], grad.device
    token = torch.full((rows,), NOTHING, dtype=torch.int64, device=device)
    strength = torch.zeros(rows, dtype=torch.float64, device=device)
    runner = torch.zeros(rows, dtype=torch.float64, device=device)
    norms = grad.double().norm(dim=1)
    real = (norms > _FAINT * norms.max().clamp_min(1e-300)).nonzero()[:, 0]
    head = weight.detach().to(device, torch.float64 if weight.numel() <= 2**22 else torch.float32)
    lengths = head.pow(2).sum(1)
    for part in pieces(real, head.shape[0], _AT_ONCE):
        g = grad[part].to(head.dtype) / scale
        logits = scale * hidden[part].to(head.dtype) @ head.T
        expected = torch.softmax(logits if bias is None else logits + bias.to(device, head.dtype), 1) @ head
        along = expected / expected.norm(dim=1, keepdim=True).clamp_min(1e-30)
        on = along @ head.T
        across = (lengths[None] - on.pow(2)).clamp_min(1e-12 * lengths.max())
        share = (g * along).sum(1, keepdim=True)
        projected = (g - share * along) @ head.T
        best, at = (projected.pow(2) / across).max(dim=1)
        token[part] = at
        strength[part] = (-projected.gather(1, at[:, None]) / across.gather(1, at[:, None]))[:, 0].double()
        left = (g.pow(2).sum(1) - share[:, 0].pow(2) - best).clamp_min(0).sqrt()
        runner[part] = (left / g.norm(dim=1).clamp_min(1e-30)).double()
    return _fit(token, strength, runner, torch.zeros_like(token))


def shape_from_logits(grad: Tensor, logits: Tensor, tokens: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Shape:
    """Return the shape of the loss in ``rows`` of ``grad`` and ``logits`` [all rows, vocabulary], whose targets are known."""
    import torch

    whole = torch.from_numpy(rows).to(grad.device)
    wanted = torch.from_numpy(tokens[rows]).to(grad.device)
    found, partition, misfit = [], [], []
    for at, target in zip(pieces(whole, grad.shape[1]), pieces(wanted, grad.shape[1]), strict=True):
        g, z = grad[at].double(), logits[at].double()
        log_partition = torch.logsumexp(z, 1)
        p = torch.exp(z - log_partition[:, None])
        keep = torch.ones_like(p).scatter_(1, target[:, None], 0.0)
        count = keep.sum(1)
        p_mean, g_mean = (p * keep).sum(1) / count, (g * keep).sum(1) / count
        p_off, g_off = (p - p_mean[:, None]) * keep, (g - g_mean[:, None]) * keep
        a = (p_off * g_off).sum(1) / p_off.pow(2).sum(1).clamp_min(1e-300)
        c = g_mean - a * p_mean
        b = g.gather(1, target[:, None])[:, 0] - a * p.gather(1, target[:, None])[:, 0] - c
        left = (g - a[:, None] * p - c[:, None]) * keep
        found.append(torch.stack([a, b, c]).T)
        partition.append(log_partition)
        misfit.append(left.norm(dim=1) / (g * keep).norm(dim=1).clamp_min(1e-300))
    return _shape(rows, torch.cat(found), torch.cat(partition), torch.cat(misfit), grad.shape[1])


def shape_from_hidden(
    grad: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    tokens: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> Shape:
    """Return the shape of the loss as `shape_from_logits` does, from the gradient at hidden states that differ.

    The logits of the loss are ``scale * hidden @ weight.T + bias``.
    """
    import torch

    device = grad.device
    at, target = torch.from_numpy(rows).to(device), torch.from_numpy(tokens[rows]).to(device)
    head = weight.detach().to(device, torch.float32)
    total = head.double().sum(0) if head.numel() <= 2**22 else head.sum(0).double()
    found, partition, misfit = [], [], []
    for part, token in zip(pieces(at, head.shape[0], _AT_ONCE), pieces(target, head.shape[0], _AT_ONCE), strict=True):
        logits = hidden[part].float() @ head.T
        logits = scale * logits if bias is None else scale * logits + bias.detach().to(device).float()
        log_partition = torch.logsumexp(logits, 1)
        expected = torch.exp(logits - log_partition[:, None]) @ head
        g = grad[part].double() / scale
        columns = torch.stack([expected.double(), head[token].double(), total.expand(len(part), -1)], 2)
        size = columns.norm(dim=1, keepdim=True).clamp_min(1e-300)
        answer = torch.linalg.lstsq((columns / size).cpu(), g[:, :, None].cpu()).solution[:, :, 0].to(device) / size[:, 0]
        left = g - (columns @ answer[:, :, None])[:, :, 0]
        found.append(answer)
        partition.append(log_partition.double())
        misfit.append(left.norm(dim=1) / g.norm(dim=1).clamp_min(1e-300))
    return _shape(rows, torch.cat(found), torch.cat(partition), torch.cat(misfit), head.shape[0])


def _spaced(size: int, device: Any) -> Tensor:
    import torch

    return torch.linspace(0, size - 1, min(size, _COLUMNS), device=device).long()


def _equal(head: Tensor, at: Tensor) -> Tensor:
    """Return how many other rows of ``head`` equal each of ``head[at]``: rows of one sum are compared."""
    import torch

    sums = head.sum(1)
    out = torch.zeros_like(at)
    for index, row in enumerate(at.tolist()):
        same = (sums == sums[row]).nonzero()[:, 0]
        out[index] = int((head[same] == head[row]).all(1).sum()) - 1
    return out


def _fit(token: Tensor, weight: Tensor, runner: Tensor, ties: Tensor) -> Fit:
    tokens, weights = token.cpu().numpy().astype(np.int64), weight.cpu().numpy().astype(np.float64)
    size = np.abs(weights)
    nothing = ~(size > _FAINT * (np.nanmax(size) if size.size and np.isfinite(size).any() else 0.0)) & ~np.isnan(size)
    tokens[nothing], weights[nothing] = NOTHING, 0.0
    runners, tied = runner.cpu().numpy().astype(np.float64), ties.cpu().numpy().astype(np.int64)
    runners[nothing], tied[nothing] = 0.0, 0
    return Fit(tokens, weights, runners, tied)


def _shape(rows: npt.NDArray[np.int64], abc: Tensor, log_partition: Tensor, misfit: Tensor, vocab_size: int) -> Shape:
    a, b, c = abc.cpu().numpy().astype(np.float64).T
    return Shape(rows, a, b, c, log_partition.cpu().numpy(), misfit.cpu().numpy(), int(vocab_size))
