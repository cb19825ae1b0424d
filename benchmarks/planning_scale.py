"""A plan of very many lengths, end to end: seconds, memory beside the mapped input, and random access to a block of an epoch.

    python benchmarks/planning_scale.py --samples 1000000000 --folder /tmp

Lengths are lognormal (500, 1.1), clipped to 8,192, as uint16 in a mapped file that is made first (and removed).
"""

from __future__ import annotations

import argparse
import os
import resource
import threading
import time
from pathlib import Path

import numpy as np

import cloison


def write_lengths(path: Path, samples: int) -> None:
    rng = np.random.default_rng(0)
    base = rng.lognormal(np.log(500), 1.1, min(samples, 1 << 24)).astype(np.int64).clip(1, 8192).astype(np.uint16)
    out = np.lib.format.open_memmap(path, "w+", np.uint16, (samples,))
    for at in range(0, samples, base.size):
        part = base[: samples - at]
        rng.shuffle(part)
        out[at : at + part.size] = part
    out.flush()


class Watch:
    """The largest anonymous memory of this process while it ran (mapped file pages aside)."""

    def __enter__(self) -> Watch:
        self.most, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            status = Path("/proc/self/status").read_text()
            self.most = max(self.most, int(status.split("RssAnon:")[1].split()[0]) * 1024)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--policies", default="best_fit,look_ahead")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    path = args.folder / f"lengths-{os.getpid()}.npy"
    write_lengths(path, args.samples)
    try:
        lengths = np.load(path, mmap_mode="r")
        for policy in args.policies.split(","):
            cloison.plan(np.asarray(lengths[:1000]), 8192, policy=policy).epoch(1, pairing="dealt")[
                0
            ]  # compiled code is loaded
            with Watch() as watch:
                began = time.perf_counter()
                plan = cloison.plan(lengths, 8192, policy=policy, threads=args.threads)
                took = time.perf_counter() - began
                print(f"{policy}: {args.samples:,} lengths in {took:.1f} s, {plan!r}", flush=True)
                began = time.perf_counter()
                epoch = plan.epoch(3, pairing="dealt")
                epoch[0]
                first = time.perf_counter() - began
            blocks = np.random.default_rng(1).integers(0, len(plan), 2000)
            began = time.perf_counter()
            for block in blocks.tolist():
                epoch[block]
            each = (time.perf_counter() - began) / blocks.size
            print(
                f"  memory beside the mapped input {watch.most / 2**30:.2f} GiB; epoch ready in {first:.1f} s, "
                f"then {1e6 * each:.0f} us a block at random",
                flush=True,
            )
            del plan, epoch
        print(f"most resident, mapped pages included: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    finally:
        path.unlink()


if __name__ == "__main__":
    main()
