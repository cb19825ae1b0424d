"""Two gloo ranks with different numbers of samples: as many forwards on both, one verdict for both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")


def test_two_ranks_share_one_verdict(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", "--master-port", port]
    command += [str(Path(__file__).parent / "two_ranks.py"), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    status = {kind: {v["experiment"]: v["status"] for v in first[kind]["verdicts"]} for kind in ("llama", "gpt_oss")}
    assert status["llama"]["isolation"] == "exact" and status["llama"]["targets"] == "right"
    assert status["gpt_oss"]["isolation"] == "leak" and status["gpt_oss"]["where"] == "leak"
    assert "leak" in [finding["kind"] for finding in first["gpt_oss"]["findings"]]
    assert "1 of 2 ranks" in next(v["summary"] for v in first["gpt_oss"]["verdicts"] if v["experiment"] == "isolation")
    assert first["guard"] == {"0": "exact", "2": "exact"}
    assert first["dealt"] == []
    assert first["not dealt"] == [["rows_repeated", "error"]]
    assert first["guard_cache"] == {"0": "leak", "2": "leak"}
