"""A model's outputs over rows of segments, put back into packed row order; and outputs with other fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cloison.exact.layout import Layout

if TYPE_CHECKING:
    import torch

__all__ = ["changed", "repacked"]


def changed(outputs: Any, **fields: Any) -> Any:
    """Return ``outputs`` with ``fields`` in place of its own, None for none: as attributes, keys and in its tuple alike.

    A transformers ModelOutput keeps the key of a field that is set to None, and puts a new one last (5.24).
    """
    names = getattr(outputs, "__dataclass_fields__", None)
    if isinstance(outputs, dict) and names is not None:
        merged = {**{name: outputs[name] for name in outputs}, **fields}
        made = type(outputs)(**{name: value for name, value in merged.items() if name in names and value is not None})
        for name in merged.keys() - names.keys():
            setattr(made, name, merged[name])
        return made
    if isinstance(outputs, dict):
        return outputs | fields
    for name, value in fields.items():
        setattr(outputs, name, value)
    return outputs


def repacked(outputs: Sequence[Any], layouts: Sequence[Layout]) -> Any:
    """Return one output of the kind that the model returned, each tensor [rows, tokens, ...] as [B, T, ...].

    ``outputs`` are those of one or more runs over disjoint segments. What is not one entry a token (attention weights, caches,
    losses) is dropped: it would mean something else.
    """
    first = outputs[0]
    if hasattr(first, "keys") and hasattr(first, "to_tuple"):  # a transformers ModelOutput
        fields = {name: _value([output[name] for output in outputs], layouts) for name in first}
        return type(first)(**{name: value for name, value in fields.items() if value is not None})
    if isinstance(first, dict):
        return {name: _value([output[name] for output in outputs], layouts) for name in first}
    if isinstance(first, tuple):
        return tuple(_value(list(values), layouts) for values in zip(*outputs, strict=True))
    return _value(list(outputs), layouts)


def _value(values: Sequence[Any], layouts: Sequence[Layout]) -> Any:
    import torch

    if isinstance(values[0], tuple):
        inner = tuple(_value(list(entry), layouts) for entry in zip(*values, strict=True))
        return None if any(entry is None for entry in inner) or not inner else inner
    if not all(
        isinstance(value, torch.Tensor) and tuple(value.shape[:2]) == tuple(layout.places.shape)
        for value, layout in zip(values, layouts, strict=True)
    ):
        return None
    packed = [layout.to_packed(value) for value, layout in zip(values, layouts, strict=True)]
    total: torch.Tensor = packed[0] if len(packed) == 1 else torch.stack(packed).sum(0)
    return total
