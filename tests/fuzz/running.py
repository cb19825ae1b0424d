"""Start one subject's child, see how it ends, and keep the files that brought it down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["fuzz"]

ROOT = Path(__file__).resolve().parents[2]


def fuzz(name: str, scratch: Path, examples: int, seed: int, keep: Path | None = None) -> str:
    """Return what is wrong with the subject ``name``, "" for nothing: what its child says, or how that ended."""
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.child", name, str(scratch / "fuzz")]
    words += ["--examples", str(examples), "--seed", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    limit = 60 + 12 * examples  # the child ends itself where one file takes too long
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", cwd=ROOT, env=environment, timeout=limit)
        wrong = "" if done.returncode == 0 else done.stdout[-3000:] or f"status {done.returncode}: {done.stderr[-3000:]}"
    except subprocess.TimeoutExpired:
        wrong = "the child did not end"
    if wrong and keep is not None and (scratch / "fuzz" / "case").is_dir():
        shutil.copytree(scratch / "fuzz" / "case", keep / name.replace(" ", "-"), dirs_exist_ok=True)
    return wrong
