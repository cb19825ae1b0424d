"""The loader on packed blocks of 4,096 tokens in shuffled order: tokens a second, time of a random block, memory over 10 GB.

    python benchmarks/loader.py [--tokens 64e6] [--gigabytes 10]

Peers in the same run: plain pyarrow over the same files in file order (what decoding alone takes), and `datasets` reading its
uncompressed copy of them at shuffled indices. Rates are given by the clock and by the process's own CPU seconds, which a busy
machine disturbs less. The 10 GB are one epoch over a data set of that size, whose files are links to the few that were made:
what is open, parsed and decoded is as for real ones.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import cloison
from cloison.store.packed import Packed
from cloison.store.shards import shard_name

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


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def rate(self, name: str, tokens: int) -> None:
        """Print one line."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        print(f"{name:<58} {tokens / wall / 1e6:>8.1f} M tokens/s {tokens / cpu / 1e6:>8.1f} M tokens/CPU second", flush=True)


def many(packed: Packed, folder: Path, tokens: float) -> Packed:
    """Return a data set of about ``tokens`` tokens whose files are links to the full ones of ``packed``."""
    full = [shard for shard in packed.manifest.shards if shard.num_blocks == packed.manifest.shards[0].num_blocks]
    folder.mkdir()
    shards = []
    for index in range(max(1, round(tokens / full[0].num_tokens))):
        shard = full[index % len(full)]
        shards.append(replace(shard, name=shard_name(index)))
        (folder / shards[-1].name).symlink_to(packed.path / shard.name)
    blocks, total = (sum(getattr(shard, name) for shard in shards) for name in ("num_blocks", "num_tokens"))
    return Packed(folder, replace(packed.manifest, shards=tuple(shards), num_blocks=blocks, num_tokens=total))


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

        clock = Clock()
        for shard in packed.manifest.shards:
            file = pq.ParquetFile(packed.path / shard.name, memory_map=True)
            for group in range(file.num_row_groups):
                file.read_row_group(group, use_threads=False)
        clock.rate("pyarrow alone, file order, one thread", tokens)

        for label, collate, ahead in (
            ("loader, shuffled, blocks only, nothing ahead", len, 0),
            ("loader, shuffled, flat batches of 8, nothing ahead", cloison.collate, 0),
            ("loader, shuffled, flat batches of 8, 4 ahead in a thread", cloison.collate, 4),
        ):
            loader = cloison.loader(packed, collate, blocks_per_step=8, prefetch=ahead)
            loader[0]  # compiles
            clock = Clock()
            for _ in loader:
                pass
            clock.rate(label, tokens)

        import datasets

        datasets.disable_progress_bars()
        found = datasets.load_dataset(str(packed.path), cache_dir=str(Path(name) / "cache"), split="train").with_format("numpy")
        order = np.random.default_rng(0).permutation(len(found))[:2000]
        clock = Clock()
        for index in range(0, len(order), 8):
            found[order[index : index + 8].tolist()]
        share = tokens * len(order) / len(found)
        clock.rate("datasets, shuffled, rows of 8 as numpy, no collating", int(share))

        opened = cloison.open(packed.path)
        times = []
        for index in np.random.default_rng(1).permutation(len(opened))[:500].tolist():
            start = time.perf_counter()
            opened[index]
            times.append(time.perf_counter() - start)
        print(f"{'a random block, packed[b], nothing cached':<58} {np.median(times) * 1e3:>8.3f} ms (median of 500)")

        large = many(packed, Path(name) / "large", options.gigabytes * 1e9 / 8)
        loader = cloison.loader(large, cloison.collate, blocks_per_step=8, prefetch=4)
        process, marks = psutil.Process(os.getpid()), []
        clock = Clock()
        for step, _ in enumerate(loader):
            if step % max(1, len(loader) // 10) == 0:
                marks.append(process.memory_info().rss / 2**20)
        tokens = large.manifest.num_tokens
        clock.rate(f"{tokens * 8 / 1e9:.1f} GB of ids and labels in {len(large.manifest.shards)} files, one epoch", tokens)
        print(f"resident memory at each tenth (MiB): {' '.join(f'{mark:.0f}' for mark in marks)}")


if __name__ == "__main__":
    main()
