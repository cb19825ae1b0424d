"""Parameter gradients, packed against alone: a wrong backward moves no output, and shows here.

They are those of the summed loss; of a fixed sum of the outputs where these cannot be logits of the labels (`has_losses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.blocks import alone
from cloison.proof.comparing import (
    GRADIENT_MARGIN,
    JITTER_MARGIN,
    Comparison,
    gap,
    has_losses,
    jittered,
    signed_sum,
    token_losses,
)
from cloison.proof.keep import eager
from cloison.proof.run import Subject

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["compare_gradients"]

Gradients = dict[str, "Tensor"]

WHOLE_PARAMETERS = 64_000_000
"""Gradients of models up to this size are compared entry by entry; of larger ones by seeded random projections."""

_SKETCH = 4093
"""Numbers a parameter's gradient is projected to, a prime, so that no width of a layer folds onto itself."""


def compare_gradients(
    subject: Subject, twin: Subject | None, blocks: Sequence[Block], wrap: Callable[..., Any], relative: float
) -> Comparison:
    """Return the Comparison of the gradients of the summed loss (or outputs), each parameter in units of its largest.

    A parameter whose gradient is zero but for rounding (a bias before a softmax) is measured against the median of the others.
    Without a twin the floor is what one rounding of the embeddings, of size ``relative``, does to the gradients.

    Raises:
        InputError: no parameter that wants a gradient.

    Cost: a forward and a backward packed, and two a segment. Memory: three copies of the gradients up to `WHOLE_PARAMETERS`,
    above that 4093 numbers a parameter.
    """

    module = subject.module
    if module is None:
        raise InputError("gradients need the module.", "The callable shows none.", "Pass the module, or an Adapter.")
    whole = sum(p.numel() for p in module.parameters()) <= WHOLE_PARAMETERS
    singles = alone(blocks)

    def single(which: Subject) -> Gradients:
        return _summed(which, (wrap(which.run_alone)(block).logits for block in singles), [[b] for b in singles], whole)

    packed = _summed(subject, (wrap(subject.run)(blocks).logits for _ in range(1)), [list(blocks)], whole)
    own = single(subject)
    if twin is not None:
        reference, other, margin = single(twin), own, GRADIENT_MARGIN
    else:
        with jittered(subject, relative), eager():
            other = single(subject)
        reference, margin = own, JITTER_MARGIN
    largest = {name: float(gradient.abs().max()) for name, gradient in reference.items() if gradient.numel()}
    typical = float(np.median([size for size in largest.values() if size > 0.0] or [1.0]))
    worst, floor = (0.0, ""), 0.0
    for name, size in largest.items():
        unit = max(size, 1e-2 * typical)
        floor = max(floor, gap(other[name], reference[name]) / unit)
        worst = max(worst, (gap(packed[name], reference[name]) / unit, name))
    return Comparison("parameter gradients", worst[0], floor, margin * floor, worst[1])


def _summed(subject: Subject, forwards: Iterable[Tensor], parts: list[list[Block]], whole: bool) -> Gradients:
    import torch

    module = subject.module
    assert module is not None
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not named:
        raise InputError("gradients need a parameter that wants one.", "All are frozen.", "Unfreeze one, or skip gradients.")
    total: Gradients = {name: (torch.zeros_like(p) if whole else _sketch(torch.zeros_like(p))) for name, p in named.items()}
    every, first, reached = [block for part in parts for block in part], 0, False
    with torch.enable_grad():
        for outputs, part in zip(forwards, parts, strict=True):
            trained, start = has_losses(outputs.shape[-1], every), first
            first += outputs.shape[0]
            if trained and not sum(block.num_targets for block in part):
                continue
            loss = token_losses(outputs, part).sum() if trained else signed_sum(outputs, start)
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for name, gradient in zip(named, found, strict=True):
                if gradient is not None:
                    reached = True
                    total[name] += gradient if whole else _sketch(gradient)
    if not reached:
        raise InputError(
            "gradients must reach a parameter.", "None did: something keeps them (FSDP2).", "Verify before it is sharded."
        )
    return total


def _sketch(gradient: Tensor) -> Tensor:
    """Return [4093]: the gradient in rows of 4093 entries, summed under a random sign for each row, the same for a size."""
    import torch

    flat = gradient.detach().reshape(-1)
    rows = torch.nn.functional.pad(flat, (0, -flat.numel() % _SKETCH)).reshape(-1, _SKETCH)
    signs = torch.randint(0, 2, (rows.shape[0],), generator=torch.Generator().manual_seed(flat.numel())) * 2 - 1
    return signs.to(rows) @ rows
