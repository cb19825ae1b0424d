"""The load-balancing loss of a mixture of experts, over the valid tokens of a packed batch only.

transformers computes it from the router's logits and the 2-D mask; a 4-D mask crashes it (5.24, all types that use it), padding
biases it. So the router's logits are taken where the base model returns them, padding is dropped, and the model's own function
is called without a mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.errors import InputError
from cloison.exact.batches import PackedBatch
from cloison.exact.calling import balances, replaced
from cloison.exact.layout import Layout
from cloison.exact.ways import Way

if TYPE_CHECKING:
    import torch

__all__ = ["auxiliary", "router_logits", "wants_router_loss"]

_FUNCTION = "load_balancing_loss_func"


def wants_router_loss(model: torch.nn.Module, options: dict[str, Any]) -> bool:
    """Take ``output_router_logits`` out of ``options``, and return whether it or the configuration asks for the loss."""
    asked = options.pop("output_router_logits", None)
    return balances(model) if asked is None else bool(asked)


@contextmanager
def router_logits(model: torch.nn.Module) -> Iterator[list[tuple[torch.Tensor, ...]]]:
    """Collect the router's logits, one tuple (an entry a layer) for each forward of the base model.

    Raises:
        InputError: the model has no function for this loss, or no base model to ask.
    """
    base = _base(model)
    found: list[tuple[torch.Tensor, ...]] = []
    own: Callable[..., Any] = base.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs = own(*args, **(kwargs | {"output_router_logits": True}))
        found.append(outputs.router_logits)
        return outputs

    with replaced(base, "forward", forward):
        yield found


def auxiliary(
    model: torch.nn.Module, way: Way, batch: PackedBatch, found: list[tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, float]:
    """Return the load-balancing loss over the valid tokens of ``batch``, and the coefficient that the model gives it."""
    import torch

    causal = _causal(model)
    text = causal.config.get_text_config()
    function = vars(sys.modules[type(causal).__module__])[_FUNCTION]
    layers = [torch.cat([_valid(run[layer], way, batch) for run in found]) for layer in range(len(found[0]))]
    experts = int(layers[0].shape[-1])
    top = next(int(value) for name in ("num_experts_per_tok", "moe_topk", "top_k") if (value := getattr(text, name, None)))
    loss = function(tuple(layers), experts, top)
    coefficient: Any = getattr(causal, "router_aux_loss_coef", None)
    return loss, float(coefficient if coefficient is not None else getattr(text, "router_aux_loss_coef", 0.0))


def _valid(logits: torch.Tensor, way: Way, batch: PackedBatch) -> torch.Tensor:
    """Return the rows of ``logits`` that belong to tokens, whatever layout the way ran."""
    import torch

    logits = logits.reshape(-1, logits.shape[-1])
    if logits.shape[0] == batch.segments.num_tokens:  # no padding in whatever layout ran
        return logits
    if way.rung == "f" and "below" not in way.choice:
        chosen = Layout.of(batch.segments, logits.device).valid.reshape(-1)
    else:
        chosen = torch.from_numpy(np.array(batch.segments.segment_ids() > 0)).reshape(-1).to(logits.device)
    if chosen.numel() != logits.shape[0]:
        raise InputError(
            "the router's logits must have one row a token.",
            f"There are {logits.shape[0]} for {chosen.numel()}.",
            "Pass output_router_logits=False and compute the auxiliary loss yourself.",
        )
    return logits[chosen]


def _causal(model: torch.nn.Module) -> Any:
    """Return the module whose file has the function of the loss."""
    for module in model.modules():
        if _FUNCTION in vars(sys.modules[type(module).__module__]) and bool(getattr(module, "base_model_prefix", None)):
            return module
    raise InputError(
        "output_router_logits asks for a load-balancing loss.",
        f"{type(model).__name__} has no function for one.",
        "Pass output_router_logits=False.",
    )


def _base(model: torch.nn.Module) -> Any:
    causal = _causal(model)
    base = getattr(causal, causal.base_model_prefix, None)
    if base is None or base is causal:
        raise InputError(
            "the router's logits are taken from the base model.",
            f"{type(causal).__name__} has none.",
            "Pass output_router_logits=False.",
        )
    return base
