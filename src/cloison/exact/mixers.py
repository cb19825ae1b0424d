"""Rung e: modules that mix tokens and cannot see boundaries are wrapped: their input is unpacked to a row for each segment,
right-padded, they run, and their output is packed again.

Which modules is found by experiment: the place where a leak enters (`cloison.proof.tracing`), then every module of that class,
until nothing leaks. What a module gets beside its hidden states (rotary tables, positions, masks) is unpacked with them.
Padding is harmless where the module is causal and independent of length and batch; where it is not, segments of equal length
run together, without padding. The experiment on the whole model says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cloison.exact.batches import PackedBatch
from cloison.exact.boundaries import boundaries, is_boundaries
from cloison.exact.layout import Layout, equal_lengths
from cloison.exact.probe import Reference, packed_batch
from cloison.exact.sharding import own_class
from cloison.exact.signals import Signal, run_packed, way_of
from cloison.exact.ways import Way
from cloison.proof.coupling import has_experts, recording, replaying
from cloison.proof.setup import FAILURES
from cloison.proof.tracing import compare, trace
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["chosen", "fitting", "search", "unpacked"]

Style = Literal["padded", "equal lengths"]

MOST_CLASSES = 6


def search(
    model: torch.nn.Module, signals: Sequence[Signal], against: Reference, patterns: Sequence[str] | None = None
) -> Iterator[Way]:
    """Yield ways that leak no more, one after the other: for each of ``signals`` the modules that must be wrapped with it.

    With ``patterns`` those modules are wrapped whose names fit one of them, and nothing is searched.
    """
    if patterns is not None:
        given = fitting(model, patterns)
        for signal in signals if given else ():
            yield wrapped(model, signal, given, "padded")
            yield wrapped(model, signal, given, "equal lengths")
        return
    for signal in signals:
        names: list[str] = []
        for _ in range(MOST_CLASSES):
            try:
                place = _place(model, wrapped(model, signal, names, "padded") if names else way_of(signal), against)
            except FAILURES:  # this signal does not run, or not with these modules wrapped
                names = []
                break
            if place is None:
                break
            names = _with_its_class(model, place, names)
            if not names:
                break
        if names:
            yield wrapped(model, signal, names, "padded")
            yield wrapped(model, signal, names, "equal lengths")


def fitting(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the names of the modules of ``model`` that fit one of ``patterns``, as in ``layers.*.attn``."""
    return [name for name, _ in model.named_modules() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def wrapped(model: torch.nn.Module, signal: Signal, names: Sequence[str], style: Style) -> Way:
    """Return ``signal`` with the modules called ``names`` run on unpacked rows."""
    classes = list(dict.fromkeys(_class_of(model.get_submodule(name)) for name in names))

    run = partial(_run, signal=signal, names=tuple(names), style=style)
    signalled = way_of(signal)
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    choice = {**signal.choice, "rung": "e", "base": signal.rung, "classes": classes, "style": style}
    return Way("e", f"{shown}, {style}; else {signalled.name}", run, signalled.layout, choice=choice)


def _run(model: torch.nn.Module, batch: PackedBatch, *, signal: Signal, names: Sequence[str], style: Style) -> Any:
    def forwards(batch: PackedBatch) -> dict[torch.nn.Module, Callable[..., Any]]:
        modules = [model.get_submodule(name) for name in names]
        return {module: unpacked(module.forward, batch.segments, style) for module in modules}

    return run_packed(model, batch, signal, forwards)


def chosen(model: torch.nn.Module, signals: Sequence[Signal], choice: Mapping[str, Any]) -> Way | None:
    """Return the way that ``choice`` names (made on another model of the same kind), or None where this model has no such."""
    signal = next((s for s in signals if s.choice == choice_of_base(choice)), None)
    names = [name for name, module in model.named_modules() if _class_of(module) in choice["classes"]]
    return wrapped(model, signal, names, choice["style"]) if signal is not None and names else None


def choice_of_base(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of the signal that runs around the wrapped modules."""
    plain = {"rung": choice["base"], "detail": choice["detail"], "positions": list(choice["positions"])}
    return plain | ({"kernel": choice["kernel"]} if "kernel" in choice else {})


def _class_of(module: torch.nn.Module) -> str:
    kind = own_class(module)
    return f"{kind.__module__}.{kind.__qualname__}"


# ---------------------------------------------------------------------- where a leak enters


def _place(model: torch.nn.Module, way: Way, against: Reference) -> str | None:
    """Return the name of the module where a leak enters first under ``way``, or None where nothing leaks."""
    import torch

    device = next(model.parameters()).device
    base, *others = (packed_batch(blocks, device) for blocks in (against.flat, *against.flat_others))
    shape = (base.segments.num_rows, base.segments.width)
    experts = has_experts(model)
    with torch.no_grad():
        watching: Any = recording(model) if experts else nullcontext({})
        with watching as routing:
            before, _ = trace(model, lambda: way.run(model, base), shape)
        for first, batch in enumerate(others):
            held: Any = replaying(model, routing) if experts else nullcontext()
            with held:
                after, _ = trace(model, lambda batch=batch: way.run(model, batch), shape)  # type: ignore[misc]
            found = compare(model, before, after, np.flatnonzero(against.odd != first))
            if found is not None:
                return found.module
    return None


def _with_its_class(model: torch.nn.Module, place: str, names: list[str]) -> list[str]:
    """Return ``names`` and every module of the class of ``place``; its parent's class where that is wrapped already."""
    modules = dict(model.named_modules())
    while place:
        kind = own_class(modules[place])
        same = [name for name, module in modules.items() if own_class(module) is kind]
        takes_tokens = not kind.__module__.startswith("torch.nn")
        if takes_tokens and not set(same) <= set(names):
            inside = tuple(f"{name}." for name in same)
            return [*(name for name in names if not name.startswith(inside)), *same]
        place = place.rpartition(".")[0]
    return []


# ---------------------------------------------------------------------- unpacking around one module


def unpacked(forward: Callable[..., Any], segments: Segments, style: Style) -> Callable[..., Any]:
    """Return ``forward`` for packed rows, run on a row for each segment."""

    def run(*args: Any, **kwargs: Any) -> Any:
        device = _first_tensor(args, kwargs).device
        groups = [None] if style == "padded" else equal_lengths(segments, padding=True)
        layouts = [Layout.of(segments, device, padding=True, chosen=group) for group in groups]
        outputs = [
            forward(*_rows(args, layout), **{name: _rows(value, layout) for name, value in kwargs.items()})
            for layout in layouts
        ]
        return _packed(outputs, layouts)

    return run


def _first_tensor(args: Any, kwargs: Any) -> torch.Tensor:
    import torch

    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value
    raise TypeError("this module is given no tensor")


def _rows(value: Any, layout: Layout) -> Any:
    """Return ``value`` with every tensor over tokens unpacked, masks too; what is no such thing stays."""
    import torch

    if isinstance(value, tuple):
        return tuple(_rows(entry, layout) for entry in value)
    if isinstance(value, dict):
        return {name: _rows(entry, layout) for name, entry in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    rows, width = layout.rows, layout.width
    if is_boundaries(value):
        return boundaries(Segments.from_lengths([[length] for length in layout.lengths], layout.longest), like=value)
    if value.dim() == 4 and value.shape[-2:] == (width, width):
        return layout.mask_to_rows(value.expand(rows, *value.shape[1:]))
    if value.dim() >= 2 and value.shape[1] == width and value.shape[0] in (1, rows):
        return layout.to_rows(value.expand(rows, *value.shape[1:]))
    if value.dim() == 3 and value.shape[1] in (1, rows) and value.shape[2] == width and value.shape[0] in (3, 4):
        return torch.stack([layout.to_rows(plane.expand(rows, width)) for plane in value])  # M-RoPE positions
    return value


def _packed(outputs: Sequence[Any], layouts: Sequence[Layout]) -> Any:
    import torch

    first = outputs[0]
    if isinstance(first, (tuple, list)):
        return type(first)(_packed(list(entries), layouts) for entries in zip(*outputs, strict=True))
    if not isinstance(first, torch.Tensor):
        return first
    fitting = [tuple(out.shape[:2]) == tuple(layout.places.shape) for out, layout in zip(outputs, layouts, strict=True)]
    if not all(fitting):
        return None
    packed = [layout.to_packed(output) for output, layout in zip(outputs, layouts, strict=True)]
    return packed[0] if len(packed) == 1 else torch.stack(packed).sum(0)
