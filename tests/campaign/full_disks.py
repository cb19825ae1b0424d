"""Run the main job on a disk that is full after so many bytes: a clear error, nothing half, and it goes on with more room."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.campaign.runs import Job, last_run, remains, tree, write_source
from tests.campaign.small_disks import can_mount, full_disk, resize

__all__ = ["campaign", "full_run"]

WORKERS = (1, 2, 4)
_PAGE = 1 << 12


def full_run(job: Job, expected: dict[str, str], size: int, plenty: int) -> tuple[str, bool]:
    """Run ``job`` on a disk of ``size`` bytes and again on one of ``plenty``; return what is wrong, and whether it was full."""
    with full_disk(job.folder, size):
        done = job.run()
        full = done.returncode != 0
        if full:
            if done.returncode != 2 or "Traceback" in done.stderr or "No space left on device" not in done.stderr:
                return f"status {done.returncode}: {done.stderr[-800:]}", full
            if "Free space" not in done.stderr and "room" not in done.stderr:
                return f"no word on what to do: {done.stderr[-800:]}", full
            if left := remains(job.folder):
                return f"left behind: {left}", full
        resize(job.folder, plenty)
        return last_run(job, expected), full


def campaign(scratch: Path, seed: int, runs: int) -> Iterator[str]:
    """Yield what is wrong on ``runs`` disks, from one with hardly any room to one with nearly enough."""
    if not can_mount():
        print("  not run: this process may not mount a tmpfs")
        return
    random = np.random.default_rng(seed)
    source = write_source(scratch / "source")
    assert Job(source, scratch / "undisturbed").run().returncode == 0
    expected = tree(scratch / "undisturbed")
    need = sum(path.stat().st_size // _PAGE + 2 for path in (scratch / "undisturbed").rglob("*")) * _PAGE
    met = 0
    for number in range(runs):
        share = (number + random.random()) / runs
        job = Job(source, scratch / "disk", WORKERS[number % len(WORKERS)])
        wrong, full = full_run(job, expected, max(1, int(share * need / _PAGE)) * _PAGE, 1 << 26)
        met += full
        if wrong:
            yield f"a disk of {share:.1%} of what is needed ({job.workers} workers): {wrong}"
        shutil.rmtree(job.folder)
    print(f"  {met} of {runs} disks were full before the end ({need:,} bytes are needed)")
