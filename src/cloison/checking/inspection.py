"""The inspection itself: pieces of columns in, tallied findings out. Memory does not grow with the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloison.checking.assemble import assemble
from cloison.checking.boundary_rules import BOUNDARY_RULES
from cloison.checking.conventions import ALIASES, CONVENTIONS, Convention, recognise
from cloison.checking.hits import Hit, Tally
from cloison.checking.known import Known
from cloison.checking.ragged import Ragged
from cloison.checking.report import CheckReport
from cloison.checking.rows import Rows
from cloison.checking.target_rules import TARGET_RULES
from cloison.checking.value_rules import VALUE_RULES
from cloison.checking.whole import Endings, SampleBook, Totals
from cloison.errors import InputError

__all__ = ["Inspection", "Piece", "renamed"]

RULES = (*BOUNDARY_RULES, *TARGET_RULES, *VALUE_RULES)
"""Every rule that looks at some rows at a time."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Columns of some rows, by the names in the data."""

    columns: Mapping[str, Ragged]
    first_row: int = 0
    file: str | None = None


def renamed(columns: Mapping[str, Ragged]) -> dict[str, Ragged]:
    """Return ``columns`` by our names.

    Raises:
        InputError: two columns that mean the same.
    """
    out: dict[str, Ragged] = {}
    for name, column in columns.items():
        ours = ALIASES.get(name, name)
        if ours in out:
            raise InputError(f"one column must say {ours}.", f"Two do, one of them {name!r}.", "Drop one of them.")
        out[ours] = column
    return out


class Inspection:
    """Takes rows in, piece by piece, and gives the report at the end."""

    def __init__(self, known: Known, convention: str | None = None, labels: str | None = None, *, ours: bool = False) -> None:
        if convention is not None and convention not in CONVENTIONS:
            raise InputError(
                f"convention must be one of {', '.join(CONVENTIONS)}.",
                f"It is {convention!r}.",
                "Leave it out to have it recognised.",
            )
        if labels not in (None, "same", "shifted"):
            raise InputError('labels must be "same" or "shifted".', f"It is {labels!r}.", "Say what the trainer expects.")
        self._known, self._named, self._labels, self._ours = known, convention, labels, ours
        self.tally, self.totals, self.endings, self.samples = Tally(), Totals(), Endings(known), SampleBook()
        self.conventions: dict[str, Convention] = {}
        self.sources: dict[str, None] = {}
        self._numbered = False

    def _convention(self, columns: Mapping[str, Ragged]) -> Convention:
        if self._named is not None:
            recognise(columns, ours=True)
            chosen = CONVENTIONS[self._named]
        else:
            mask = columns.get("attention_mask")
            self._numbered |= mask is not None and bool(mask.values.size) and int(mask.values.max()) > 1
            chosen = recognise(columns, ours=self._ours, numbered_mask=self._numbered)
        if self._labels == "shifted" and chosen.labels == "same":
            return CONVENTIONS["shifted"]
        return chosen

    def add(self, piece: Piece) -> Rows:
        """Apply every rule to the rows of ``piece``."""
        convention = self._convention(piece.columns)
        rows, hits = assemble(renamed(piece.columns), convention, first_row=piece.first_row, file=piece.file)
        self.conventions[convention.name] = convention
        self.sources[rows.source] = None
        for hit in hits:
            self.tally.add(hit)
        self.totals.add(rows)
        if rows.num_rows:
            for rule in RULES:
                for hit in rule(rows, self._known):
                    self.tally.add(hit)
            self.endings.add(rows)
            self.samples.add(rows)
        return rows

    def finish(
        self,
        source: str = "",
        extra: Iterable[Hit] = (),
        not_checked: Iterable[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> CheckReport:
        """Return the report over everything that was added, with the ``extra`` hits of the caller."""
        for hit in (*self.totals.hits(), *self.endings.hits(), *extra):
            self.tally.add(hit)
        totals = self.totals
        counts = {
            "rows": totals.rows,
            "segments": totals.segments,
            "tokens": totals.tokens,
            "positions": totals.cells,
            "targets": totals.targets if totals.has_labels else None,
            "max_seqlen": totals.max_seqlen,
            "utilization": totals.tokens / max(1, self._positions()),
            "target_utilization": totals.targets / max(1, self._positions()) if totals.has_labels else None,
        }
        missing = [*not_checked]
        if self._known.capacity is None:
            missing.append("rows against a capacity (pass capacity=)")
        if self._known.vocab_size is None:
            missing.append("ids against a vocabulary (pass tokenizer= or vocab_size=)")
        if not self._known.terminators:
            missing.append("whether the end of a message is trained, beyond a guess (pass tokenizer= or eos_token_id=)")
        if not totals.has_labels:
            missing.append("targets: no column says what is trained")
        if not self.samples.used:
            missing.append("samples twice or missing: there are no sample_ids")
        if "none" in self.sources:
            missing.append("boundaries: nothing records them, each row counts as one sample")
        said = " ".join(convention.says for convention in self.conventions.values())
        return CheckReport(
            tuple(self.tally.findings()), counts, said, ", ".join(self.sources) or "none", tuple(missing), source, facts or {}
        )

    def _positions(self) -> int:
        """Token positions a trainer allocates: rows of the capacity, where one is known, else the cells there are."""
        if self._known.capacity is None:
            return self.totals.cells
        return int(np.maximum(self._known.capacity * self.totals.rows, self.totals.cells))
