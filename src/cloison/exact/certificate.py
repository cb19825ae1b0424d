"""Certificate: what was proven of an adapter, on what set-up, and what was not tested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError
from cloison.exact.sharding import computed_in, is_sharded, own_class
from cloison.exact.ways import RUNGS
from cloison.spec import canonical_hash

if TYPE_CHECKING:
    import torch

__all__ = ["Certificate", "Vitals", "check_surroundings", "check_vitals", "compiled", "set_up", "vitals"]


LINE = 160
"""Characters of a line for people."""


@dataclass(frozen=True)
class Certificate:
    """What was proven.

    Attributes:
        set_up: plain data that names the model's configuration, attention, kernels and their versions, dtype, device, mode and
            checkpointing: see `set_up`.
        rung: the letter of the way.
        way: its name, positions included.
        choice: the way as plain data, which a cache stores.
        measured: how far bystanders moved and how far samples were from themselves alone on the first trial, in standard
            deviations of the outputs, and the floor that this was held against.
        verdicts: experiment to what `cloison.verify` said of the adapter.
        tried: every way before it, with what it missed by.
        twin: how the way was chosen: "" on the model itself, else what the twin was.
        not_tested: what the proof says nothing about.
    """

    set_up: Mapping[str, Any]
    rung: str
    way: str
    choice: Mapping[str, Any]
    measured: Mapping[str, float]
    verdicts: Mapping[str, str]
    tried: tuple[Mapping[str, Any], ...]
    twin: str
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
            "choice": dict(self.choice),
            "measured": dict(self.measured),
            "verdicts": dict(self.verdicts),
            "tried": [dict(entry) for entry in self.tried],
            "twin": self.twin,
            "not_tested": list(self.not_tested),
        }

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=2, default=str)

    def line(self) -> str:
        """Return what was chosen and proven, on one line of at most 160 characters (longer only where names are): `to_dict` has
        every figure."""
        facts = ", ".join(filter(None, (self.set_up[name] for name in ("attention", "dtype", "device"))))
        shown = f"{self.set_up['model']} ({facts}) runs packed blocks by "
        proven = [
            self.verdicts.get("isolation", "isolation: not tested").split(" (")[0],
            ":".join(self.verdicts.get("equality", "equality: not tested").split(":")[:2]),
            self.twin.split(",")[0].removeprefix("chosen "),
        ]
        rest = "".join(f"; {part}" for part in proven if part)
        whole = f"{shown}{self.way}{rest}"
        return whole if len(whole) <= LINE else f"{shown}{self.rung}: {RUNGS[self.rung]}{rest}"


def set_up(model: torch.nn.Module) -> dict[str, Any]:
    """Return, as plain data, everything about ``model`` and its surroundings that a proof depends on."""
    import torch

    config: Any = getattr(model, "config", None)
    plain = config.to_dict() if hasattr(config, "to_dict") else {}
    for name in ("transformers_version", "_name_or_path"):
        plain.pop(name, None)
    alive = vitals(model)
    versions = {"torch": str(torch.__version__)} | _versions(*(("transformers", *_KERNELS) if config is not None else _KERNELS))
    return {
        "model": own_class(model).__name__,
        "config": canonical_hash(repr(sorted(plain.items(), key=lambda item: item[0]))),
        "modules": canonical_hash([(name, own_class(module).__name__) for name, module in model.named_modules()]),
        "shape": "" if plain else canonical_hash([repr(model), *((n, list(p.shape)) for n, p in model.named_parameters())]),
        "attention": alive.attention,
        "experts": alive.experts,
        "dtype": alive.dtype,
        "device": alive.device.split(":")[0],
        "training": model.training,
        "checkpointing": alive.checkpointing,
        "compiled": alive.compiled,
        "sharded": is_sharded(model),
        "versions": versions,
    }


_KERNELS = ("flash-attn", "causal-conv1d", "mamba-ssm", "flash-linear-attention", "kernels", "triton")
"""Distributions whose kernels models run where they are installed."""


@cache
def _versions(*distributions: str) -> dict[str, str]:
    found = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@dataclass(frozen=True)
class Vitals:
    """What of a model must still be so when an adapter runs it; quick to read.

    Attributes:
        modules: a hash of the classes of all modules, in order.
        attention, experts: names of the implementations, "" where there are none.
        dtype, device: of the first floating parameter, the dtype as the forward sees it.
        checkpointing: whether any layer recomputes in the backward.
        compiled: whether calls go to a compiled graph.
    """

    modules: int
    attention: str
    experts: str
    dtype: str
    device: str
    checkpointing: bool
    compiled: bool


def vitals(model: torch.nn.Module) -> Vitals:
    """Return the vitals of ``model``."""
    config = getattr(model, "config", None)
    modules = list(model.modules())
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    return Vitals(
        hash(tuple(id(own_class(module)) for module in modules)),
        getattr(config, "_attn_implementation", None) or "",
        getattr(config, "_experts_implementation", None) or "",
        str(computed_in(model)).removeprefix("torch.").lower(),
        "cpu" if parameter is None else str(parameter.device),
        any(vars(module).get("gradient_checkpointing") is True for module in modules),
        compiled(model),
    )


def compiled(model: torch.nn.Module) -> bool:
    """Whether calls of ``model`` go to a graph made by ``torch.compile``, around it or in place."""
    return type(model).__name__ == "OptimizedModule" or getattr(model, "_compiled_call_impl", None) is not None


def check_vitals(then: Vitals, model: torch.nn.Module, certificate: Certificate | None = None) -> None:
    """Raise an InputError that names what changed since ``then``, if anything did.

    Checkpointing may be switched where ``certificate`` says that gradients are the same with and without.
    """
    now = vitals(model)
    if certificate is not None and "recomputation" in certificate.verdicts:
        now = replace(now, checkpointing=then.checkpointing)
    if now == then:
        return
    changes = {
        "modules": "its modules were replaced, wrapped or added",
        "attention": f"its attention went from {then.attention!r} to {now.attention!r}",
        "experts": f"its experts went from {then.experts!r} to {now.experts!r}",
        "dtype": f"its dtype went from {then.dtype} to {now.dtype}",
        "device": f"it was moved from {then.device} to {now.device}",
        "checkpointing": f"gradient checkpointing was switched {'on' if now.checkpointing else 'off'}",
        "compiled": "it was compiled" if now.compiled else "it is no longer compiled",
    }
    found = [text for name, text in changes.items() if getattr(now, name) != getattr(then, name)]
    raise InputError(
        "an adapter runs the model that was certified.",
        f"Since adapt, {', and '.join(found)}.",
        "Call cloison.adapt(model) after the last change.",
    )


def check_surroundings(certificate: Certificate, model: torch.nn.Module) -> None:
    """Raise an InputError where ``model`` came to other versions or another kind of device than the certificate names."""
    here = set_up(model)
    found = [f"{name}: {certificate.set_up[name]}, here {here[name]}" for name in ("device", "versions")
             if certificate.set_up[name] != here[name]]  # fmt: skip
    if found:
        raise InputError(
            "a copied adapter runs where it was certified.",
            f"It was made with {'; '.join(found)}.",
            "Load the model alone, and call cloison.adapt(model) here.",
        )
