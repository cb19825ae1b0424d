"""Exporting packed blocks to each format, beside a plain copy of the very files that the export wrote.

    python benchmarks/export.py [--samples 60000] [--rounds 3] [--to trl ...]

gsm8k's tokens under lognormal lengths (mean about 400), a third of each sample no target, capacity 4096, packed once. An export
opens the data set, decodes its blocks, writes, and syncs each file before it gets its name. The copy reads the files that were
written and writes them again, synced and named in the same way. Both read from the page cache. They alternate, and the best
round of each counts. Beside them, in the same multiples, what pyarrow alone takes on one core: decoding the columns that the
format is made of, and, for Parquet, encoding the exported rows again from memory with the same options; nothing shaped, nothing
else written. The seconds that were computed stand beside those of the clock: on a machine that is busy with other things, only
they mean something.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from memory import write_source

CAPACITY = 4096


@dataclass(frozen=True, order=True)
class Took:
    """Wall seconds, and the seconds that this process's threads computed meanwhile."""

    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> tuple[Took, Any]:
    """Return how long ``work`` takes, and what it returns."""
    began, computed = time.perf_counter(), time.process_time()
    result = work()
    return Took(time.perf_counter() - began, time.process_time() - computed), result


def copy(files: tuple[Path, ...], source: Path, dest: Path) -> None:
    """Copy ``files`` from ``source`` to ``dest``, each whole or not there and synced, as an export writes them."""
    from cloison.store.files import replacing

    for file in files:
        target = dest / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            shutil.copyfile(file, part)


def decode(packed: Path, columns: tuple[str, ...]) -> None:
    """Read ``columns`` of the packed blocks, and do nothing with them."""
    for path in sorted(packed.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(batch_size=256, columns=list(columns), use_threads=False):
                pass


def encode(tables: list[Any], like: Path, dest: Path) -> None:
    """Write tables that are in memory as Parquet files with the options of the file ``like``."""
    group = pq.ParquetFile(like).metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    codecs = {one.path_in_schema: one.compression.replace("UNCOMPRESSED", "NONE") for one in chunks}
    options: dict[str, Any] = {"compression": codecs, "use_dictionary": False, "write_statistics": False}
    dest.mkdir()
    for index, table in enumerate(tables):
        pq.write_table(table, dest / f"{index}.parquet", row_group_size=group.num_rows, **options)
    shutil.rmtree(dest)


def main() -> None:
    """Run the comparison and print it."""
    from cloison import PackSpec, export, pack, plan
    from cloison.formats.exporting import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    args = parser.parse_args()
    plan([3, 2, 1], 4)  # compiled code is loaded
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tokens = write_source(folder / "samples.parquet", args.samples)
        packed = pack(folder / "samples.parquet", folder / "packed", PackSpec(CAPACITY))
        held = sum(shard.size_bytes for shard in packed.manifest.shards)
        print(f"{tokens:,} tokens in {len(packed):,} blocks of {CAPACITY:,}, {held / 1e6:,.0f} MB on disk")
        print(f"{'':16}{'written':>9}{'export':>9} {'cpu':>6}{'copy':>9} {'cpu':>6}{'multiple':>10}   pyarrow: decode + encode")
        for to in args.to:
            ours, theirs, reads, writes = [], [], [], [Took(0, 0)]
            lose = [name for name in ("labels", "blocks", "boundaries") if name not in TARGETS[to].holds]
            columns = ("input_ids", "seq_lengths") if to == "megatron" else ("input_ids", "labels", "seq_lengths")
            for number in range(args.rounds):
                dest, other = folder / f"out-{number}", folder / f"copy-{number}"
                took, done = timed(partial(export, folder / "packed", dest, to, lose=lose))
                ours.append(took)
                theirs.append(timed(partial(copy, done.files, done.path, other))[0])
                parquet = [file for file in done.files if file.suffix == ".parquet"]
                if to != "trl":  # its files are copied
                    reads.append(timed(partial(decode, folder / "packed", columns))[0])
                    if parquet:
                        tables = [pq.read_table(file) for file in parquet]
                        took, _ = timed(partial(encode, tables, parquet[0], folder / "encoded"))
                        writes = [took] if number == 0 else [*writes, took]
                written = sum(file.stat().st_size for file in done.files)
                shutil.rmtree(dest)
                shutil.rmtree(other)
            one, other = min(ours), min(theirs)
            sizes = f"{written / 1e6:6,.0f} MB {one.wall:6.2f} s {one.cpu:6.2f} {other.wall:6.2f} s {other.cpu:6.2f}"
            alone = f"   {min(reads).wall / other.wall:.1f}x + {min(writes).wall / other.wall:.1f}x" if reads else ""
            print(f"{to:16}{sizes} {one.wall / other.wall:8.1f}x{alone}")


if __name__ == "__main__":
    main()
