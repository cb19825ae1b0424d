"""What an experiment inside a trainer borrows and gives back: methods, and the trainer's own counts and metrics."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["attribute", "set_aside"]

_LARGEST = 10_000
"""Longer lists and mappings are data sets, not counts: they stay shared."""

_PLAIN = (bool, int, float, str, bytes, complex, type(None))


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
    if isinstance(value, (Mapping, list, tuple, set, frozenset)) and len(value) > _LARGEST:
        return False
    if isinstance(value, Mapping):
        return all(_is_data(entry, depth - 1) for entry in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_data(entry, depth - 1) for entry in value)
    return type(value).__name__ in ("TrainerState", "TrainerControl")
