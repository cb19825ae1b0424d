"""Rows of logits a few at a time: with a vocabulary of 150,000 one copy of all of them is a gigabyte, in float64 two."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["pieces"]

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
