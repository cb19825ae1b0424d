"""Rows of logits a few at a time: with a vocabulary of 150,000 one copy of all of them is a gigabyte, in float64 two."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["deviation", "gaps", "pieces"]

_CELLS = {"cpu": 2**20, "other": 2**26}
"""Entries at a time: what a cache holds, and what keeps an accelerator busy."""


def pieces(rows: Tensor, width: int, at_once: int = 1) -> list[Tensor]:
    """Return ``rows`` in consecutive parts, so that rows x ``width`` of each stay within some megabytes (CPU) or 64 M entries.

    Args:
        at_once: times as much on a CPU, for work that is better done on more rows (a product of matrices).
    """
    cells = _CELLS["cpu"] * at_once if rows.device.type == "cpu" else _CELLS["other"]
    size = max(1, cells // max(1, width))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def gaps(first: Tensor, second: Tensor) -> Tensor:
    """Return float64 [rows], the largest difference in each row of two tensors [rows, width]; 0.0 only for equal bits.

    NaN is infinitely far from everything.
    """
    import torch

    if first.dtype == second.dtype and torch.equal(first, second):
        return torch.zeros(len(first), dtype=torch.float64, device=first.device)
    found = []
    for one, two in zip(pieces(first, first.shape[-1]), pieces(second, first.shape[-1]), strict=True):
        size = (one.double() - two.double()).abs_().masked_fill_(one == two, 0.0)  # infinity is not far from itself
        found.append(size.amax(-1))
    return torch.cat(found).nan_to_num(nan=float("inf")) if found else torch.zeros(0, dtype=torch.float64)


def deviation(rows: Tensor) -> float:
    """Return the standard deviation of the finite entries of ``rows`` [rows, ...], 0.0 where there are fewer than two."""
    import torch

    parts = pieces(rows, rows[:1].numel())
    finite = [torch.isfinite(part).all() for part in parts]
    number, total, squares = 0, 0.0, 0.0
    for part, whole in zip(parts, finite, strict=True):
        values = part.double() if whole else part[torch.isfinite(part)].double()
        number, total = number + values.numel(), total + float(values.sum())
    if number < 2:
        return 0.0
    for part, whole in zip(parts, finite, strict=True):
        values = part.double() if whole else part[torch.isfinite(part)].double()
        squares += float((values - total / number).pow_(2).sum())
    return float((squares / (number - 1)) ** 0.5)
