"""check and export, beside a plain read and a plain copy of the same bytes in the same run.

Prints, for blocks of random tokens: how fast `check` goes through a table in memory and through Parquet on disk, its peak of
memory for two sizes (flat: the second is ten times the first), and each export's time as a multiple of a plain copy of the
bytes that it writes. Run it alone: ``python benchmarks/checking.py [MILLION_TOKENS]``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cloison

CAPACITY = 4096


def rows(tokens: int) -> pa.Table:
    """Return packed rows of 8 segments each, three in ten tokens no target."""
    random = np.random.default_rng(0)
    blocks = tokens // CAPACITY
    lengths = random.multinomial(CAPACITY - 8, [1 / 8] * 8, blocks).astype(np.int32).reshape(-1) + 1
    ids = random.integers(5, 150_000, blocks * CAPACITY).astype(np.int32)
    labels = np.where(random.random(ids.size) < 0.3, np.int32(-100), ids)
    labels[np.cumsum(lengths) - lengths] = -100
    by_token = np.arange(blocks + 1, dtype=np.int32) * CAPACITY
    by_segment = np.arange(blocks + 1, dtype=np.int32) * 8
    columns = {"input_ids": (by_token, ids), "labels": (by_token, labels), "seq_lengths": (by_segment, lengths)}
    return pa.table({name: pa.ListArray.from_arrays(ends, values) for name, (ends, values) in columns.items()})


def timed(work: Callable[[], Any], repeat: int = 3) -> float:
    """Return the best of ``repeat`` times in seconds."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def peak_mib(path: Path) -> float:
    """Return how much memory of its own a fresh process takes to check ``path``, beyond what imports take."""
    script = (
        "import re, sys, cloison.checking.check as c\n"
        "def own(name): return int(re.search(name + r':\\s+(\\d+)', open('/proc/self/status').read()).group(1))\n"
        "c.check(sys.argv[2])\nbefore = own('VmHWM') - 0\n"
        "import threading, time\npeak = [0]\n"
        "def watch():\n"
        "    while True: peak[0] = max(peak[0], own('RssAnon')); time.sleep(0.01)\n"
        "threading.Thread(target=watch, daemon=True).start()\nbase = own('RssAnon')\n"
        "c.check(sys.argv[1])\nprint((peak[0] - base) / 1024)"
    )
    small = path.with_name("tiny.parquet")
    pq.write_table(rows(CAPACITY * 4), small)
    return float(
        subprocess.run([sys.executable, "-c", script, str(path), str(small)], capture_output=True, text=True, check=True).stdout
    )


def packed(table: pa.Table, folder: Path) -> cloison.Packed:
    """Return the same tokens packed by cloison."""
    ids = table.column("input_ids").combine_chunks().values
    labels = table.column("labels").combine_chunks().values
    lengths = table.column("seq_lengths").combine_chunks().values.to_numpy()
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    samples = pa.table(
        {name: pa.ListArray.from_arrays(ends, values) for name, values in (("input_ids", ids), ("labels", labels))}
    )
    pq.write_table(samples, folder / "samples.parquet", use_dictionary=False)
    return cloison.pack([str(folder / "samples.parquet")], folder / "packed", cloison.PackSpec(capacity=CAPACITY))


def main() -> None:
    """Measure and print."""
    million = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    tokens = million * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = rows(tokens)
        path = folder / "rows.parquet"
        pq.write_table(table, path, compression="zstd", use_dictionary=False, row_group_size=32)
        options = {"capacity": CAPACITY, "vocab_size": 151_000, "eos_token_id": 7}

        def read() -> None:
            for _ in pq.ParquetFile(path).iter_batches(128):
                pass

        plain = timed(read)
        in_memory, on_disk = timed(lambda: cloison.check(table, **options)), timed(lambda: cloison.check(path, **options))
        print(f"plain read of the Parquet file   {tokens / plain / 1e6:8.1f} M tokens/s")
        print(f"check, from memory               {tokens / in_memory / 1e6:8.1f} M tokens/s")
        print(
            f"check, from the Parquet file     {tokens / on_disk / 1e6:8.1f} M tokens/s, {on_disk / plain:.2f} x the plain read"
        )
        tenth = folder / "tenth.parquet"
        pq.write_table(rows(tokens // 10), tenth, compression="zstd", use_dictionary=False, row_group_size=32)
        print(
            f"memory of its own: {peak_mib(tenth):.0f} MiB for {million / 10:g} M tokens, "
            f"{peak_mib(path):.0f} MiB for {million} M"
        )
        data = packed(table, folder)

        def read_blocks() -> None:
            for shard in data.manifest.shards:
                for _ in pq.ParquetFile(data.path / shard.name).iter_batches(
                    128, columns=["input_ids", "labels", "seq_lengths"]
                ):
                    pass

        source = timed(read_blocks)
        print(f"reading the packed blocks alone  {source:8.2f} s")
        for to in ("trl", "megatron-bridge", "mds", "megatron", "olmo-core", "grain"):
            dest, copy = folder / to, folder / "copy"
            start = time.perf_counter()
            cloison.export(data, dest, to, lose=["labels", "blocks"])
            took = time.perf_counter() - start
            size = sum(file.stat().st_size for file in dest.rglob("*") if file.is_file())
            shutil.copytree(dest, folder / "warm")
            start = time.perf_counter()
            shutil.copytree(dest, copy)
            for file in copy.rglob("*"):
                if file.is_file():  # an export is synced to the disk, so the copy is too
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            copied = time.perf_counter() - start
            shutil.rmtree(copy)
            shutil.rmtree(folder / "warm")
            print(
                f"export to {to:16} {took:5.2f} s, {size / took / 1e6:6.0f} MB/s written, "
                f"{took / copied:5.1f} x a synced copy of these bytes, "
                f"{took / (source + copied):4.1f} x reading the blocks and that copy"
            )
    print(
        json.dumps(
            {"tokens": tokens, "check_table_tokens_per_s": tokens / in_memory, "check_file_tokens_per_s": tokens / on_disk}
        )
    )


if __name__ == "__main__":
    main()
