"""Packing a million samples: the memory of its own that it takes, and its speed beside plain pyarrow.

    python benchmarks/memory.py [--samples 1000000] [--workers 2]

Pre-tokenised Parquet (``input_ids`` and ``labels``) made from gsm8k's tokens under lognormal lengths (mean about 400), capacity
4096. Memory is RssAnon of this process and its children, sampled: mapped file pages are the page cache's. The peer reads the
same file with pyarrow, takes the rows in a random order and writes them with the same compression, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SHARED = Path(os.environ.get("CLOISON_SHARED", Path(__file__).resolve().parents[2] / "shared"))
BATCH = 20_000


def real_tokens() -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return gsm8k's answers as one stream of Qwen3 tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SHARED / "tokenizers" / "qwen3" / "tokenizer.json"))
    lines = (SHARED / "data" / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [row["question"] + row["answer"] for row in map(json.loads, lines)]
    return np.concatenate([np.array(one.ids, np.int32) for one in tokenizer.encode_batch(texts, add_special_tokens=False)])


def write_source(path: Path, samples: int) -> int:
    """Write ``samples`` samples to ``path`` and return their tokens."""
    stream = real_tokens()
    random = np.random.default_rng(0)
    total = 0
    layout = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, layout, compression="zstd") as writer:
        for first in range(0, samples, BATCH):
            count = min(BATCH, samples - first)
            lengths = np.clip(random.lognormal(5.75, 0.7, count).astype(np.int64), 2, 4096)
            ends = np.cumsum(lengths)
            inside = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
            starts = random.integers(0, stream.size, count)
            ids = stream[(np.repeat(starts, lengths) + inside) % stream.size]
            labels = np.where(inside < np.repeat(lengths // 3, lengths), np.int32(-100), ids)
            offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
            columns = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (ids, labels)]
            writer.write_table(pa.Table.from_arrays(columns, schema=layout))
            total += int(ends[-1])
    return total


class Watch(threading.Thread):
    """Samples RssAnon of this process and its children; ``peak`` is the largest sum in bytes, ``of_one`` of one process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = self.of_one = 0
        self._done = threading.Event()

    def run(self) -> None:
        me = os.getpid()
        while not self._done.wait(0.05):
            sizes = [_anonymous(process) for process in (me, *_children(me))]
            self.peak, self.of_one = max(self.peak, sum(sizes)), max(self.of_one, *sizes)

    def stop(self) -> None:
        """End sampling."""
        self._done.set()
        self.join()


def _children(process: int) -> list[int]:
    try:
        listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        listed = []
    # Children may hang on the thread that started them.
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            listed += (task / "children").read_text().split()
        except OSError:
            continue
    return sorted({int(child) for child in listed})


def _anonymous(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssAnon")), 0)


def main() -> None:
    """Run both and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    from cloison import PackSpec, pack, plan

    plan([3, 2, 1], 4)  # compiled code is loaded
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = folder / "samples.parquet"
        tokens = write_source(source, args.samples)
        print(f"{args.samples:,} samples, {tokens:,} tokens, {source.stat().st_size / 2**20:,.0f} MiB of Parquet")
        watch = Watch()
        before = _anonymous(os.getpid())
        watch.start()
        began = time.perf_counter()
        packed = pack(source, folder / "out", PackSpec(4096), workers=args.workers)
        ours = time.perf_counter() - began
        watch.stop()
        m = packed.manifest
        print(f"cloison  {ours:.1f} s on {args.workers} worker(s), {m.num_blocks:,} blocks, {m.utilization:.3%} full")
        print(f"memory   {watch.peak / 2**30:.2f} GiB in all processes ({before / 2**30:.2f} before), bar: 2 GiB")
        began = time.perf_counter()
        table = pq.read_table(source)
        taken = table.take(pa.array(np.random.default_rng(0).permutation(len(table))))
        pq.write_table(taken, folder / "plain.parquet", compression="zstd", compression_level=1, use_dictionary=False)
        plain = time.perf_counter() - began
        print(f"pyarrow  {plain:.1f} s for read + take + write; cloison runs at {plain / ours:.2f} of its speed (bar: 0.33)")


if __name__ == "__main__":
    main()
