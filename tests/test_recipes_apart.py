"""Recipes that run in interpreters of their own: jax and grain start threads while other tests fork, and what MosaicML's
library needs does not go with what the project has (an environment of its own, which ``make foreign`` makes)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign_foreign import HOME, WITHOUT_PICTURES, run_recipe


@pytest.mark.parametrize("name", ["jax", "grain"])
def test_the_recipe_runs(name: str, tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{name} is not installed")
    assert run_recipe(name, sys.executable, tmp_path) == ""


def test_the_recipe_of_loaders_runs_as_far_as_there_are_libraries(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    assert run_recipe("loaders", sys.executable, tmp_path, until="## MosaicML Streaming") == ""


@pytest.mark.parametrize("name", ["mosaicml", "loaders"])
def test_the_recipe_of_mosaicml_runs(name: str, tmp_path: Path) -> None:
    python = HOME / ".foreign" / "mds" / "bin" / "python"  # as make foreign makes it
    if not (HOME / ".foreign" / "mds" / ".ready").is_file():
        pytest.skip("mosaicml-streaming needs older packages than the project has: make foreign ONLY=mds")
    assert run_recipe(name, python, tmp_path, WITHOUT_PICTURES) == ""
