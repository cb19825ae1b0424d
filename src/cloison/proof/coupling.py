"""Coupling that is no leak: numbers of a bystander that move because of the shape of the work, not because of what it says.

A mixture of experts groups tokens by expert; with other group sizes, or with a capacity, the same token is rounded otherwise or
dropped. The control is to *replay the routing* of the unchanged run: if nothing moves then, it was the grouping. Linear layers
and batch statistics do not read neighbours either: the control puts the bystander's own outputs back after each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.proof.tracing import is_linear

if TYPE_CHECKING:
    from torch import nn

__all__ = ["has_experts", "per_token_replayed", "recording", "replaying", "routers"]

_ROUTER_NAMES = ("gate", "router", "router_layer", "gating", "wg")

Recorded = dict[str, list[Any]]
"""Module name to what it gave (or was given), call after call."""


def routers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that decide which expert a token goes to: children beside ``experts``."""
    out = {}
    for name, inner in module.named_modules():
        children = dict(inner.named_children())
        if "experts" in children or any("expert" in child for child in children):
            for child in _ROUTER_NAMES:
                if child in children:
                    out[f"{name}.{child}" if name else child] = children[child]
    return out


def has_experts(module: nn.Module | None) -> bool:
    """Whether ``module`` sends tokens to experts."""
    return module is not None and bool(routers(module) or _dispatchers(module))


def _dispatchers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose forward is told the choice of experts."""
    return {
        name: inner for name, inner in module.named_modules() if "top_k_index" in inspect.signature(inner.forward).parameters
    }


@contextmanager
def recording(module: nn.Module) -> Iterator[Recorded]:
    """Record the routing of what runs inside."""
    recorded: Recorded = {}
    handles: list[Any] = []

    def output_of(name: str) -> Any:
        return lambda inner, args, output: recorded.setdefault(name, []).append(_copy(output))

    def choice_of(name: str) -> Any:
        def hook(inner: nn.Module, args: Any, kwargs: Any) -> None:
            recorded.setdefault(name, []).append(_copy((args[1:], {k: v for k, v in kwargs.items() if k.startswith("top_k")})))

        return hook

    try:
        for name, router in routers(module).items():
            handles.append(router.register_forward_hook(output_of(name)))
        for name, experts in _dispatchers(module).items():
            handles.append(experts.register_forward_pre_hook(choice_of(name), with_kwargs=True))
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaying(module: nn.Module, recorded: Recorded) -> Iterator[None]:
    """Let every token go to the experts that it went to when ``recorded`` was made."""
    handles: list[Any] = []

    def output_of(name: str) -> Any:
        calls = iter(recorded[name])
        return lambda inner, args, output: next(calls)

    def choice_of(name: str) -> Any:
        calls = iter(recorded[name])

        def hook(inner: nn.Module, args: Any, kwargs: Any) -> Any:
            rest, named = next(calls)
            return (args[:1] + rest, {**kwargs, **named})

        return hook

    try:
        for name, router in routers(module).items():
            if name in recorded:
                handles.append(router.register_forward_hook(output_of(name)))
        for name, experts in _dispatchers(module).items():
            if name in recorded:
                handles.append(experts.register_forward_pre_hook(choice_of(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def per_token_replayed(module: nn.Module, base: Recorded | None, bystanders: npt.NDArray[np.int64]) -> Iterator[Recorded]:
    """Record the outputs of linear layers and batch norms (``base`` None), or put those of ``base`` back for ``bystanders``.

    ``bystanders`` are places in the flattened tokens [rows * width]. Memory: one activation a linear layer.
    """
    import torch

    made: Recorded = {}
    handles: list[Any] = []
    at = torch.from_numpy(bystanders)

    def hook_of(name: str) -> Any:
        calls = iter(base[name]) if base is not None and name in base else None

        def hook(inner: nn.Module, args: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor):
                return None
            if calls is None:
                made.setdefault(name, []).append(output.detach().clone())
                return None
            before = next(calls)
            channels_first = isinstance(inner, torch.nn.modules.batchnorm._BatchNorm) and output.dim() == 3
            new = (output.transpose(1, 2) if channels_first else output).clone()
            old = before.transpose(1, 2) if channels_first else before
            flat = new.reshape(-1, new.shape[-1])
            flat[at] = old.reshape(-1, new.shape[-1])[at]
            new = flat.reshape(new.shape)
            return new.transpose(1, 2) if channels_first else new

        return hook

    try:
        for name, inner in module.named_modules():
            if is_linear(inner) or (isinstance(inner, torch.nn.modules.batchnorm._BatchNorm) and inner.training):
                handles.append(inner.register_forward_hook(hook_of(name)))
        yield made
    finally:
        for handle in handles:
            handle.remove()


def _copy(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_copy(entry) for entry in value) if type(value) in (tuple, list) else value
    return value
