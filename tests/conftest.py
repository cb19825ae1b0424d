"""Fixtures that every test may use."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


def _shared() -> Path | None:
    named = os.environ.get("CLOISON_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that need it skip where it is absent."""
    folder = _shared()
    if folder is None:
        pytest.skip("the folder of shared data is not beside this checkout (set CLOISON_SHARED)")
    return folder


@pytest.fixture(scope="session")
def cases(shared: Path) -> dict[str, dict[str, Any]]:
    """The reported faults by id."""
    lines = (shared / "cases" / "reported_faults.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@pytest.fixture(scope="session")
def qwen3(shared: Path) -> Path:
    """The folder of a real tokenizer with its chat template."""
    return shared / "tokenizers" / "qwen3"
