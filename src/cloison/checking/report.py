"""CheckReport: what `check` found, for programs and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cloison.errors import FindingsError
from cloison.findings import Finding

__all__ = ["CheckReport"]


@dataclass(frozen=True)
class CheckReport:
    """The static contract of a packed data set, or of one batch.

    Attributes:
        findings: what is wrong or worth knowing, errors first.
        counts: rows, segments, tokens, positions, targets (None where no column says what is trained), max_seqlen, and the two
            utilizations.
        convention: how the reader of this data understands it, in words; the findings hold under it.
        boundaries: the column that states the boundaries ("position_ids" and "none" are guesses).
        not_checked: what could not be looked at, and what would make it so.
    """

    findings: tuple[Finding, ...]
    counts: Mapping[str, Any]
    convention: str
    boundaries: str
    not_checked: tuple[str, ...] = ()
    source: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ok(self) -> bool:
        """Whether there is no error (warnings and notes pass)."""
        return not any(finding.severity == "error" for finding in self.findings)

    def kinds(self, severity: str | None = None) -> list[str]:
        """Return the kinds of the findings, of one severity or of all."""
        return [finding.kind for finding in self.findings if severity in (None, finding.severity)]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "ok": self.ok,
            "source": self.source,
            "convention": self.convention,
            "boundaries": self.boundaries,
            "counts": dict(self.counts),
            "facts": dict(self.facts),
            "findings": [finding.to_dict() for finding in self.findings],
            "not_checked": list(self.not_checked),
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def raise_for_findings(self) -> None:
        """Raise a FindingsError when there is an error, with all of them in its text."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        if errors:
            listed = "\n".join(f"  {finding.kind}: {finding.message} {finding.fix}".rstrip() for finding in errors)
            raise FindingsError(f"check found {len(errors)} faults in {self.source or 'the data'}:", f"\n{listed}")

    def __str__(self) -> str:
        counts = self.counts
        targets = "targets unknown" if counts["targets"] is None else f"{counts['targets']:,} targets"
        lines = [
            f"{self.source or 'data'}: {counts['rows']:,} rows, {counts['segments']:,} segments, {counts['tokens']:,} "
            f"tokens, {targets}",
            f"  utilization {counts['utilization']:.2%}"
            + ("" if counts["target_utilization"] is None else f", of targets {counts['target_utilization']:.2%}")
            + f"; longest segment {counts['max_seqlen']:,}",
            f"  read as {self.convention or 'nothing: there is no row'}",
            f"  boundaries from {self.boundaries}",
            "",
        ]
        for finding in self.findings:
            lines.append(f"{finding.severity.upper():<8}{finding.kind}")
            nothing = "No fix needed." if finding.severity == "note" else ""
            lines += [
                f"        {part}" for part in (finding.message, f"Fix: {finding.fix}" if finding.fix else nothing) if part
            ]
        if not self.findings:
            lines.append("Nothing to report.")
        lines += [f"not checked: {reason}" for reason in self.not_checked]
        errors, warnings = len(self.kinds("error")), len(self.kinds("warning"))
        summary = ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in ((errors, "error"), (warnings, "warning")) if n)
        lines.append(summary or "ok")
        return "\n".join(lines)
