"""The JAX recipe runs in an interpreter of its own: jax starts threads, and other tests fork."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[1] / "docs" / "recipes" / "jax.md"


def test_the_jax_recipe_runs(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", "import jax"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("jax is not installed")
    blocks = re.findall(r"```python\n(.*?)```", RECIPE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "recipe.py").write_text("\n".join(blocks), encoding="utf-8")
    ran = subprocess.run([sys.executable, "recipe.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
