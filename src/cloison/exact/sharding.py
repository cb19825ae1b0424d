"""Models that FSDP2 has sharded in place (``torch.distributed.fsdp.fully_shard``): what their modules are beneath.

It gives each module a class of its own, made for the occasion, whose forward is that of the class before (torch 2.13). So an
adapter that was made before runs on; one that is made after is chosen on a twin, since nothing sharded can be copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["computed_in", "is_sharded", "own_class"]


def _fsdp() -> Any:
    from torch import distributed

    if not distributed.is_available():
        return None
    from torch.distributed.fsdp import FSDPModule

    return FSDPModule


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether any module of ``model`` is one of FSDP2."""
    kind = _fsdp()
    return kind is not None and any(isinstance(module, kind) for module in model.modules())


def own_class(module: torch.nn.Module) -> type:
    """Return the class of ``module``, before it was sharded."""
    above = type(module).__mro__
    return above[2] if len(above) > 2 and above[1].__name__ == "FSDPModule" else above[0]


def computed_in(model: torch.nn.Module) -> torch.dtype | None:
    """Return the dtype of the first floating parameter as the forward sees it: what a policy of FSDP2 casts it to."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    kind = _fsdp()
    for module in model.modules() if kind is not None else ():
        if isinstance(module, kind):
            policy = module._get_fsdp_state()._mp_policy
            return policy.param_dtype or dtype
    return dtype
