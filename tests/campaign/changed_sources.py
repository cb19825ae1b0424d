"""Kill the main job, change its sources, and run it again: refused by the name of a file, and whole once they are restored."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.campaign.runs import Job, differing, finished_pieces, made_again, tree, write_source

__all__ = ["CHANGES", "campaign", "changed_run"]

WORKERS = (1, 2, 4)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n')


def _swap_letter(path: Path) -> None:
    """Change one letter and put size and times back: only the content tells."""
    state = path.stat()
    body = path.read_bytes()
    path.write_bytes(body.replace(b"the", b"teh", 1))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def _shorten(path: Path) -> None:
    body = path.read_bytes()
    path.write_bytes(body[: body.rindex(b"\n", 0, -1) + 1])


def _remove(path: Path) -> None:
    path.unlink()


def _add(path: Path) -> None:
    shutil.copyfile(path, path.with_name("zz.jsonl"))


CHANGES = {"append": _append, "swap a letter": _swap_letter, "shorten": _shorten, "remove": _remove, "add": _add}


def changed_run(job: Job, expected: dict[str, str], change: str, victim: str, after: float) -> tuple[str, bool]:
    """Kill ``job`` ``after`` so many seconds, change its source, and run it; return what is wrong, and whether the kill hit."""
    kept = job.source.with_name("kept")
    shutil.copytree(job.source, kept)
    try:
        process = job.start()
        # A run that has not noted what it reads has nothing to be held to.
        begun = job.folder / "out" / ".work" / "begun.json"
        while process.poll() is None and not begun.exists():
            time.sleep(0.01)
        time.sleep(after)
        hit = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole = (job.folder / "out" / "manifest.json").exists()
        before = finished_pieces(job.folder)
        CHANGES[change](job.source / victim)
        refused = job.run()
        told = "holds a whole data set" if whole else "goes on with the sources that it began with"
        if refused.returncode != 2 or told not in refused.stderr or "Traceback" in refused.stderr:
            return f"status {refused.returncode}: {refused.stderr[-800:]}", hit
        if change in ("append", "swap a letter", "shorten") and not whole and victim not in refused.stderr:
            return f"the file is not named: {refused.stderr[-800:]}", hit
    finally:
        shutil.rmtree(job.source)
        kept.rename(job.source)
    done = job.run()
    if done.returncode:
        return f"restored, status {done.returncode}: {done.stderr[-800:]}", hit
    if again := made_again(before, job.folder):
        return f"made again although they were finished: {again}", hit
    found = {name for name in differing(job.folder, expected) if not (whole and name.startswith("tokens/"))}
    return (f"not as in an undisturbed run: {sorted(found)}" if found else ""), hit


def campaign(scratch: Path, seed: int, runs: int) -> Iterator[str]:
    """Yield what is wrong in ``runs`` runs."""
    random = np.random.default_rng(seed)
    source = write_source(scratch / "source")
    began = time.monotonic()
    assert Job(source, scratch / "undisturbed").run().returncode == 0
    length = time.monotonic() - began
    expected = tree(scratch / "undisturbed")
    hits = 0
    for number in range(runs):
        job = Job(source, scratch / f"run-{number}", WORKERS[number % len(WORKERS)])
        change = list(CHANGES)[number % len(CHANGES)]
        wrong, hit = changed_run(
            job, expected, change, f"part-{int(random.integers(10)):02}.jsonl", random.uniform(0, length / 2)
        )
        hits += hit
        if wrong:
            yield f"{change} ({job.workers} workers): {wrong}"
        shutil.rmtree(job.folder)
    print(f"  {hits} of {runs} kills hit")
