"""Verdict and VerifyReport: what the experiments say, for people, for programs, and to store with the data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloison.errors import FindingsError
from cloison.findings import Finding
from cloison.showing import repr_html

__all__ = ["Status", "Verdict", "VerifyReport", "plain"]

Status = Literal["exact", "right", "leak", "mismatch", "wrong", "coupled", "error", "not tested"]
"""exact and right: as it should be. leak, mismatch, wrong, error: findings. coupled, not tested: said, and no finding."""


@dataclass(frozen=True)
class Verdict:
    """What one experiment says.

    Attributes:
        experiment: "isolation", "gradients", "look-ahead", "equality", "targets", "positions", "where" or "throughput".
        status: see `Status`.
        summary: one line for people.
        evidence: plain data: the numbers, the controls, the noise they were held against.
    """

    experiment: str
    status: Status
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "experiment": self.experiment,
            "status": self.status,
            "summary": self.summary,
            "evidence": plain(self.evidence),
        }


@dataclass(frozen=True, eq=False)
class VerifyReport:
    """All verdicts on one set-up.

    Attributes:
        verdicts: one an experiment, those that were not tested too.
        findings: what is to be mended, and notes; `ok` where none is an error.
        influence: float64 [segments, segments] or None: entry (s, d) is how far the outputs of segment d moved when the tokens
            of segment s changed, in standard deviations of the outputs; NaN where it was not measured. Segments count over all
            blocks, in order.
        certificate: plain data: the set-up that was measured, and what was not (see `proof.certificate`).
    """

    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...] = ()
    influence: npt.NDArray[np.float64] | None = None
    certificate: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    _repr_html_ = repr_html

    @property
    def measured_on(self) -> str:
        """How long the samples were that this was measured on, and which limits of the model lie beyond; "" where not known."""
        lengths = [int(n) for block in self.certificate.get("seq_lengths") or () for n in block]
        if not lengths:
            return ""
        span = f"{min(lengths):,} to {max(lengths):,}" if min(lengths) < max(lengths) else f"{max(lengths):,}"
        said = f"{len(lengths):,} sample{'s' * (len(lengths) != 1)} of {span} tokens, {sum(lengths):,} in all"
        beyond = [f"{name}={value:,}" for name, value in (self.certificate.get("not_reached") or {}).items()]
        return f"{said}; none is longer than {', '.join(beyond)}: what begins there was not seen" if beyond else said

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong. What was not tested is not wrong: read the verdicts too."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __getitem__(self, experiment: str) -> Verdict:
        """Return the verdict of ``experiment``."""
        for verdict in self.verdicts:
            if verdict.experiment == experiment:
                return verdict
        raise KeyError(experiment)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "ok": self.ok,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "findings": [plain(finding.to_dict()) for finding in self.findings],
            "influence": None if self.influence is None else plain(self.influence),
            "certificate": plain(self.certificate),
        }

    def to_json(self) -> str:
        """Return everything as JSON, the same text for the same report."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        width = max((len(verdict.experiment) for verdict in self.verdicts), default=0)
        lines = [f"{v.experiment:<{width}}  {v.status.upper():<10}  {v.summary}" for v in self.verdicts]
        for finding in self.findings:
            lines.append(f"{finding.severity}: {finding.message}")
            if finding.fix:
                lines.append(f"  fix: {finding.fix}")
        if self.measured_on:
            lines.append(f"measured on {self.measured_on}")
        return "\n".join(lines)

    def raise_for_findings(self) -> None:
        """Raise a FindingsError that lists the errors, unless `ok`."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        if errors:
            raise FindingsError(
                "packed samples must be treated as if each were alone.",
                " ".join(f"[{finding.kind}] {finding.message}" for finding in errors),
                " ".join(dict.fromkeys(finding.fix for finding in errors if finding.fix)),
            )


def plain(value: Any) -> Any:
    """Return ``value`` as JSON-able data: arrays as lists, NaN and infinities as None, anything unknown as its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return str(value)
