"""Hit: what one rule saw in one piece of a data set; tallies of hits become findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cloison.checking.kinds import KINDS
from cloison.findings import Finding, Severity

__all__ = ["Hit", "Place", "Tally"]


@dataclass(frozen=True)
class Place:
    """Where the first hit is: plain data; None where it does not apply.

    Attributes:
        file: the file's name.
        row: index of the row in the whole data set (or in the file where ``file`` is given).
        segment: index of the segment in its row.
        position: index of the token in its row.
    """

    file: str | None = None
    row: int | None = None
    segment: int | None = None
    position: int | None = None

    def __str__(self) -> str:
        parts = [("", self.file), ("row ", self.row), ("segment ", self.segment), ("position ", self.position)]
        return ", ".join(f"{name}{value:,}" if name else str(value) for name, value in parts if value is not None)


@dataclass(frozen=True)
class Hit:
    """What one rule saw.

    Attributes:
        kind: a key of `cloison.checking.kinds.KINDS`.
        count: how many.
        of: among how many it was looked for.
        place: the first one.
        severity: in place of the kind's own, where the convention of the reader decides.
        details: values for the kind's texts; numbers of the first hit.
    """

    kind: str
    count: int
    of: int
    place: Place = Place()
    severity: Severity | None = None
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Tally:
    """Sums hits of the same kind, severity and variant; keeps the first place. Memory does not grow with the data."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Severity, str], tuple[Hit, int, int]] = {}

    def add(self, hit: Hit) -> None:
        """Count ``hit``; one with a count of 0 only says among how many it was looked for."""
        key = (hit.kind, hit.severity or KINDS[hit.kind].severity, str(hit.details.get("variant", "")))
        first, count, of = self._sums.get(key, (hit, 0, 0))
        if count == 0 and hit.count:
            first = hit
        self._sums[key] = (first, count + hit.count, of + hit.of)

    def findings(self) -> list[Finding]:
        """Return a finding for each kind that was hit, errors first, then in the order of `KINDS`."""
        order = list(KINDS)
        grades: tuple[Severity, ...] = ("error", "warning", "note")
        hits = [(key, *value) for key, value in self._sums.items() if value[1]]
        hits.sort(key=lambda item: (grades.index(item[0][1]), order.index(item[0][0])))
        return [_finding(kind, severity, first, count, of) for (kind, severity, _), first, count, of in hits]


def _finding(kind: str, severity: Severity, first: Hit, count: int, of: int) -> Finding:
    texts = KINDS[kind]
    values = {"count": f"{count:,}", "of": f"{of:,}", **first.details}
    place = str(first.place)
    message = texts.what.format(**values) + (f" (first: {place})." if place else ".")
    where: dict[str, Any] = {name: value for name, value in vars(first.place).items() if value is not None}
    where |= {"count": count, "of": of, **{name: value for name, value in first.details.items() if name != "variant"}}
    return Finding(kind, severity, f"{message} {texts.effect.format(**values)}", texts.fix.format(**values), where)
