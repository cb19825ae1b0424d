"""Certificate: what was proven of an adapter, on what set-up, and what was not tested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError
from cloison.spec import canonical_hash

if TYPE_CHECKING:
    import torch

    from cloison.exact.adapter import Adapter

__all__ = ["Certificate", "check_unchanged", "set_up"]


@dataclass(frozen=True)
class Certificate:
    """What was proven.

    Attributes:
        set_up: plain data that names the model's configuration, its attention, kernels and their versions, dtype, device kind,
            training mode and checkpointing: see `set_up`.
        rung: the letter of the way; ``way`` is its name.
        positions: the signal's form, within ``way``.
        measured: how far outputs and gradients were from those of the samples alone, and how far bystanders moved, each in
            standard deviations of the outputs, beside the floor that they were held against.
        tried: every way before it, with what it missed by.
        not_tested: what the proof says nothing about.
    """

    set_up: Mapping[str, Any]
    rung: str
    way: str
    measured: Mapping[str, float]
    tried: tuple[Mapping[str, Any], ...]
    not_tested: tuple[str, ...]

    @property
    def key(self) -> str:
        """sha256 (hex) of the set-up: equal set-ups choose equal ways."""
        return canonical_hash(dict(self.set_up))

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data."""
        return {
            "key": self.key,
            "set_up": dict(self.set_up),
            "rung": self.rung,
            "way": self.way,
            "measured": dict(self.measured),
            "tried": [dict(entry) for entry in self.tried],
            "not_tested": list(self.not_tested),
        }

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=2)

    def line(self) -> str:
        """Return what was chosen and proven, on one line."""
        return (
            f"{self.set_up['model']} with {self.set_up['attention'] or 'its own'} attention, {self.set_up['dtype']}: "
            f"{self.way}; outputs within {self.measured['equality']:.1g} sigma of alone "
            f"(floor {self.measured['floor']:.1g}), leak {self.measured['leak']:.1g}"
        )


def set_up(model: torch.nn.Module) -> dict[str, Any]:
    """Return, as plain data, everything about ``model`` and its surroundings that a proof depends on."""
    import torch

    config = getattr(model, "config", None)
    plain = config.to_dict() if hasattr(config, "to_dict") else {}
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    versions = {"torch": torch.__version__}
    if config is not None:
        import transformers

        versions["transformers"] = transformers.__version__
    return {
        "model": type(model).__name__,
        "config": canonical_hash(repr(sorted(plain.items()))),
        "modules": canonical_hash([(name, type(module).__name__) for name, module in model.named_modules()]),
        "attention": getattr(config, "_attn_implementation", None) or "",
        "experts": getattr(config, "_experts_implementation", None) or "",
        "dtype": str(parameter.dtype).removeprefix("torch.") if parameter is not None else "none",
        "device": parameter.device.type if parameter is not None else "cpu",
        "checkpointing": bool(getattr(model, "is_gradient_checkpointing", False)),
        "versions": versions,
    }


def check_unchanged(adapter: Adapter) -> None:
    """Raise an InputError where the adapter was given back, or its model is no longer what was certified."""
    if adapter.closed:
        raise InputError("this adapter runs no more.", "restore() gave its model back.", "Call cloison.adapt(model) again.")
    now, then = set_up(adapter.model), adapter.certificate.set_up
    for name in ("attention", "experts", "dtype", "device", "checkpointing", "modules", "config"):
        if now[name] != then[name]:
            what = {"modules": "its modules were replaced or wrapped", "config": "its configuration was changed"}
            raise InputError(
                "an adapter runs the model that was certified.",
                f"Since adapt, {what.get(name) or f'{name} went from {then[name]} to {now[name]}'}.",
                "Call cloison.adapt(model) again after the last change.",
            )
