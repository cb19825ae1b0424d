"""Numpy to torch, with torch loaded on first use and its absence said plainly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.errors import require

if TYPE_CHECKING:
    import torch

__all__ = ["tensor"]


def tensor(array: npt.NDArray[Any], dtype: npt.DTypeLike, device: str | torch.device | None = None) -> torch.Tensor:
    """Return a tensor of its own memory with the content of ``array`` cast to the numpy ``dtype``.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    # A copy always: the views of Segments are read-only, and torch warns of those and would let them be written.
    out: torch.Tensor = require("torch", "hf").from_numpy(np.array(array, dtype, order="C"))
    return out if device is None else out.to(device)
