"""Inside an audited command: trainers get an `Audit` when they are imported, and the command ends after its first step.

Imports nothing but the standard library until a trainer is there, since it runs at the start of every Python of the command.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["install"]

_HOOKS: dict[str, Callable[[ModuleType], None]] = {}
"""Module name to what is done to it when it has been imported; filled at the end of this file."""

_in_trainer: list[Any] = []
"""The trainer that is training, if there is one."""

_unpacked: list[Any] = []
"""Data sets as they were before TRL cut them into rows of equal length, which loses where samples begin."""


class _AfterImport(MetaPathFinder):
    """Changes a module right after it is imported, once."""

    def __init__(self) -> None:
        self._waiting = dict(_HOOKS)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        change = self._waiting.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Wait for trainers to be imported."""
    sys.meta_path.insert(0, _AfterImport())


def _audit_trainer(module: ModuleType) -> None:
    """Let ``transformers.Trainer.train`` audit its first step and end the process there."""
    train = module.Trainer.train

    def audited(self: Any, *args: Any, **kwargs: Any) -> Any:
        for callback in list(self.callback_handler.callbacks):
            if type(callback).__module__.startswith("transformers.integrations"):
                self.remove_callback(callback)  # a rehearsal is no run to report
        _in_trainer.append(self)
        self.add_callback(_stopping_audit(_samples_of(self)))
        return train(self, *args, **kwargs)

    module.Trainer.train = audited


def _keep_unpacked(module: ModuleType) -> None:
    """Remember what TRL packs, before it does."""
    pack = module.pack_dataset

    def packing(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        _unpacked.append(dataset)
        return pack(dataset, *args, **kwargs)

    module.pack_dataset = packing  # type: ignore[attr-defined]


def _samples_of(trainer: Any) -> Any:
    """Return the samples that were cut into the trainer's rows, where it wraps; else the trainer's own data tells."""
    wrapped = getattr(trainer.args, "packing", False) and getattr(trainer.args, "packing_strategy", "") == "wrapped"
    return _unpacked[0] if wrapped and _unpacked and hasattr(_unpacked[0], "column_names") else None


def _stopping_audit(samples: Any) -> Any:
    from cloison.proof.audit import Audit

    class StoppingAudit(Audit):
        """Writes its report where the command that waits for it looks, and ends the process."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.report is not None:
                _finish(self.report.to_dict())

    return StoppingAudit(samples=samples)


def _finish(plain: dict[str, Any]) -> NoReturn:
    """Write the report and end the process. Ranks wait for each other: a launcher kills the rest when one ends badly."""
    from cloison.proof.ranks import gathered, world

    if world()[0] == 0:
        _write(plain)
    gathered(None)
    raise SystemExit(0)


def _write(plain: dict[str, Any]) -> None:
    path = os.environ["CLOISON_AUDIT_REPORT"]
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(plain, file)
    os.replace(path + ".part", path)


def _audit_loops(module: ModuleType) -> None:
    """Watch the first step of a loop without a trainer: the outermost module that is called with ids, until ``backward``.

    Where a trainer of transformers comes along it takes over: it knows its data and its loss.
    """
    torch: Any = module
    call, backward = torch.nn.Module.__call__, torch.Tensor.backward
    watching: list[Any] = []

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not watching and not _in_trainer and torch.is_grad_enabled() and _has_ids(torch, args, kwargs):
            watching.append(None)  # not the modules inside
            from cloison.proof.watch import watch

            watching[0] = watch(self)
            watching[0].__enter__()
        return call(self, *args, **kwargs)

    def backwards(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = backward(self, *args, **kwargs)
        if watching and not _in_trainer:
            torch.nn.Module.__call__, torch.Tensor.backward = call, backward
            watching[0].__exit__(None, None, None)
            _finish(watching[0].report.to_dict())
        return out

    torch.nn.Module.__call__, torch.Tensor.backward = called, backwards


def _has_ids(torch: Any, args: Any, kwargs: Any) -> bool:
    ids = kwargs.get("input_ids", args[0] if args else None)
    return isinstance(ids, torch.Tensor) and ids.dim() == 2 and not ids.is_floating_point() and ids.shape[1] > 1


_HOOKS["torch"] = _audit_loops
_HOOKS["transformers.trainer"] = _audit_trainer
_HOOKS["trl.trainer.sft_trainer"] = _keep_unpacked
