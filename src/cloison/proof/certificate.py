"""The certificate of a verification: the set-up that was measured, and what was not."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cloison.blocks import Block
from cloison.proof.blocks import lengths_of
from cloison.proof.limits import limits
from cloison.proof.report import Verdict, plain
from cloison.proof.run import Subject
from cloison.spec import canonical_hash

__all__ = ["certificate"]

_PACKAGES = ("cloison", "torch", "transformers", "kernels", "flash_attn", "mamba_ssm", "causal_conv1d", "fla-core")


def certificate(
    subject: Subject, blocks: Sequence[Block], batch: Mapping[str, Any] | None, verdicts: Sequence[Verdict], seed: int
) -> dict[str, Any]:
    """Return what was measured and what was not, as plain data without time, host or path.

    The claim is "exact, for this set-up": another dtype, kernel, version or layout is another set-up.
    """
    module = subject.module
    config: Any = getattr(module, "config", None)
    fields = plain(config.to_dict()) if hasattr(config, "to_dict") else {}
    for name in ("transformers_version", "_name_or_path"):
        fields.pop(name, None)
    untested = [f"{verdict.experiment}: {verdict.summary}" for verdict in verdicts if verdict.status == "not tested"]
    longest = max(lengths_of(blocks), default=0)
    beyond = {name: value for name, value in sorted(limits(config, module).items()) if value >= longest}
    untested += [f"{name}={value}: no sample was longer (the longest had {longest} tokens)" for name, value in beyond.items()]
    untested += _not_reached(module)
    parameters = [] if module is None else list(module.parameters())
    return {
        "model": subject.name,
        "model_type": fields.get("model_type"),
        "config": canonical_hash(fields) if fields else None,
        "parameters": sum(p.numel() for p in parameters),
        "attention": getattr(config, "_attn_implementation", None),
        "experts": getattr(config, "_experts_implementation", None),
        "dtype": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "device": sorted({p.device.type for p in parameters}),
        "mode": None if module is None else ("training" if module.training else "eval"),
        "checkpointing": module is not None and any(vars(m).get("gradient_checkpointing") is True for m in module.modules()),
        "compiled": type(module).__name__ == "OptimizedModule" or bool(getattr(module, "_compiled_call_impl", None)),
        "wrapped": None if module is None else type(module).__module__.split(".")[0],
        "signal": None if batch is None else {key: _shape(value) for key, value in sorted(batch.items())},
        "seq_lengths": [[int(n) for n in block.segments.seq_lengths] for block in blocks],
        "not_reached": beyond,
        "seed": seed,
        "versions": _versions(),
        "verdicts": {verdict.experiment: verdict.status for verdict in verdicts},
        "not_tested": untested,
    }


def _not_reached(module: Any) -> list[str]:
    """Return the parts of a set-up that a forward in this process cannot show."""
    out = ["other dtypes, kernels, devices and versions than those named here"]
    if module is not None and not module.training:
        out.append("training mode (dropout, checkpointing, batch statistics)")
    return out


def _shape(value: Any) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return {str(key): _shape(entry) for key, entry in value.items()}
    return value if isinstance(value, (bool, int, float, str)) or value is None else type(value).__name__


def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
