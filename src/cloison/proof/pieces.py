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

    Differences are taken in float32, of float64 in float64. NaN is infinitely far from everything, and infinity 0 from itself.
    """
    import torch

    if first.dtype == second.dtype and torch.equal(first, second):
        return torch.zeros(len(first), dtype=torch.float64, device=first.device)
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)
    found = []
    for one, two in zip(pieces(first, first.shape[-1]), pieces(second, first.shape[-1]), strict=True):
        size = (one.to(dtype) - two.to(dtype)).abs_()
        largest = size.amax(-1)
        if bool(torch.isnan(largest).any()):
            largest = size.masked_fill_(one == two, 0.0).amax(-1)
        found.append(largest.double())
    return torch.cat(found).nan_to_num(nan=float("inf")) if found else torch.zeros(0, dtype=torch.float64)


def deviation(rows: Tensor) -> float:
    """Return the standard deviation of the finite entries of ``rows`` [rows, ...], 0.0 where there are fewer than two."""
    import torch

    number, mean, squares = 0, 0.0, 0.0
    for part in pieces(rows, rows[:1].numel()):
        values = part.reshape(-1).double()
        variance, middle = torch.var_mean(values, correction=0)
        if not bool(torch.isfinite(middle)):
            values = values[torch.isfinite(values)]
            if not values.numel():
                continue
            variance, middle = torch.var_mean(values, correction=0)
        count, apart = values.numel(), float(middle) - mean
        # Moments of parts add up: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm" (1979).
        squares += float(variance) * count + apart**2 * number * count / (number + count)
        mean += apart * count / (number + count)
        number += count
    return float((squares / (number - 1)) ** 0.5) if number > 1 else 0.0
