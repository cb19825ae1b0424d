"""Run the main job on sources that a disk fails to read: an error that names the file, and it goes on once that is mended."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.campaign.runs import Job, differing, remains, tree
from tests.campaign.small_disks import Failing, can_mount, failing_disk
from tests.packing.corpus import chats

__all__ = ["HOOK", "campaign", "failed_run", "hooked_run", "write_kinds"]

HOOK = Path(__file__).parent / "hook"
"""A folder whose ``sitecustomize`` makes the n-th read of a file fail, in every process that has it on its path."""

WORKERS = (1, 2, 4)


def write_kinds(folder: Path, records: int) -> Path:
    """Write a source with the same kind of chats in a file of every format."""
    folder.mkdir(parents=True)
    bodies: list[list[dict[str, Any]]] = [chats(records, number) for number in range(8)]
    lines = ["".join(json.dumps(record) + "\n" for record in body).encode() for body in bodies]
    (folder / "a.jsonl").write_bytes(lines[0])
    (folder / "b.json").write_text(json.dumps(bodies[1]))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines[2], mtime=0))
    (folder / "d.jsonl.zst").write_bytes(pa.compress(lines[3], "zstd", asbytes=True))
    pq.write_table(pa.Table.from_pylist(bodies[4]), folder / "e.parquet", row_group_size=max(1, records // 3))
    table = pa.Table.from_pylist(bodies[5])
    for name, make in (("f.arrow", pa.ipc.new_file), ("g.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(folder / name), "wb") as file, make(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=max(1, records // 3))
    (folder / "h.jsonl").write_bytes(lines[7])
    return folder


def failed_run(job: Job, disk: Failing, expected: dict[str, str], name: str) -> tuple[str, int]:
    """Run ``job`` with the end of ``disk`` from ``name`` on failing, then mended; return what is wrong, and how many failed."""
    failing = disk.fail(name)
    done = job.run()
    if failing:
        if done.returncode != 2 or "Traceback" in done.stderr:
            return f"status {done.returncode}: {done.stderr[-800:]}", len(failing)
        if not any(path.name in done.stderr for path in failing) or "nput/output error" not in done.stderr:
            return f"the file is not named: {done.stderr[-800:]}", len(failing)
        if left := remains(job.folder):
            return f"left behind: {left}", len(failing)
    disk.mend()
    done = job.run()
    if done.returncode:
        return f"mended, status {done.returncode}: {done.stderr[-800:]}", len(failing)
    differ = differing(job.folder, expected)
    return (f"not as in an undisturbed run: {differ}" if differ else ""), len(failing)


def hooked_run(job: Job, expected: dict[str, str], name: str, read: int) -> tuple[str, bool]:
    """Run ``job`` with read ``read`` of its source ``name`` failing, and without; return what is wrong, and if that failed."""
    path = os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH"))))
    done = job.run({"PYTHONPATH": path, "FAIL_FILE": name, "FAIL_READ": str(read)})
    failed = done.returncode != 0
    if failed:
        if done.returncode != 2 or "Traceback" in done.stderr:
            return f"status {done.returncode}: {done.stderr[-800:]}", failed
        if name not in done.stderr or "nput/output error" not in done.stderr:
            return f"the file is not named: {done.stderr[-800:]}", failed
        if left := remains(job.folder):
            return f"left behind: {left}", failed
        done = job.run()
        if done.returncode:
            return f"without the failure, status {done.returncode}: {done.stderr[-800:]}", failed
    differ = differing(job.folder, expected)
    return (f"not as in an undisturbed run: {differ}" if differ else ""), failed


def campaign(scratch: Path, seed: int, runs: int) -> Iterator[str]:
    """Yield what is wrong in ``runs`` runs, half of them on a failing disk, half with a read that fails at a random moment."""
    random = np.random.default_rng(seed)
    content = write_kinds(scratch / "content", 300)
    assert Job(content, scratch / "undisturbed").run().returncode == 0
    expected = tree(scratch / "undisturbed")
    names = sorted(path.name for path in content.iterdir())
    hooked = [name for name in names if not name.endswith((".parquet", ".arrow", ".zst"))]  # read by Python, not by Arrow
    met = 0
    for number in range(runs // 2):
        job = Job(content, scratch / f"hooked-{number}", WORKERS[number % len(WORKERS)])
        name = hooked[int(random.integers(len(hooked)))]
        wrong, failed = hooked_run(job, expected, name, int(random.integers(1, 12)))
        met += failed
        if wrong:
            yield f"a failing read of {name} ({job.workers} workers): {wrong}"
        shutil.rmtree(job.folder)
    print(f"  {met} of {runs // 2} reads failed")
    if not can_mount("mkfs.ext4", "losetup"):
        print("  not run on a failing disk: this process may not mount one")
        return
    with failing_disk(scratch, content) as disk:
        failures = []
        for number in range(runs - runs // 2):
            job = Job(disk.folder, scratch / f"run-{number}", WORKERS[number % len(WORKERS)])
            wrong, files = failed_run(job, disk, expected, names[number % len(names)])
            failures.append(files)
            if wrong:
                yield f"a failing disk, {files} files ({job.workers} workers): {wrong}"
            shutil.rmtree(job.folder)
    print(f"  {sum(files > 0 for files in failures)} of {len(failures)} disks failed, {sum(failures)} files in all")
