"""Kill the main job at random moments, again and again, until it ends: the bytes of an undisturbed run, nothing done twice."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from tests.campaign.runs import Job, finished_pieces, last_run, made_again, tree, write_source

__all__ = ["campaign", "killed_run"]

WORKERS = (1, 2, 4)


def killed_run(job: Job, expected: dict[str, str], random: np.random.Generator, length: float, kills: int) -> tuple[str, int]:
    """Kill ``job`` up to ``kills`` times, run it to its end, and return what is wrong ("" for nothing) and the kills that hit.

    One in four kills hits a worker and not the job itself, which then must end with an error that says so.
    """
    hit = 0
    for _ in range(kills):
        before = finished_pieces(job.folder)
        process = job.start()
        time.sleep(random.uniform(0, length))
        if process.poll() is None:
            hit += 1
            victims = _workers(process.pid) if random.random() < 0.25 else []
            if victims:
                victims[int(random.integers(len(victims)))].kill()
            else:
                process.send_signal(signal.SIGKILL)
        status = process.wait(120)
        if status not in (0, 2, -signal.SIGKILL):
            return f"the job ended with status {status}", hit
        if status != 0 and (again := made_again(before, job.folder)):
            return f"made again although they were finished: {again}", hit
    return last_run(job, expected), hit


def campaign(scratch: Path, seed: int, runs: int) -> Iterator[str]:
    """Yield what is wrong in ``runs`` runs with 1, 2 and 4 workers in turn."""
    random = np.random.default_rng(seed)
    source = write_source(scratch / "source")
    began = time.monotonic()
    done = Job(source, scratch / "undisturbed").run()
    length = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    expected = tree(scratch / "undisturbed")
    hits = total = 0
    for number in range(runs):
        job = Job(source, scratch / f"run-{number}", WORKERS[number % len(WORKERS)])
        kills = int(random.integers(1, 4))
        wrong, hit = killed_run(job, expected, random, length, kills)
        hits, total = hits + hit, total + kills
        if wrong:
            yield f"run {number} ({job.workers} workers): {wrong}"
        shutil.rmtree(job.folder)
    print(f"  {hits} kills hit ({total - hits} came after the end) in {runs} runs of {len(expected)} files")


def _workers(parent: int) -> list[psutil.Process]:
    try:
        found = psutil.Process(parent).children()
        return [child for child in found if "cloison.packing.worker" in " ".join(child.cmdline())]
    except psutil.Error:
        return []
