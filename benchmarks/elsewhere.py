"""Packing into, and loading from, a store of objects that answers after 20 ms, beside the same on the local disk.

    python benchmarks/elsewhere.py [--samples 100000] [--wait-ms 20]

The store is a server on loopback in this process, reached through fsspec: what is measured is how much waiting there is, not
what a network carries. Prints times as multiples of those on the local disk, and of a loader that asks for one row group at a
time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "places" / "plugin")]
import cloison  # noqa: E402
from tests.places.server import serving  # noqa: E402


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long ``work`` took, and what it gave."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def samples(folder: Path, count: int) -> int:
    """Write ``count`` samples of token ids as four Parquet files, and return their tokens."""
    random = np.random.default_rng(0)
    total = 0
    for number in range(4):
        lengths = np.clip(random.lognormal(5.5, 0.9, count // 4).astype(np.int64), 2, 4096)
        ids = pa.array(random.integers(5, 150_000, int(lengths.sum())), pa.int32())
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)}), folder / f"{number}.parquet")
        total += int(lengths.sum())
    return total


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--wait-ms", type=float, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, serving() as store:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        fsspec.config.conf["loopback"] = {"endpoint": store.endpoint}
        fsspec.register_implementation("loopback", "loopback_store.LoopbackFileSystem", clobber=True)
        root = Path(scratch)
        (root / "in").mkdir()
        tokens = samples(root / "in", args.samples)
        spec = cloison.PackSpec(4096)
        cloison.pack(root / "in" / "0.parquet", root / "warm" / "out", spec)  # compiles what planning needs
        for file in (root / "in").iterdir():
            store.objects[f"bucket/in/{file.name}"] = file.read_bytes()

        def packing(source: str, out: str) -> Any:
            return cloison.pack(source, out, spec)

        near_s, near = timed(lambda: packing(str(root / "in"), str(root / "out")))
        store.wait_s = args.wait_ms / 1000
        store.asked.clear()
        far_s, far = timed(lambda: packing("loopback://bucket/in", "loopback://bucket/out"))
        assert near.manifest == far.manifest
        requests = sum(store.asked.values())
        print(f"{tokens / 1e6:.0f} M tokens, {len(near):,} blocks; {args.wait_ms:g} ms a request")
        print(f"pack   local {near_s:6.2f} s, there {far_s:6.2f} s: {far_s / near_s:.2f} times, {requests:,} requests")

        def loading(packed: Any, fetch: bool = True) -> int:
            loader = cloison.loader(packed, lambda blocks: sum(len(block.input_ids) for block in blocks), blocks_per_step=16)
            if not fetch:
                loader._source.fetch = lambda indices: None  # type: ignore[attr-defined]
            return sum(loader)

        near_s, _ = timed(lambda: loading(near))
        store.asked.clear()
        far_s, _ = timed(lambda: loading(far))
        requests = sum(store.asked.values())
        alone_s, _ = timed(lambda: loading(far, fetch=False))
        print(
            f"load   local {near_s:.2f} s, there {far_s:.2f} s ({tokens / far_s / 1e6:.1f} M tokens/s, {requests:,} requests); "
            f"one group at a time {alone_s:6.2f} s: {alone_s / far_s:.1f} times as long"
        )
        opening_s, _ = timed(lambda: cloison.open("loopback://bucket/out")[0])
        bounds_s, _ = timed(far.segments)
        print(f"open and one block {opening_s * 1000:.0f} ms; all boundaries {bounds_s:.2f} s")


if __name__ == "__main__":
    main()
