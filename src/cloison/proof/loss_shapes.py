"""LossShape: what kind of loss it is, from the coefficients of its gradient, and how far what was read may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cloison.proof.fit import NOTHING, Fit, Shape

if TYPE_CHECKING:
    import torch

__all__ = ["SOFT", "LossShape", "classified", "precision_of"]


SOFT = "soft targets"
"""The name of a loss that pulls each position to many tokens."""


@dataclass(frozen=True)
class LossShape:
    """What kind of loss it is.

    Attributes:
        name: "cross entropy", "label smoothing", "z-loss", "label smoothing and z-loss", "confidence-weighted", "soft targets",
            "other", or "nothing" where nothing is trained.
        smoothing: the share of the weight that goes to all tokens alike.
        z: the coefficient of log-partition squared.
        terms: in words what there is beside, as an auxiliary loss that does not go through the logits.
    """

    name: str = "cross entropy"
    smoothing: float = 0.0
    z: float = 0.0
    terms: tuple[str, ...] = ()


def classified(shape: Shape, weights: npt.NDArray[np.float64], precision: float) -> LossShape:
    """Return what the coefficients say; ``weights`` are those of the first probe."""
    # A cap on the logits inside the loss bends all three coefficients a little, and shows as misfit.
    tolerance = max(2e-3, 8 * precision, 10 * float(np.median(shape.misfit)))
    spread = -shape.constant * shape.vocab_size
    whole = -shape.target + spread
    with np.errstate(divide="ignore", invalid="ignore"):
        smoothing = float(np.median(spread / whole))
        z = float(np.median((shape.softmax / whole - 1) / (2 * shape.log_partition)))
        ratio = -shape.target / weights
    if float(np.median(shape.misfit)) > 0.05:
        return LossShape("other")
    level = float(np.median(ratio))
    confident = level == 0 or float(np.quantile(np.abs(ratio / level - 1), 0.9)) > max(0.02, 8 * precision)
    if confident or abs(level - 1) > 0.1:
        return LossShape("confidence-weighted")
    # Coefficients of a z-loss are small (1e-4 is usual), and float32 shows them to eight digits.
    seen = max(1e-4, 8 * precision, 10 * float(np.median(shape.misfit))) / 10
    smooth, squared = abs(smoothing) > tolerance, abs(z) > seen
    if not smooth and not squared:
        return LossShape()
    name = " and ".join(n for n, on in (("label smoothing", smooth), ("z-loss", squared)) if on)
    return LossShape(name, smoothing if smooth else 0.0, z if squared else 0.0)


def precision_of(fit: Fit, place: str, dtype: torch.dtype) -> float:
    """Return how far weights may be off, relatively: the rounding of ``dtype``, or what was seen of it in hidden states.

    A head under autocast rounds its gradient to bfloat16 whatever the dtype of the hidden states is; what one target does not
    explain shows that. Of losses with many targets a position it shows those too, so that bfloat16 is the most that counts.
    """
    import torch

    left = fit.runners_up[fit.tokens != NOTHING]
    if place != "hidden" or not left.size:
        return float(torch.finfo(dtype).eps)
    seen = min(4 * float(np.nanmedian(left)), float(torch.finfo(torch.bfloat16).eps))
    return max(float(torch.finfo(torch.float32).eps), seen)
