"""The geometry of small charts, as plain data that the page's templates draw in SVG: bars, strips of blocks, a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["bars", "lines", "strips", "trace"]

COLOURS = 8
"""Segments take these many colours in turn (style.css: c0..c7)."""

_WIDTH = 720
_MARGIN = 50


def bars(values: npt.ArrayLike, unit: str, said: str, count: int = 48, height: int = 120) -> dict[str, Any]:
    """Return a histogram of integer ``values`` [n]: bars of equal width, log-spaced where the values span much.

    Cost: O(n) time.
    """
    array = np.asarray(values, np.int64)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 1)
    wide = high > 64 * max(low, 1)
    edges = (
        np.geomspace(max(low, 1), high + 1, count + 1) if wide else np.linspace(low, high + 1, min(count, high - low + 1) + 1)
    )
    edges = np.unique(np.ceil(edges).astype(np.int64))
    counts = np.histogram(array, edges)[0] if edges.size > 1 else np.array([array.size])
    top, step = max(int(counts.max(initial=0)), 1), _WIDTH / max(len(counts), 1)
    drawn = []
    for index, number in enumerate(counts.tolist()):
        tall = round(height * number / top, 1)
        last = int(edges[index + 1]) - 1 if index + 1 < edges.size else high
        span = f"{int(edges[index]):,}" if last <= edges[index] else f"{int(edges[index]):,} to {last:,}"
        drawn.append(
            {
                "x": round(index * step + 0.5, 1),
                "y": round(height - tall, 1),
                "width": round(max(step - 1, 0.5), 1),
                "height": tall,
                "said": f"{span} {unit}: {number:,}",
            }
        )
    return {
        "width": _WIDTH,
        "height": height,
        "bars": drawn,
        "ticks": _ticks(f"{low:,}", f"{high:,}"),
        "unit": unit,
        "said": said,
    }


def strips(rows: Sequence[tuple[str, Sequence[int]]], capacity: int, said: str) -> dict[str, Any]:
    """Return strips, a row each: ``rows`` are (name, lengths of the segments in order); the rest of ``capacity`` is padding."""
    inner = _WIDTH - 60
    drawn = []
    for index, (name, lengths) in enumerate(rows):
        ends = np.cumsum(np.asarray(lengths, np.int64)) * inner / capacity
        starts = ends - np.asarray(lengths) * inner / capacity
        drawn.append(
            {
                "name": name,
                "y": index * 14 + 2,
                "cells": [
                    {"x": round(50 + a, 2), "width": round(b - a, 2), "colour": place % COLOURS}
                    for place, (a, b) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
                ],
                "walls": [round(50 + end, 2) for end in ends.tolist()],
                "said": f"block {name}: {len(lengths)} segments, {sum(lengths):,} of {capacity:,} tokens",
            }
        )
    return {"width": _WIDTH, "height": len(rows) * 14 + 4, "inner": inner, "rows": drawn, "said": said}


def trace(values: npt.ArrayLike, unit: str, said: str, reference: float | None = None, height: int = 90) -> dict[str, Any]:
    """Return a line through ``values`` [n], from 0 to a little above the largest, with a dashed line at ``reference``."""
    array = np.asarray(values, np.float64)
    top = max(float(array.max(initial=0)), reference or 0, 1e-12) * 1.08
    xs = np.linspace(0, _WIDTH, max(array.size, 2))[: array.size]
    points = " ".join(f"{x:.1f},{height - height * y / top:.1f}" for x, y in zip(xs, array, strict=True))
    return {
        "width": _WIDTH,
        "height": height,
        "points": points,
        "reference": None if reference is None else round(height - height * reference / top, 1),
        "ticks": _ticks("0", f"{max(array.size - 1, 0):,}"),
        "unit": unit,
        "said": said,
    }


def lines(series: Mapping[str, npt.ArrayLike], unit: str, said: str, height: int = 220) -> dict[str, Any]:
    """Return lines over one another on a logarithmic scale: ``series`` are name and positive values [n] each, [n] alike."""
    logs = {name: np.log10(np.maximum(np.asarray(values, np.float64), 1e-6)) for name, values in series.items()}
    low = np.floor(min((float(v.min()) for v in logs.values() if v.size), default=0))
    high = np.ceil(max((float(v.max()) for v in logs.values() if v.size), default=1))
    span, inner = max(high - low, 1), _WIDTH - _MARGIN
    drawn = []
    for index, (name, values) in enumerate(logs.items()):
        xs = _MARGIN + np.linspace(0, inner, max(values.size, 2))[: values.size]
        ys = height * (high - values) / span
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        drawn.append({"name": name, "colour": index % COLOURS, "points": points})
    count = max((v.size for v in logs.values()), default=0)
    ticks = [{"x": _MARGIN, "anchor": "start", "text": "0"}, {"x": _WIDTH, "anchor": "end", "text": f"{max(count - 1, 0):,}"}]
    levels = [{"y": round(height * (high - k) / span, 1), "text": f"{10.0**k:g}"} for k in np.arange(low, high + 1)]
    sizes = {"width": _WIDTH, "height": height, "margin": _MARGIN}
    return sizes | {"lines": drawn, "levels": levels, "ticks": ticks, "unit": unit, "said": said}


def _ticks(first: str, last: str) -> list[dict[str, Any]]:
    return [{"x": 0, "anchor": "start", "text": first}, {"x": _WIDTH, "anchor": "end", "text": last}]
