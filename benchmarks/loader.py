"""The loader on packed blocks of 4,096 tokens in shuffled order: tokens a second, time of a random block, memory over 10 GB.

    python benchmarks/loader.py [--tokens 64e6] [--gigabytes 10]

Peers in the same run: plain pyarrow over the same files in file order (what decoding alone takes), and `datasets` reading the
same Parquet at shuffled indices.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import cloison

CAPACITY = 4096


def make(folder: Path, tokens: int) -> Any:
    """Return a packed data set of about ``tokens`` tokens with the statistics of text (a Zipf law over 50,000 ids)."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(400), 0.9, tokens // 600), 2, CAPACITY).astype(np.int32)
    law = 1 / np.arange(1, 50_001)
    ids = np.searchsorted(np.cumsum(law / law.sum()), rng.random(int(lengths.sum()))).astype(np.int32)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(ids))}), folder / "tokens.parquet")
    return cloison.pack(str(folder / "tokens.parquet"), folder / "packed", cloison.PackSpec(CAPACITY))


def rate(name: str, seconds: float, tokens: int) -> None:
    """Print one line."""
    print(f"{name:<58} {tokens / seconds / 1e6:>8.1f} M tokens/s")


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=64e6)
    parser.add_argument("--gigabytes", type=float, default=10)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as name:
        packed = make(Path(name), int(options.tokens))
        print(packed)
        tokens = packed.manifest.num_tokens

        start = time.perf_counter()
        for shard in packed.manifest.shards:
            file = pq.ParquetFile(packed.path / shard.name, memory_map=True)
            for group in range(file.num_row_groups):
                file.read_row_group(group, use_threads=False)
        rate("pyarrow alone, file order, one thread", time.perf_counter() - start, tokens)

        for label, collate, ahead in (
            ("loader, shuffled, blocks only, nothing ahead", len, 0),
            ("loader, shuffled, flat batches of 8, nothing ahead", cloison.collate, 0),
            ("loader, shuffled, flat batches of 8, 4 ahead in a thread", cloison.collate, 4),
        ):
            loader = cloison.loader(packed, collate, blocks_per_step=8, prefetch=ahead)
            start = time.perf_counter()
            for _ in loader:
                pass
            rate(label, time.perf_counter() - start, tokens)

        import datasets

        datasets.disable_progress_bars()
        found = datasets.load_dataset(str(packed.path), cache_dir=str(Path(name) / "cache"), split="train").with_format("numpy")
        order = np.random.default_rng(0).permutation(len(found))[:2000]
        start = time.perf_counter()
        for index in range(0, len(order), 8):
            found[order[index : index + 8].tolist()]
        share = tokens * len(order) / len(found)
        rate("datasets, shuffled, rows of 8 as numpy, no collating", time.perf_counter() - start, int(share))

        opened = cloison.open(packed.path)
        times = []
        for index in np.random.default_rng(1).permutation(len(opened))[:500].tolist():
            start = time.perf_counter()
            opened[index]
            times.append(time.perf_counter() - start)
        print(f"{'a random block, packed[b], nothing cached':<58} {np.median(times) * 1e3:>8.3f} ms (median of 500)")

        loader = cloison.loader(packed, cloison.collate, blocks_per_step=8, prefetch=4)
        process, done, marks = psutil.Process(os.getpid()), 0, []
        start = time.perf_counter()
        while done < options.gigabytes * 1e9 / 8:
            for batch in loader:
                done += batch["input_ids"].shape[1]
            marks.append(process.memory_info().rss / 2**20)
        rate(f"{done * 8 / 1e9:.1f} GB of ids and labels in {len(marks)} epochs", time.perf_counter() - start, done)
        print(f"resident memory after each epoch (MiB): {' '.join(f'{mark:.0f}' for mark in marks)}")


if __name__ == "__main__":
    main()
