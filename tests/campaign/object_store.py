"""Kill the main job on a store of objects that fails some requests: the bytes of the local disk, nothing done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cloison.places import Remote
from tests.campaign.read_errors import write_kinds
from tests.campaign.runs import ROOT, Job, tree
from tests.places.server import ObjectStore, serving

__all__ = ["campaign", "stored_run"]

WORKERS = (1, 2, 4)
PLUGIN = ROOT / "tests" / "places" / "plugin"


def stored_run(
    store: ObjectStore, expected: dict[str, str], random: np.random.Generator, workers: int, kills: int, share: float
) -> tuple[str, int]:
    """Kill the job on ``bucket/in`` up to ``kills`` times, run it to its end, and return what is wrong, and the kills that hit.

    Args:
        share: of the requests that fail.
    """
    words = Job(Remote("loopback://bucket/in"), Remote("loopback://bucket/run"), workers).words  # type: ignore[arg-type]
    known = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "FSSPEC_LOOPBACK_ENDPOINT": store.endpoint}
    environment["PYTHONPATH"] = str(PLUGIN) + (os.pathsep + known if known else "")
    store.fail(share, int(random.integers(1 << 30)))
    hit = 0
    for _ in range(kills):
        made = _finished(store)
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wanted = len(made) + int(random.integers(1, 8))
        while process.poll() is None and len(_finished(store)) < wanted:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        hit += process.wait(120) == -signal.SIGKILL
        time.sleep(0.4)  # its workers leave
    made = _finished(store)
    store.asked.clear()
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    store.fail(0.0, 0)
    if done.returncode:
        return f"status {done.returncode}: {done.stderr[-800:]}", hit
    if again := sorted(key for method, key in store.asked if method == "PUT" and key in made):
        return f"made again although they were finished: {again}", hit
    found = {path: sha256 for path, sha256 in store.hashes("bucket/run").items() if not path.endswith(".hashes.json")}
    differ = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return (f"not as on the local disk: {differ}" if differ else ""), hit


def campaign(scratch: Path, seed: int, runs: int) -> Iterator[str]:
    """Yield what is wrong in ``runs`` runs over sources in every format, with 1, 2 and 4 workers in turn."""
    random = np.random.default_rng(seed)
    source = write_kinds(scratch / "source", 30)
    done = Job(source, scratch / "undisturbed").run()
    assert done.returncode == 0, done.stderr
    expected = tree(scratch / "undisturbed")
    hits = failures = 0
    for number in range(runs):
        with serving() as store:
            for path in source.iterdir():
                store.objects[f"bucket/in/{path.name}"] = path.read_bytes()
            kills, share = int(random.integers(0, 4)), float(random.choice([0.0, 0.01, 0.05]))
            wrong, hit = stored_run(store, expected, random, WORKERS[number % 3], kills, share)
            hits, failures = hits + hit, failures + store.failures
        if wrong:
            yield f"run {number} ({WORKERS[number % 3]} workers, {kills} kills, {share:.0%} failing): {wrong}"
    print(f"  {hits} kills hit and {failures} requests failed in {runs} runs of {len(expected)} files")


def _finished(store: ObjectStore) -> set[str]:
    """Return the chunks and shards that are recorded as finished."""
    keys = [key for key in list(store.objects) if key.startswith("bucket/run/")]
    chunks = {key.removesuffix(".json") + ".arrow" for key in keys if "/chunk-" in key and key.endswith(".json")}
    return chunks | {key.replace("/.work", "").removesuffix(".json") for key in keys if "/.work/blocks-" in key}
