"""A VerifyReport in the terminal: a verdict a line, who reaches whom, what to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cloison.findings import Finding
from cloison.proof.report import VerifyReport
from cloison.view.comparisons import COMPARED, comparisons
from cloison.view.conclusion import LEGEND, conclusion
from cloison.view.pieces import visible

__all__ = ["findings_view", "report_view"]

_COLOURS = {"exact": "green", "right": "green", "coupled": "yellow", "not tested": "dim"}
_LARGEST_MATRIX = 24


def report_view(report: VerifyReport, title: str) -> Group:
    """Return what a person reads of ``report``."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for verdict in report.verdicts:
        colour = _COLOURS.get(verdict.status, "bold red")
        table.add_row(verdict.experiment, Text(verdict.status, style=colour), Text(visible(verdict.summary)))
    parts: list[Any] = [Text(visible(title), style="bold"), table]
    if any(finding.kind in ("mismatch", "gradient_mismatch") for finding in report.findings):
        said = "packed against alone (sigma; gradients: of their largest entry)"
        parts += [Text(), Text(said), _compared(comparisons(report["equality"]))]
    influence = report.influence
    if influence is not None and len(influence) <= _LARGEST_MATRIX and _moved(influence).any():
        said = "who reaches whom: row = the segment that changed, column = how far another moved (sigma)"
        parts += [Text(), Text(said), _matrix(influence)]
    if report.findings:
        parts += [Text(), findings_view(report.findings)]
    parts.append(Text(conclusion(report), style="bold green" if report.ok else "bold red"))
    if report.measured_on:
        parts += [Text(f"Measured on {report.measured_on}.", style="dim"), Text(LEGEND, style="dim")]
    return Group(*parts)


def _compared(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in COMPARED:
        table.add_column(head, justify="right" if head in COMPARED[1:3] else "left")
    for row in rows:
        table.add_row(*map(visible, row))
    return table


def findings_view(findings: tuple[Finding, ...]) -> Group:
    """Return findings, each with its fix below it, set in."""
    parts: list[Any] = []
    for finding in findings:
        colour = {"error": "bold red", "warning": "yellow"}.get(finding.severity, "dim")
        parts.append(Text.assemble((finding.severity, colour), f" [{finding.kind}] {visible(finding.message)}"))
        if finding.fix:
            parts.append(Padding(Text.assemble(("fix: ", "bold"), visible(finding.fix)), (0, 0, 0, 2)))
    return Group(*parts)


def _moved(influence: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    out: npt.NDArray[np.bool_] = np.nan_to_num(influence, nan=0.0) > 0
    np.fill_diagonal(out, False)
    return out


def _matrix(influence: npt.NDArray[np.float64]) -> Table:
    count = len(influence)
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    for column in range(count):
        table.add_column(str(column), justify="right", header_style="dim")
    for row in range(count):
        cells = []
        for column in range(count):
            value = influence[row, column]
            if row == column:
                cells.append(Text("·", style="dim"))
            elif np.isnan(value):
                cells.append(Text("?", style="dim"))
            else:
                cells.append(Text("0" if value == 0 else f"{value:.2g}", style="dim" if value == 0 else "red"))
        table.add_row(str(row), *cells)
    return table
