"""Values that show themselves in a notebook: their numbers, a picture, nothing unescaped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cloison
from cloison.findings import Finding
from cloison.proof.report import Verdict, VerifyReport
from cloison.view.notebook import html_of


def test_block_and_plan_show_numbers_and_a_picture() -> None:
    blocks = cloison.pack_samples([[5, 6, 7], [8, 9], [4]], capacity=5, order="input")
    html = blocks[0]._repr_html_()
    assert "<svg" in html and "5 of 5" in html
    plan = cloison.plan(np.array([3, 2, 4, 1]), 5)
    assert f"{plan.num_blocks} of 5 tokens" in plan._repr_html_()


def test_packed_shows_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "ids.jsonl").write_text("\n".join(json.dumps({"input_ids": [n, 5, 6]}) for n in range(10, 30)))
    packed = cloison.pack(str(tmp_path / "ids.jsonl"), str(tmp_path / "a <b> & c"), cloison.PackSpec(capacity=16))
    html = packed._repr_html_()
    assert "20 of 20 kept" in html and "<svg" in html
    assert "a &lt;b&gt; &amp; c" in html


def test_a_report_shows_findings_escaped() -> None:
    influence = np.array([[1.0, 0.5], [0.0, 1.0]])
    found = Finding("leak", "error", "<script>x</script>", "drop the 2-D mask")
    html = VerifyReport((Verdict("isolation", "leak", "1 of 2 cells moved"),), (found,), influence)._repr_html_()
    assert "&lt;script&gt;" in html and "<script>" not in html
    assert "1 of 2 cells moved; the largest by 0.5 sigma" in html
    assert "<strong>Wrong: leak (samples see each other).</strong>" in html


def test_nothing_else_is_drawn() -> None:
    with pytest.raises(TypeError, match="no picture of a int"):
        html_of(3)
