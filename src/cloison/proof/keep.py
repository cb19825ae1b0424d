"""An experiment leaves no trace: mode, random state, buffers, attributes, hooks and weights are as they were before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Kept", "dropout_of", "eager", "kept", "seeded"]

COPIED_PARAMETERS = 64_000_000
"""Weights are copied, so that a forward which changes them can be undone, up to this many; above, a change is only noticed."""

_NOISE_WORDS = ("dropout", "dropout_rate", "pdrop", "jitter_noise", "layerdrop", "drop_path")


@dataclass
class Kept:
    """What was noticed while an experiment ran.

    Attributes:
        dropout: the largest dropout rate that was switched off for the experiment, 0.0 where there was none.
        changed_weights: names of parameters that a forward changed.
        drew_random: whether a forward drew random numbers or set the seed.
        restored: whether everything is as it was (weights above the stated size cannot be put back).
    """

    dropout: float = 0.0
    changed_weights: list[str] = field(default_factory=list)
    drew_random: bool = False
    restored: bool = True


def dropout_of(module: nn.Module | None) -> float:
    """Return the largest dropout (or jitter, or layer drop) rate that ``module`` and its configuration name."""
    if module is None:
        return 0.0
    rates: list[float] = []
    for inner in module.modules():
        rate: Any = getattr(inner, "p", None)
        if "Dropout" in type(inner).__name__ and isinstance(rate, (int, float)):
            rates.append(float(rate))
    config: Any = getattr(module, "config", None)
    plain = config.to_dict() if hasattr(config, "to_dict") else {}
    nested = plain.get("text_config")
    for fields in (plain, nested if isinstance(nested, dict) else {}):
        for name, value in fields.items():
            if name.endswith(_NOISE_WORDS) and "classifier" not in name and isinstance(value, (int, float)):
                rates.append(float(value))
    return max(rates, default=0.0)


def eager() -> Any:
    """Return a context in which compiled models run as they are written: hooks and compiled graphs do not mix."""
    import torch

    stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if stance is None else stance("force_eager")


@contextmanager
def kept(module: nn.Module | None, *, as_it_is: bool = False) -> Iterator[Kept]:
    """Run an experiment on ``module`` in its own mode, with dropout off, and put everything back afterwards.

    A model in training mode stays in it (checkpointing and batch statistics are part of what is measured) unless it has a
    dropout rate: then it is measured in eval mode, and ``Kept.dropout`` says so. ``as_it_is`` leaves the mode alone, for a
    caller who seeds every forward alike; ``Kept.dropout`` is the rate that stays on.
    """
    import torch

    notes = Kept()
    with _random_state(), torch.random.fork_rng(devices=_devices(module)):
        if module is None:
            yield notes
            return
        modes = [(m, m.training) for m in module.modules()]
        state = [(m, dict(m.__dict__), dict(m._buffers)) for m in module.modules()]
        hooks = [(held, dict(held)) for m in module.modules() for held in _hooks(m)]
        buffers = [(b, b.detach().clone()) for b in module.buffers()]
        versions = [(name, p, p._version) for name, p in module.named_parameters()]
        small = sum(p.numel() for _, p, _ in versions) <= COPIED_PARAMETERS
        copies = [p.detach().clone() for _, p, _ in versions] if small else []
        if module.training and dropout_of(module) > 0:
            notes.dropout = dropout_of(module)
            if not as_it_is:
                module.eval()
        try:
            yield notes
        finally:
            for index, (name, parameter, version) in enumerate(versions):
                if parameter._version != version:
                    notes.changed_weights.append(name)
                    if copies:
                        with torch.no_grad():
                            parameter.copy_(copies[index])
                    else:
                        notes.restored = False
            for buffer, copy in buffers:
                if not torch.equal(buffer, copy):
                    with torch.no_grad():
                        buffer.copy_(copy)
            for m, attributes, own in state:
                for name in list(m.__dict__):
                    if name not in attributes:
                        del m.__dict__[name]
                m.__dict__.update(attributes)
                m._buffers.clear()
                m._buffers.update(own)
            for held, before in hooks:
                # transformers hooks modules when first asked for router logits, and remembers that in an attribute
                held.clear()
                held.update(before)
            for m, training in modes:
                m.training = training


def _hooks(module: nn.Module) -> list[dict[Any, Any]]:
    return [held for name, held in vars(module).items() if "_hooks" in name and isinstance(held, dict)]


def seeded(call: Callable[..., Any], seed: int, notes: Kept) -> Callable[..., Any]:
    """Return ``call`` with torch's seed set before every call; ``notes`` learns whether it drew random numbers."""
    import torch

    def run(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        out = call(*args, **kwargs)
        notes.drew_random |= not torch.equal(torch.random.get_rng_state(), before)
        return out

    return run


def _devices(module: nn.Module | None) -> list[Any]:
    if module is None:
        return []
    return sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})


@contextmanager
def _random_state() -> Iterator[None]:
    import random

    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
