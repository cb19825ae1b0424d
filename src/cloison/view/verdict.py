"""The verdict section of a page: influence as a heat map, contamination by place, where a leak enters, what is to be typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.proof.report import Verdict, VerifyReport
from cloison.view.comparisons import COMPARED, comparisons
from cloison.view.conclusion import LEGEND, conclusion
from cloison.view.page import render_page
from cloison.view.tables import table

__all__ = ["heat_map", "verdict_page", "verdict_section"]

_GOOD, _OFF = {"exact", "right"}, {"coupled", "not tested"}
_FLOOR = 1e-7


def verdict_section(report: VerifyReport, place_of: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the section of ``report``.

    Args:
        place_of: [segments], the place in its block of each segment of the influence matrix; None: one block, in order.
    """
    influence = report.influence
    return {
        "id": "verdict",
        "title": "Verdict",
        "template": "verdict.html.j2",
        "ok": report.ok,
        "said": conclusion(report),
        "verdicts": [_line(verdict) for verdict in report.verdicts],
        "measured_on": report.measured_on,
        "legend": LEGEND,
        "compared": _compared(report.verdicts),
        "findings": [finding.to_dict() for finding in report.findings],
        "heat": None if influence is None or not influence.size else heat_map(influence),
        "places": None if influence is None or not influence.size else _by_place(influence, place_of),
        "path": _path(report.verdicts),
        "certificate": table("certificate", ("of", "what"), [(str(k), _short(v)) for k, v in report.certificate.items()]),
    }


def verdict_page(report: VerifyReport, title: str) -> str:
    """Return the HTML page of ``report``; ``title`` says of what."""
    return render_page("Verdict", title, [verdict_section(report)])


def heat_map(influence: npt.NDArray[np.float64], size: int = 360) -> dict[str, Any]:
    """Return squares for an influence matrix [segments, segments]: row = the segment that changed, column = the one that moved.

    The colour goes with the logarithm, from 1e-7 to 1 standard deviation of the outputs; an exact zero is an empty square.
    """
    count = influence.shape[0]
    step = size / max(count, 1)
    cells = []
    for (row, column), value in np.ndenumerate(influence):
        own = row == column
        level = (
            0.0
            if not np.isfinite(value) or value <= 0
            else (np.log10(max(value, _FLOOR)) - np.log10(_FLOOR)) / -np.log10(_FLOOR)
        )
        what = "itself" if own else ("not measured" if np.isnan(value) else "exactly 0" if value == 0 else f"{value:.2g} sigma")
        cells.append(
            {
                "x": round(30 + column * step, 2),
                "y": round(20 + row * step, 2),
                "size": round(step - 1, 2),
                "kind": "own" if own else "none" if np.isnan(value) else "zero" if value == 0 else "moved",
                "opacity": round(0.15 + 0.85 * min(float(level), 1.0), 2),
                "said": f"segment {row} changed, segment {column}: {what}",
            }
        )
    others = influence[~np.eye(count, dtype=bool)]
    measured = others[~np.isnan(others)]
    moved = int((measured > 0).sum())
    return {
        "size": size + 40,
        "cells": cells,
        "labels": [{"at": round(30 + (i + 0.5) * step, 1), "text": str(i)} for i in range(count)] if count <= 24 else [],
        "said": f"{moved} of {measured.size} cells moved"
        + (f"; the largest by {measured.max():.2g} sigma." if moved else ": every other segment's output is bit-equal."),
    }


def _by_place(influence: npt.NDArray[np.float64], place_of: Sequence[int] | None) -> dict[str, Any]:
    count = influence.shape[0]
    places = np.arange(count) if place_of is None else np.asarray(place_of)
    off = np.where(np.eye(count, dtype=bool), np.nan, influence)
    worst = np.nanmax(np.where(np.isnan(off), 0.0, off), axis=0) if count else np.zeros(0)
    senders = np.nansum(off > 0, axis=0)
    rows = []
    for place in sorted(set(places.tolist())):
        here = places == place
        rows.append((str(place), f"{senders[here].mean():.3g}", f"{worst[here].max():.2g}"))
    return table(
        "contamination by place in the block",
        ("place in the block", "segments that reach it", "largest move (sigma)"),
        rows,
        numbers=(0, 1, 2),
    )


def _compared(verdicts: Sequence[Verdict]) -> dict[str, Any] | None:
    rows = [row for verdict in verdicts if verdict.experiment == "equality" for row in comparisons(verdict)]
    return table("packed against alone", COMPARED, rows, numbers=(1, 2)) if rows else None


def _line(verdict: Verdict) -> dict[str, str]:
    kind = "good" if verdict.status in _GOOD else "off" if verdict.status in _OFF else "bad"
    return {"experiment": verdict.experiment, "status": verdict.status, "kind": kind, "summary": verdict.summary}


def _path(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    for verdict in verdicts:
        place = verdict.evidence.get("place") or verdict.evidence.get("module")
        if verdict.experiment == "where" and place:
            parts = str(place).split(".")
            return [{"name": part, "here": index == len(parts) - 1} for index, part in enumerate(parts)]
    return []


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(entry)}" for key, entry in list(value.items())[:24])
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_short, value)) or "none"
    return str(value)
