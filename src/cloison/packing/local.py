"""The local engine: a step's jobs on this machine, in this process or on workers of their own.

Workers are started afresh (never forked from a process that has used tokenizers or torch), compute with one thread each, and
are fed by plain files and lines. Which worker does which job, and when, has no influence on what the job writes.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import cloison.packing as package
from cloison.errors import CloisonError, StoreError
from cloison.packing.plain import error_from_plain
from cloison.packing.worker import ONE_THREAD, Done, step
from cloison.places import Place, absolute
from cloison.store.files import write_json

__all__ = ["run_jobs"]


def run_jobs(
    setup: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    *,
    workers: int,
    scratch: Place,
    state: Any = None,
    threads: int = 1,
    report: Callable[[Done], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the record of each job, in the order in which they finish (see `cloison.packing.engines.RunJobs`).

    Args:
        workers: processes; with 1, or with one job only, the work is done in this process, where with several ``threads`` one
            job waits while another computes.
        report: called with what each job took.

    Raises:
        CloisonError: of the first job, in their order, that failed. No new jobs are begun then.
    """
    if min(workers, len(jobs)) <= 1:
        module = step(setup["step"])
        if state is None and jobs:
            state = module.prepare(setup)
        work = partial(_reported, setup["step"], module.run, report)
        if min(threads, len(jobs)) <= 1:
            yield from (work(state, job) for job in jobs)
        else:
            yield from _on_threads(work, state, jobs, threads)
        return
    path = scratch / f"{setup['step']}.setup.json"
    write_json(path, dict(setup))
    crew = _Crew(absolute(path), jobs, min(workers, len(jobs)))
    try:
        for index, seconds, record in crew.results():
            if report is not None:
                report(Done(setup["step"], index, seconds))
            yield record
    finally:
        crew.dismiss()


def _reported(
    name: str,
    work: Callable[[Any, Any], dict[str, Any]],
    report: Callable[[Done], None] | None,
    state: Any,
    job: Mapping[str, Any],
) -> dict[str, Any]:
    began = time.monotonic()
    record = work(state, job)
    if report is not None:
        report(Done(name, int(job["index"]), time.monotonic() - began))
    return record


def _on_threads(
    work: Callable[[Any, Any], dict[str, Any]], state: Any, jobs: Sequence[Mapping[str, Any]], threads: int
) -> Iterator[dict[str, Any]]:
    pool = ThreadPoolExecutor(threads)
    try:
        waiting: deque[Future[dict[str, Any]]] = deque()
        for job in jobs:
            waiting.append(pool.submit(work, state, job))
            if len(waiting) >= 2 * threads:  # a thread that is done finds its next job waiting
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


_HINTS: Mapping[int, str] = {
    9: "It may have run out of memory: lower workers.",
    int(getattr(signal, "SIGBUS", 7)): "A mapped file became shorter, or its disk failed: run again when it is whole.",
}
"""What a worker may have died of, by signal."""


class _Crew:
    """Worker processes and the threads that feed them."""

    def __init__(self, setup: Place, jobs: Sequence[Mapping[str, Any]], workers: int) -> None:
        self._todo: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        for job in jobs:
            self._todo.put(job)
        self._done: queue.SimpleQueue[tuple[int, tuple[float, dict[str, Any]] | CloisonError | None]] = queue.SimpleQueue()
        self._stop = threading.Event()
        home = str(Path(package.__file__).parents[2])
        known = os.environ.get("PYTHONPATH")
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": home + (os.pathsep + known if known else "")}
        self._workers: list[tuple[subprocess.Popen[str], IO[str]]] = []
        for _ in range(workers):
            complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed in dismiss)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cloison.packing.worker", str(setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment,
                text=True,
                encoding="utf-8",
                errors="surrogatepass",
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the workers
            )
            self._workers.append((process, complaints))
        for worker in self._workers:
            threading.Thread(target=self._feed, args=worker, daemon=True).start()

    def results(self) -> Iterator[tuple[int, float, dict[str, Any]]]:
        """Yield (index, seconds, record) until all feeders are through; then raise the first error, if there was one."""
        failed: dict[int, CloisonError] = {}
        at_work = len(self._workers)
        while at_work:
            index, answer = self._done.get()
            if answer is None:
                at_work -= 1
            elif isinstance(answer, CloisonError):
                failed[index] = answer
            else:
                yield (index, *answer)
        if failed:
            raise failed[min(failed)]

    def dismiss(self) -> None:
        """End the workers: they leave when their input ends."""
        self._stop.set()
        for process, complaints in self._workers:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            complaints.close()
            process.stdout.close()  # type: ignore[union-attr]

    def _feed(self, process: subprocess.Popen[str], complaints: IO[str]) -> None:
        """Hand one worker a job at a time until there are none, or one failed anywhere."""
        assert process.stdin is not None
        assert process.stdout is not None
        index = -1
        try:
            while not self._stop.is_set():
                try:
                    job = self._todo.get_nowait()
                except queue.Empty:
                    break
                index = int(job["index"])
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    raise BrokenPipeError
                answer = json.loads(line)
                if "error" in answer:
                    self._stop.set()
                    self._done.put((index, error_from_plain(answer["error"])))
                else:
                    self._done.put((index, (answer["seconds"], answer["result"])))
        except (OSError, ValueError):
            self._stop.set()
            self._done.put((index, self._died(process, complaints, index)))
        finally:
            self._done.put((index, None))

    @staticmethod
    def _died(process: subprocess.Popen[str], complaints: IO[str], index: int) -> StoreError:
        code = process.wait()
        complaints.seek(0)
        last = complaints.read()[-2000:].strip().splitlines()[-3:]
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        said = f" It said: {' / '.join(last)}" if last else ""
        hint = _HINTS.get(-code, "Run again: what is finished is kept.")
        return StoreError(f"worker process for job {index} must finish.", f"It ended with {how}.{said}", hint)
