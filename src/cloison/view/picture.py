"""A picture of packed rows as one SVG file that carries its own colours: for a README, a talk, a paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cloison.view.charts import strips

__all__ = ["rows_picture"]

_ENAMEL = ("#1f5f99", "#c7872b", "#2b8a6b", "#a84a7f", "#6a55a8", "#8f8a2a", "#b5562a", "#64707d")
_GOLD, _PAPER, _INK = "#d8a93a", "#fbfaf6", "#4d5866"


def rows_picture(groups: Sequence[tuple[str, Sequence[Sequence[int]]]], capacity: int) -> str:
    """Return an SVG document that draws rows of segments, a caption above each group of rows.

    Args:
        groups: (caption, rows), a row the lengths of its segments in order; what is left of ``capacity`` is padding.
        capacity: tokens of a row.
    """
    parts: list[str] = []
    top, width, left = 8, 720, 12
    for caption, rows in groups:
        chart = strips([("", row) for row in rows], capacity, "")
        shift = left - 50  # strips leave room for names
        parts.append(f'<text x="{left}" y="{top + 12}">{escape(caption)}</text>')
        top += 20
        for row in chart["rows"]:
            y = top + row["y"]
            for cell in row["cells"]:
                place = f'x="{cell["x"] + shift:.2f}" y="{y}" width="{cell["width"]}" height="10"'
                parts.append(f'<rect {place} fill="{_ENAMEL[cell["colour"]]}"/>')
            for wall in row["walls"]:
                x = f"{wall + shift:.2f}"
                parts.append(f'<line x1="{x}" x2="{x}" y1="{y}" y2="{y + 10}" stroke="{_GOLD}" stroke-width="1.6"/>')
            frame = f'x="{left}" y="{y}" width="{chart["inner"]}" height="10"'
            parts.append(f'<rect {frame} fill="none" stroke="{_INK}" stroke-width=".5"/>')
        top += chart["height"] + 10
    said = "; ".join(escape(caption, quote=True) for caption, _ in groups)
    size = f'viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    style = f"text{{font:13px system-ui,sans-serif;fill:{_INK}}}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{said}">',
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{top}" fill="{_PAPER}"/>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])
