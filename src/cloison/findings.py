"""Finding: one thing that is wrong (or worth knowing), said so that a user can act on it. check, verify and audit share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["Finding", "Severity"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        kind: a short stable word for programs, as "boundary_target" or "leak".
        severity: "error" makes a report not ok (exit status 1); "warning" and "note" are said and pass.
        message: what is wrong, where and how many, with what it does to training.
        fix: what the user can type or change to mend it ("" where nothing is to be mended).
        where: plain data for programs: block, segment, position, file, module, counts.
    """

    kind: str
    severity: Severity
    message: str
    fix: str = ""
    where: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "fix": self.fix,
            "where": dict(self.where),
        }
