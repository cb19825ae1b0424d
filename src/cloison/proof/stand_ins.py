"""Forwards that stand in for a module's own while a call is recorded (an adapter's, a trainer's): its repeats run by them too.

A call that is repeated after its step would else reach the model itself, with arguments that were meant for what stood before
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["StandIns", "is_recorded", "marked", "put_on", "standing"]

StandIns = Sequence[tuple[Any, Any]]
"""Modules, and the forwards that stood in for theirs."""

_MARK = "_cloison_records"


def standing(model: Any) -> list[tuple[Any, Any]]:
    """Return the modules of ``model`` whose forward is not their class's now, with it."""
    return [(module, vars(module)["forward"]) for module in model.modules() if "forward" in vars(module)]


@contextmanager
def put_on(stand_ins: StandIns) -> Iterator[bool]:
    """Let the forwards of a recorded call stand in again; yields whether any of them is not there anyway."""
    before: list[tuple[Any, Any]] = [(vars(module), vars(module).get("forward")) for module, _ in stand_ins]
    other = any(old is not forward for (_, old), (_, forward) in zip(before, stand_ins, strict=True))
    for (own, _), (_, forward) in zip(before, stand_ins, strict=True):
        own["forward"] = forward
    try:
        yield other
    finally:
        for own, old in before:
            own.pop("forward", None)
            if old is not None:
                own["forward"] = old


def marked(hook: Any) -> Any:
    """Return ``hook``, marked as one that records the calls of its module."""
    setattr(hook, _MARK, True)
    return hook


def is_recorded(model: Any) -> bool:
    """Whether someone records the calls of ``model`` now."""
    return any(hasattr(hook, _MARK) for hook in model._forward_pre_hooks.values())
