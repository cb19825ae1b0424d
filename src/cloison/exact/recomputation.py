"""Whether gradients stay what they are when gradient checkpointing is switched: trainers do so after the model was adapted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from cloison.exact.calling import logits_of, replaced
from cloison.exact.probe import packed_batch
from cloison.exact.trial import Trial
from cloison.exact.ways import Way
from cloison.proof.comparing import signed_sum
from cloison.proof.keep import kept
from cloison.proof.setup import FAILURES

if TYPE_CHECKING:
    import torch

__all__ = ["holds_recomputed"]

_SHARE = 1e-2
"""A wrong recomputation moves gradients by tens of per cent, or raises; rounding in bfloat16 by less than this."""


def holds_recomputed(trial: Trial, way: Way) -> bool:
    """Whether ``way`` gives the same gradients with every layer of the trial's model recomputed as with none, in training.

    False too where the model has no layers that transformers can recompute.
    """
    model = trial.model
    layers = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not layers or not weights:
        return False
    try:
        with kept(model, as_it_is=True):
            plain, again = (_gradients(trial, way, layers, weights, on) for on in (False, True))
    except FAILURES:
        return False
    unit = max(float(g.abs().max()) for g in plain if g is not None)
    return all(
        one is other is None or (one is not None and other is not None and float((one - other).abs().max()) <= _SHARE * unit)
        for one, other in zip(plain, again, strict=True)
    )


def _gradients(trial: Trial, way: Way, layers: Sequence[Any], weights: Sequence[torch.Tensor], on: bool) -> tuple[Any, ...]:
    import torch
    from torch.utils.checkpoint import checkpoint

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for layer in layers:
            stack.enter_context(replaced(layer, "gradient_checkpointing", on))
            stack.enter_context(replaced(layer, "_gradient_checkpointing_func", partial(checkpoint, use_reentrant=False)))
        trial.model.train()
        torch.manual_seed(0)
        batch = packed_batch(trial.blocks, trial.sample.device)
        outputs = logits_of(way.run(trial.model, batch))
        found: tuple[Any, ...] = torch.autograd.grad(
            signed_sum(outputs.reshape(-1, outputs.shape[-1]).float(), 0), weights, allow_unused=True
        )
        return found
