"""Two gloo ranks with samples of their own: sharded by FSDP2 or replicated by DDP, gradients are those of all alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")


def test_sharded_and_replicated_models_train_as_all_samples_alone(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", "--master-port", port]
    command += [str(Path(__file__).parent / "two_ranks.py"), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    for kind, rung in {"before": "d", "after": "e", "no logits": "d", "checkpointing": "d", "within": "d", "ddp": "d"}.items():
        error, way = first[kind]
        assert (way, error < 2e-5) == (rung, True), (kind, error, way)
    assert first["passed by"], "what is called past DDP meets no other rank: the yardstick sees it"
    for kind in ("watched", "watched within"):
        assert first[kind]["isolation"] == "exact" and first[kind]["targets"] == "right", first[kind]
    assert "its dtype went from float32 to bfloat16" in first["precision"]
    assert "before fully_shard" in first["blocks"] or "Leave blocks out" in first["blocks"]
