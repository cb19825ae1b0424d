"""What an experiment inside a running training must put back: random state, gradients, buffers, a trainer's counts."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

__all__ = ["attribute", "random_state", "restored", "set_aside"]

_PLAIN = (bool, int, float, str, bytes, complex, type(None))


@contextmanager
def random_state(seed: int | None = None) -> Iterator[None]:
    """Put the random states of Python, numpy and torch (all devices in use) back afterwards; ``seed`` sets torch's inside."""
    import torch

    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else []
    try:
        if seed is not None:
            torch.manual_seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put back what a forward may change in ``model``: buffers, plain attributes, modes, gradients.

    Parameters are not copied: who changes those in a forward is found by their version counters (see `Audit`). Cost: one copy
    of the buffers.
    """
    import torch

    modules = list(model.modules())
    own = [{name: value for name, value in vars(module).items() if _kept(name, value)} for module in modules]
    buffers = [dict(module._buffers) for module in modules]
    copies = [{name: None if b is None else b.detach().clone() for name, b in held.items()} for held in buffers]
    tensors = [{n: v.detach().clone() for n, v in held.items() if isinstance(v, torch.Tensor)} for held in own]
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, plain, held, saved, loose in zip(modules, own, buffers, copies, tensors, strict=True):
                for name, buffer in held.items():
                    if buffer is not None and saved[name] is not None:
                        _refill(buffer, saved[name])
                module._buffers.clear()
                module._buffers.update(held)
                for name, value in plain.items():
                    if name in loose:
                        _refill(value, loose[name])
                    if vars(module).get(name) is not value:
                        object.__setattr__(module, name, value)
            for parameter, grad in grads:
                parameter.grad = grad


def _refill(tensor: Any, saved: Any) -> None:
    if tensor.shape == saved.shape and not _same(tensor, saved):
        tensor.copy_(saved)


def _same(one: Any, two: Any) -> bool:
    import torch

    return bool(torch.equal(one, two)) if not one.is_meta else True


def _kept(name: str, value: Any) -> bool:
    import torch

    return not name.startswith("_") and (isinstance(value, _PLAIN) or (isinstance(value, torch.Tensor) and value.is_leaf))


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give ``owner`` an attribute of its own for a while, and take it away or put the old one back."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def set_aside(owner: Any, keep: tuple[str, ...] = ()) -> Iterator[None]:
    """Let ``owner`` work on copies of its plain data (counts, metrics, states) for a while; the originals come back untouched.

    Plain data: numbers, texts, tensors, and lists, dicts, sets and dataclasses of these. Everything else stays shared.
    """
    before = dict(vars(owner))
    try:
        for name, value in before.items():
            if name not in keep and not isinstance(value, _PLAIN) and _is_data(value):
                vars(owner)[name] = copy.deepcopy(value)
        yield
    finally:
        vars(owner).clear()
        vars(owner).update(before)


def _is_data(value: Any, depth: int = 4) -> bool:
    import torch

    if isinstance(value, (*_PLAIN, np.ndarray, np.generic)):
        return True
    if isinstance(value, torch.Tensor):
        return value.is_leaf and not isinstance(value, torch.nn.Parameter)
    if depth == 0 or isinstance(value, (type, ModuleType)) or callable(value):
        return False
    if isinstance(value, Mapping):
        return all(_is_data(entry, depth - 1) for entry in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_data(entry, depth - 1) for entry in value)
    return type(value).__name__ in ("TrainerState", "TrainerControl")


@contextmanager
def all_of(*managers: Any) -> Iterator[None]:
    """Enter several context managers as one."""
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
