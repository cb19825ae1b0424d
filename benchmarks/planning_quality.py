"""What each policy reaches on each distribution: blocks above the proven bound, and how alike the samples of a block are.

    python benchmarks/planning_quality.py [--samples 1000000] [--histograms FOLDER] [--policies optimal,mixed]
                                          [--max-segments N] [--tokenizer tokenizer.json [--glaive FILE]]

FOLDER holds wikipedia_bert_512.csv and squad_1_1_384.csv (seq_length,count). "alike" is the share of the variance of log length
between blocks, beside its value under random assignment. With a tokenizer, real corpora are planned in the order they lie in:
the sources of the standard library by folder, and the conversations of glaive_toolcall_en_demo.json, each also 20 times
over: how full blocks are, and how far samples are from where they were.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import cloison
from cloison.planning import compose
from cloison.planning.optimal import optimal_patterns


def distributions(samples: int) -> Iterator[tuple[str, int, np.ndarray]]:
    rng = np.random.default_rng(0)
    for median, sigma, capacity in ((350, 0.9, 2048), (500, 1.1, 8192), (900, 1.3, 131072), (700, 0.5, 2048)):
        draw = rng.lognormal(np.log(median), sigma, samples).astype(np.int64).clip(1, capacity)
        yield f"lognormal({median}, {sigma})", capacity, draw
    for capacity in (512, 2048, 8192, 131072):
        yield "uniform [0.2C, 0.5C]", capacity, rng.integers(int(0.2 * capacity), capacity // 2 + 1, samples)


def histogram(folder: Path, name: str, capacity: int) -> np.ndarray:
    table = np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1, dtype=np.int64)
    counts = np.zeros(capacity + 1, np.int64)
    counts[table[:, 0]] = table[:, 1]
    return counts


def corpora(tokenizer: Path, glaive: Path | None) -> Iterator[tuple[str, np.ndarray]]:
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer)).encode_batch
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    sources = [path for path in sources if "site-packages" not in path.parts]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    yield "standard library", np.array([len(row.ids) for row in encode(texts)], np.int64)
    if glaive is not None:
        rows = json.loads(glaive.read_text(encoding="utf-8"))
        texts = ["\n".join(str(turn["value"]) for turn in row["conversations"]) for row in rows]
        yield "glaive", np.array([len(row.ids) for row in encode(texts)], np.int64)


def show_in_order(name: str, lengths: np.ndarray, capacity: int = 8192) -> None:
    plan = cloison.plan(lengths, capacity, order="input", overflow="split")
    found = compose(plan, 1)
    print(
        f"{name:22} {capacity:7,} input order {len(plan):9,} blocks  {plan.utilization:8.3%} full  "
        f"{plan.gap:8.4%} above {plan.bound_name:14} displaced {found.displacement_mean_steps or 0:.1f} blocks in the mean, "
        f"{found.displacement_max_steps or 0:.0f} at most",
        flush=True,
    )


def show(name: str, capacity: int, policy: str, plan: cloison.Plan) -> None:
    found = plan.composition
    print(
        f"{name:22} {capacity:7,} {policy:11} {len(plan):9,} blocks  {plan.utilization:8.3%} full  "
        f"{plan.gap:8.4%} above {plan.bound_name:14} alike {found.length_variance_share:.3f} "
        f"(random {found.random_variance_share:.3f}) {plan.seconds:7.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--histograms", type=Path, default=None)
    parser.add_argument("--tokenizer", type=Path, default=None)
    parser.add_argument("--glaive", type=Path, default=None)
    parser.add_argument("--max-segments", type=int, default=None)
    parser.add_argument("--policies", default="best_fit,look_ahead,optimal,mixed")
    args = parser.parse_args()
    policies = args.policies.split(",")
    for policy in policies:
        cloison.plan(np.random.default_rng(0).integers(20, 60, 2000), 100, policy=policy)  # compiled before it is timed
    if args.tokenizer is not None:
        for name, lengths in corpora(args.tokenizer, args.glaive):
            show_in_order(name, lengths)
            show_in_order(f"{name} x 20", np.tile(lengths, 20))
    if args.histograms is not None:
        for name, capacity in (("wikipedia_bert_512", 512), ("squad_1_1_384", 384)):
            counts = histogram(args.histograms, name, capacity)
            began = time.perf_counter()
            patterns, bound, argument = optimal_patterns(counts, capacity, args.max_segments)
            took = time.perf_counter() - began
            print(f"{name}: {patterns.num_blocks:,} blocks, bound {bound:,} ({argument}), {took:.2f} s")
            lengths = np.repeat(np.arange(capacity + 1), counts)
            if lengths.size > args.samples:
                lengths = np.random.default_rng(0).permutation(lengths)[: args.samples]
            for policy in policies:
                show(name, capacity, policy, cloison.plan(lengths, capacity, policy=policy, max_segments=args.max_segments))
    for name, capacity, lengths in distributions(args.samples):
        for policy in policies:
            show(name, capacity, policy, cloison.plan(lengths, capacity, policy=policy, max_segments=args.max_segments))


if __name__ == "__main__":
    main()
