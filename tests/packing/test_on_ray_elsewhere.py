"""The same job on Ray, with everything in a store of objects: no disk is shared, nothing is renamed, the bytes are the same."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import cloison
from cloison import PackSpec, pack
from tests.places.server import ObjectStore


def test_workers_that_share_a_store_of_objects_only_write_the_same_bytes(
    corpus: Path, tokenizer: str, tmp_path: Path, loopback: ObjectStore
) -> None:
    ray = pytest.importorskip("ray")
    spec = PackSpec(1 << 22, max_segments=12, carry=("source",))
    here = pack(str(corpus), tmp_path / "here" / "out", spec, tokenizer=tokenizer)
    for path in corpus.iterdir():
        loopback.objects[f"bucket/in/{path.name}"] = path.read_bytes()
    names = ("PYTHONPATH", "FSSPEC_LOOPBACK_ENDPOINT")
    # Another folder for temporary files than that of this process: another machine has none of its copies.
    apart = {"TMPDIR": str(tmp_path / "apart"), "RAY_USAGE_STATS_ENABLED": "0"}
    (tmp_path / "apart").mkdir()
    environment = {"env_vars": {**{name: os.environ[name] for name in names}, **apart}}
    settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "object_store_memory": 80 << 20}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as short:  # it holds sockets
        ray.init(num_cpus=2, runtime_env=environment, _temp_dir=short, **settings)
        try:
            there = pack("loopback://bucket/in", "loopback://bucket/out", spec, tokenizer=tokenizer, engine="ray")
        finally:
            ray.shutdown()
    assert there.manifest == here.manifest
    root = tmp_path / "here"
    files = {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    made = {Path(key).relative_to("bucket"): content for key, content in loopback.objects.items() if "/in/" not in key}
    made.pop(Path("tokens/.hashes.json"))
    assert made == files
    assert [block.sample_ids.tolist() for block in cloison.open("loopback://bucket/out")] == [
        block.sample_ids.tolist() for block in here
    ]
    assert list((tmp_path / "apart").rglob("*.arrow")), "the workers had copies of their own"
