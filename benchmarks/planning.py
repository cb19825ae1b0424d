"""Planning side by side with other packers, in one run: seconds, blocks, and how many times slower each is.

    python benchmarks/planning.py --samples 1000000 [--axolotl WHEEL] [--skip trl,axolotl]

Peers: `numpy.argsort` (what sorting alone costs), LightBinPack (where it is importable), TRL's `_pack_bfd` (where trl is
installed), axolotl's sampler (its `pack_group` alone, read from its wheel). Ours runs on one thread, from an int64 array to the
arrays of the plan. Peers get what they take, made before the clock starts: LightBinPack a list of integers (it returns lists),
TRL a table. Each figure is the best of several runs, and ours is measured again after each peer, since machines are shared.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import cloison

DISTRIBUTIONS = {"2048": (350, 0.9), "8192": (500, 1.1), "131072": (900, 1.3)}


def lognormal(samples: int, capacity: int) -> np.ndarray:
    median, sigma = DISTRIBUTIONS.get(str(capacity), (0.15 * capacity, 1.0))
    draw = np.random.default_rng(0).lognormal(np.log(median), sigma, samples)
    return draw.astype(np.int64).clip(1, capacity)


def best_of(runs: int, work: Callable[[], object]) -> tuple[float, object]:
    times, result = [], None
    for _ in range(runs):
        began = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - began)
    return min(times), result


def lightbinpack(lengths: np.ndarray, capacity: int) -> Callable[[], int] | None:
    try:
        packer = importlib.import_module("lightbinpack")
    except ImportError:
        return None
    listed = lengths.tolist()
    return lambda: len(packer.obfd(listed, batch_max_length=capacity))


def trl(lengths: np.ndarray, capacity: int) -> Callable[[], int] | None:
    try:
        pa = importlib.import_module("pyarrow")
        pack = importlib.import_module("trl.data_utils")._pack_bfd
    except (ImportError, AttributeError):
        return None
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] >= 2**31:
        return None
    table = pa.table(
        {"input_ids": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.nulls(int(offsets[-1]), pa.int8()))}
    )
    return lambda: pack(table, capacity).num_rows


def axolotl(lengths: np.ndarray, capacity: int, wheel: Path | None) -> Callable[[], int] | None:
    if wheel is None:
        return None
    source = zipfile.ZipFile(wheel).read("axolotl/utils/samplers/multipack.py").decode()
    for name, attribute in (("axolotl.utils.distributed", "reduce_and_broadcast"), ("axolotl.utils.logging", "get_logger")):
        stub = types.ModuleType(name)
        setattr(stub, attribute, lambda *_: types.SimpleNamespace(debug=print, warning=print, info=print))
        for parent in ("axolotl", "axolotl.utils", name):
            sys.modules.setdefault(parent, stub)
    sampler = types.ModuleType("axolotl_multipack")
    exec(compile(source, "multipack.py", "exec"), sampler.__dict__)
    sampler.LOG.debug = lambda *_: None
    groups = range(0, lengths.size, 100_000)
    sampler.pack_group(lengths[:100], 0, capacity, 100, 10_000, True)  # compiled before it is timed
    return lambda: sum(len(sampler.pack_group(lengths[g : g + 100_000], g, capacity, 100_000, 10_000, True)) for g in groups)


def fresh_process(samples: int) -> float:
    """Seconds of a new process that plans ``samples`` lengths, imports included, compiled code cached."""
    script = (
        f"import numpy as np, cloison\nprint(len(cloison.plan(np.random.default_rng(0).integers(1, 2000, {samples}), 2048)))"
    )
    run = lambda: subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)  # noqa: E731
    run()
    return best_of(3, run)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--capacities", default="2048,8192")
    parser.add_argument("--axolotl", type=Path, default=None, metavar="WHEEL")
    parser.add_argument("--skip", default="")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    skip = args.skip.split(",")
    print(f"fresh process, 10,000 lengths, imports included: {fresh_process(10_000):.2f} s")
    for capacity in map(int, args.capacities.split(",")):
        lengths = lognormal(args.samples, capacity)
        print(f"{args.samples:,} lengths, capacity {capacity:,}")
        for policy in ("best_fit", "look_ahead"):
            cloison.plan(lengths[:1000], capacity, policy=policy)
        best_fit = lambda c=capacity, x=lengths: cloison.plan(x, c, policy="best_fit", threads=1)  # noqa: E731
        ours, plan = best_of(4 * args.runs, best_fit)
        print(f"  {'cloison best_fit, 1 thread':34} {ours:9.4f} s  {len(plan):9,} blocks")
        ahead, plan = best_of(args.runs, lambda c=capacity, x=lengths: cloison.plan(x, c, threads=1))
        print(f"  {'cloison look_ahead, 1 thread':34} {ahead:9.4f} s  {len(plan):9,} blocks  x{ahead / ours:.1f}")
        sort, _ = best_of(args.runs, lambda x=lengths: np.argsort(x, kind="stable"))
        print(f"  {'numpy.argsort(kind=stable)':34} {sort:9.4f} s  best_fit takes {ours / sort:.2f} of it")
        peers = {
            "lightbinpack": ("LightBinPack obfd", lambda c=capacity, x=lengths: lightbinpack(x, c), args.runs),
            "trl": ("TRL _pack_bfd", lambda c=capacity, x=lengths: trl(x, c), 1),
            "axolotl": ("axolotl pack_group, 100 k groups", lambda c=capacity, x=lengths: axolotl(x, c, args.axolotl), 1),
        }
        for name, (title, make, runs) in peers.items():
            if name in skip:
                continue
            run = make()
            if run is None:
                print(f"  {title:34} not here")
                continue
            took, blocks = best_of(runs, run)
            ours = min(ours, best_of(args.runs, best_fit)[0])
            print(f"  {title:34} {took:9.4f} s  {blocks:9,} blocks  x{took / ours:.0f} of best_fit", flush=True)


if __name__ == "__main__":
    main()
