"""The page of plans shows the numbers of the plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cloison.view.page import write_page
from cloison.view.plan_page import plan_page
from cloison.view.plan_table import plan_rows
from tests.view.pages import browser, opened, serious


def test_numbers_and_refusals(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 3000)
    rows = plan_rows(lengths, [512, 256], ["look_ahead", "best_fit"], blocks_per_step=16)
    file = write_page(plan_page(lengths, rows, "a <source>"), tmp_path / "plans.html")
    with browser() as chromium, opened(chromium, file) as page:
        text: Any = page.locator("main").inner_text()
        assert f"{rows[0]['num_blocks']:,}" in text
        assert "look_ahead at 256 is refused" in text
        assert page.locator("figure svg").count() == 3
        assert serious(page) == []
