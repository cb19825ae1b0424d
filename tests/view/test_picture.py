"""The picture of packed rows is well-formed, whole and in proportion."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from cloison.view.picture import rows_picture

SVG = "{http://www.w3.org/2000/svg}"


def test_every_segment_is_drawn_in_proportion() -> None:
    text = rows_picture([("one <row> & more", [[30, 50, 20]]), ("two", [[60], [10, 20]])], 100)
    root = ET.fromstring(text)
    cells = [float(rect.get("width", 0)) for rect in root.iter(f"{SVG}rect") if (rect.get("fill") or "").startswith("#")][1:]
    assert [round(width / 660 * 100) for width in cells] == [30, 50, 20, 60, 10, 20]
    assert [node.text for node in root.iter(f"{SVG}text")] == ["one <row> & more", "two"]
    assert len(list(root.iter(f"{SVG}line"))) == 6
