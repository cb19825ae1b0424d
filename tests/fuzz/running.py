"""Start a child on some subjects, see how it ends, and keep the files that brought it down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["fuzz"]

ROOT = Path(__file__).resolve().parents[2]


def fuzz(names: Sequence[str], scratch: Path, examples: int, seed: int, keep: Path | None = None) -> str:
    """Return what is wrong with one of the subjects ``names``, "" for nothing: what the child says, or how that ended."""
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.child", str(scratch), *names]
    words += ["--examples", str(examples), "--seed", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    limit = 60 + 12 * examples * len(names)  # the child ends itself where one file takes too long
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", cwd=ROOT, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return "the child did not end"
    if done.returncode == 0:
        return ""
    last = scratch / str(max(0, len(done.stdout.split(": right")) - 1)) / "case"
    if keep is not None and last.is_dir():
        shutil.copytree(last, keep, dirs_exist_ok=True)
    return f"{done.stdout[-3000:]}\nstatus {done.returncode}: {done.stderr[-3000:]}"
