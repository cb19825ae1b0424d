"""The story's runs, in processes of their own: fed by plain job files, kept as they end, so that a story can go on later."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cloison.errors import StoreError
from cloison.story.configuration import Configuration, Run
from cloison.story.dialogs import Dialogs
from cloison.story.training import Result

__all__ = ["Progress", "run_all"]

Progress = Callable[[str, int, int], None]


def run_all(
    out: Path, runs: Sequence[Run], configuration: Configuration, dialogs: Dialogs, workers: int, progress: Progress
) -> tuple[Result, ...]:
    """Return the result of every run, ``workers`` processes of one thread at a time.

    Results that ``out`` holds of an earlier call, for the same run, configuration and samples, are not made again.

    Raises:
        StoreError: a process ended early.
    """
    samples = out / "samples.json"
    dialogs.save(samples)
    digest = hashlib.sha256(samples.read_bytes()).hexdigest()
    jobs = [_job(out, index, run, configuration, digest) for index, run in enumerate(runs)]
    waiting = [job for job in jobs if not _result(job).exists()]
    shares = [waiting[start::workers] for start in range(min(workers, len(waiting)))]
    logs = [out / f"process-{number}.log" for number in range(len(shares))]
    running = {log: _started(samples, share, log) for share, log in zip(shares, logs, strict=True)}
    try:
        while running:
            time.sleep(0.2)
            progress("training", sum(_result(job).exists() for job in jobs), len(jobs))
            for log in [log for log, process in running.items() if process.poll() is not None]:
                _raise_if_failed(running.pop(log), log)
    finally:
        for process in running.values():
            process.kill()
    return tuple(_read(job) for job in jobs)


def _job(out: Path, index: int, run: Run, configuration: Configuration, samples: str) -> Path:
    path = out / f"run-{index:02d}.json"
    text = json.dumps({"run": asdict(run), "configuration": asdict(configuration), "samples": samples}, sort_keys=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        _result(path).unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def _result(job: Path) -> Path:
    return job.with_suffix(".result")


def _read(job: Path) -> Result:
    plain = json.loads(_result(job).read_text(encoding="utf-8"))
    return Result(**plain | {"run": Run(**plain["run"])})


def _started(samples: Path, jobs: Sequence[Path], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cloison.story.training", str(samples), *map(str, jobs)]
    with log.open("wb") as said:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)


def _raise_if_failed(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.returncode:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["nothing was said"]
        raise StoreError(
            "every run of the story must end.",
            f"A process failed: {said[0]} (all of it in {log}).",
            "Run the same again: what is done is kept.",
        )
