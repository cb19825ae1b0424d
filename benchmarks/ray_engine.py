"""The Ray engine beside the local one, on this machine: the same samples, as many workers; and how the driver's memory grows.

    python benchmarks/ray_engine.py [--samples 1000000] [--workers 2] [--runs 3]
    python benchmarks/ray_engine.py --samples 10000000 --runs 1 --only ray

Samples are token ids, drawn at random, of 2 to 400 tokens (64 on average), in Parquet. Each engine has a driver process of its
own, which packs a few samples first: Ray's workers are then there, as on a cluster that is at work. The local engine starts its
workers anew in each run, since that is what it does. The runs of the two alternate; the least time of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROW_GROUP = 50_000


def make(path: Path, samples: int, seed: int = 0) -> Path:
    """Write samples to a Parquet file, a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(seed)
    layout = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, layout, compression="zstd", use_dictionary=False) as writer:
        for first in range(0, samples, ROW_GROUP):
            lengths = np.clip(random.lognormal(3.8, 0.8, min(ROW_GROUP, samples - first)), 2, 400).astype(np.int64)
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            ids = pa.array(random.integers(0, 50_000, lengths.sum(), dtype=np.int32))
            writer.write_table(pa.table([pa.ListArray.from_arrays(offsets, ids)], schema=layout))
    return path


def drive(engine: str, workers: int) -> None:
    """Pack what standard input names, a JSON line each, and answer with what it took."""
    import cloison

    if engine == "ray":
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=80 << 20,
            logging_level="ERROR",
            log_to_driver=False,
        )
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        packed = cloison.pack(job["source"], job["out"], cloison.PackSpec(4096), engine=engine, workers=workers)  # type: ignore[arg-type]
        spent = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        manifest = packed.manifest
        found = {"seconds": spent, "peak_mb": peak, "tokens": manifest.num_tokens, "blocks": manifest.num_blocks}
        print(json.dumps({**found, "shards": len(manifest.shards), "hash": manifest.logical_hash}), flush=True)


class Driver:
    """A driver process of one engine."""

    def __init__(self, engine: str, workers: int) -> None:
        words = [sys.executable, __file__, "--drive", engine, "--workers", str(workers)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.worker_mb = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Note the most memory that any worker has, twice a second."""
        import psutil

        while self.process.poll() is None:
            with suppress(psutil.Error):
                for process in psutil.Process(self.process.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        if "cloison.packing.worker" in (words := process.cmdline()) or (
                            words and words[0].startswith("ray::cloison")
                        ):
                            self.worker_mb = max(self.worker_mb, process.memory_info().rss / 2**20)
            time.sleep(0.5)

    def pack(self, source: Path, folder: Path) -> dict[str, Any]:
        """Pack into a new folder, and return what it took, and the bytes on disk."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"source": str(source), "out": str(folder / "out")}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline()) | {"worker_mb": self.worker_mb}
        for name in ("out", "tokens"):
            found[f"{name}_mb"] = sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file()) / 1e6
        shutil.rmtree(folder)
        return found

    def close(self) -> None:
        """End the process, and with it what it started."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _bytes_a_sample(peaks: dict[str, float], samples: int) -> float:
    """Return by how much the driver's peak grew from a tenth of the samples to all, for each that came on top."""
    return (peaks["all"] - peaks["tenth"]) * 2**20 / (samples - samples // 10)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("ray", "local"))
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        drive(args.drive, args.workers)
        return
    engines = [args.only] if args.only else ["local", "ray"]
    with tempfile.TemporaryDirectory(prefix="ray-bench-") as scratch:
        root = Path(scratch)
        few, tenth = make(root / "few.parquet", 4 * ROW_GROUP // 50), make(root / "tenth.parquet", args.samples // 10)
        source = make(root / "all.parquet", args.samples)
        print(f"{args.samples:,} samples, {source.stat().st_size / 1e6:,.0f} MB of Parquet, {args.workers} workers")
        drivers = {engine: Driver(engine, args.workers) for engine in engines}
        peaks: dict[str, dict[str, float]] = {engine: {} for engine in engines}
        runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        for engine, driver in drivers.items():
            driver.pack(few, root / "run")
            for _ in range(3):  # allocators keep some MB of each of the first runs, of however many samples
                peaks[engine]["tenth"] = driver.pack(tenth, root / "run")["peak_mb"]
        for _ in range(args.runs):
            for engine, driver in drivers.items():
                runs[engine].append(driver.pack(source, root / "run"))
                peaks[engine].setdefault("all", runs[engine][-1]["peak_mb"])
        for driver in drivers.values():
            driver.close()
    assert len({run["hash"] for several in runs.values() for run in several}) == 1, "the same bytes from both"
    for engine, several in runs.items():
        best = min(several, key=lambda run: run["seconds"])
        each = ", ".join(f"{run['seconds']:.1f}" for run in several)
        print(
            f"{engine:6} {best['seconds']:7.1f} s ({each}), "
            f"{best['tokens'] / best['seconds'] / 1e6:.2f} M tokens/s; {best['tokens']:,} tokens, {best['blocks']:,} blocks, "
            f"{best['shards']} shards; tokens {best['tokens_mb']:,.0f} MB, blocks {best['out_mb']:,.0f} MB"
        )
        print(
            f"{'':6} driver's peak memory: {peaks[engine]['tenth']:.0f} MB at {args.samples // 10:,} samples, "
            f"{peaks[engine]['all']:.0f} MB at {args.samples:,}, {_bytes_a_sample(peaks[engine], args.samples):.1f} bytes for "
            f"each sample more; a worker's: {best['worker_mb']:.0f} MB"
        )
    if len(engines) == 2:
        ratio = min(r["seconds"] for r in runs["ray"]) / min(r["seconds"] for r in runs["local"])
        print(f"ray / local: {ratio:.2f} of the time (at most 1.3)")


if __name__ == "__main__":
    main()
