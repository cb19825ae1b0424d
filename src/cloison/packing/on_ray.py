"""The Ray engine: a step's jobs as tasks of a Ray cluster.

A task is given where the setup lies and its job, a few hundred bytes, and returns the record of what it wrote, a few kB. Tokens
go from file to file in the worker; they never pass through this process or Ray's object store.

What a worker's death, or a machine's, cost is done again by Ray; a request that a disk or store refused, by this engine. A job
that fails all the same is named at the end: the others are done first, and stay done.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cloison.errors import ChangedError, CloisonError, InputError, ManifestError, MissingDependencyError, StoreError, require
from cloison.packing.plain import error_from_plain, error_to_plain
from cloison.packing.worker import ONE_THREAD, Done, do_job, publish, refusal
from cloison.places import Place
from cloison.store.files import PART, sweep

__all__ = ["connected", "cpus", "run_jobs"]

_TRIES = 3
"""Of a job that a disk or store failed; and of one whose worker dies, which Ray does again."""

_ANSWER_S = 5.0
_LEAVE_S = 10.0
_DYING_S = 0.5
_STORE_BYTES = 80 << 20
_NAMED = 5


@dataclass(frozen=True)
class _Failed:
    """A job that was not done: why, and whether another try may go better."""

    error: CloisonError
    may_pass: bool


@contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[ModuleType]:
    """Give the ``ray`` module, connected; a connection made here ends with the block, one that was there stays.

    Args:
        address: "HOST:PORT" of the cluster's head, or "auto" for the one that this machine is part of. None: the connection
            that this process has, else what RAY_ADDRESS names, else a cluster on this machine that ends with the block.
        workers: CPUs of a cluster of its own; None: all.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: the address is of another form, or this process is connected to another cluster.
        StoreError: no cluster answers, or one of another version of Ray or Python.
    """
    ray = require("ray", "ray")
    if address not in (None, "auto", "local"):
        _host_and_port(address)
    if ray.is_initialized():
        known = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", known):
            raise InputError(
                f"jobs shall run on the cluster at {address}.",
                f"This process is connected to {known}.",
                "Leave the address out.",
            )
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {"address": address, "logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked that what is done here be told elsewhere
        settings |= {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    elif address != "auto":
        _answers(address)
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _silent(address, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def cpus(ray: ModuleType) -> int:
    """Return how many tasks the cluster can run at once, as it is now."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def run_jobs(
    setup: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    *,
    cluster: ModuleType,
    scratch: Place,
    workers: int | None = None,
    report: Callable[[Done], None] | None = None,
    state: Any = None,
    threads: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yield the record of each job, in the order in which they finish (see `cloison.packing.engines.RunJobs`).

    Args:
        cluster: what `connected` gave.
        workers: tasks under way at once. None: as many as the cluster has CPUs, and as many that wait, so that a cluster that
            grows by demand does.
        report: called with what each job took.

    Raises:
        CloisonError: the first error, in the order of jobs, when all others are done; it names those that failed. At once:
            that a worker does not see the files, or has other versions.
    """
    if not jobs:
        return
    where, seal = publish(setup, scratch)
    name = setup["step"]
    task = cluster.remote(num_cpus=1, max_retries=_TRIES - 1)(_task)
    waiting = deque((job, 1) for job in jobs)
    under_way: dict[Any, tuple[Mapping[str, Any], int]] = {}
    failed: dict[int, CloisonError] = {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < (workers or 2 * cpus(cluster)):
                job, tries = waiting.popleft()
                ref = task.options(name=f"cloison {name} {job['index']}").remote(where, seal, dict(job))
                under_way[ref] = (job, tries)
            ready, _ = cluster.wait(list(under_way))
            for ref in ready:
                job, tries = under_way.pop(ref)
                answer = _answer(cluster, ref, job)
                if isinstance(answer, _Failed):
                    if answer.may_pass and tries < _TRIES:
                        waiting.append((job, tries + 1))
                    else:
                        failed[int(job["index"])] = answer.error
                    continue
                if report is not None:
                    report(Done(name, int(job["index"]), answer["seconds"], answer["node"], tries))
                yield answer["record"]
    finally:
        _end(cluster, list(under_way), scratch)
    if failed:
        if name == "plan":  # of which nothing is kept
            raise failed[min(failed)]
        raise _failure({"hash": "file", "tokenise": "chunk", "fill": "shard"}[name], failed, len(jobs))


def _task(setup: str, seal: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one job on a worker of the cluster, and return what came of it as plain data."""
    os.environ.update(ONE_THREAD)  # before what reads it is first used
    import pyarrow as pa

    pa.set_cpu_count(1)
    began = time.monotonic()
    try:
        if refused := refusal(setup, seal):
            return {"refused": error_to_plain(refused)}
        record = do_job(setup, seal, job)
    except CloisonError as error:
        return {"error": error_to_plain(error)}
    return {"record": record, "seconds": time.monotonic() - began, "node": platform.node()}


def _answer(ray: ModuleType, ref: Any, job: Mapping[str, Any]) -> dict[str, Any] | _Failed:
    """Return what a task returned, or why it failed.

    Raises:
        CloisonError: no job can be done there.
    """
    asked, kept = f"job {job['index']} must be done.", "Run again: what is finished is kept."
    try:
        answer: dict[str, Any] = ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        said = str(error).strip().splitlines()[-1]
        if "No module named 'cloison" in str(error):
            raise MissingDependencyError(
                "every machine of the cluster must have cloison.",
                f"A worker says: {said}.",
                "Install the same versions on all.",
            ) from error
        return _Failed(StoreError(asked, f"It failed: {said}.", kept), may_pass=True)
    except ray.exceptions.RayError as error:
        found = f"Its worker died {_TRIES} times ({type(error).__name__})."
        hint = "It may have run out of memory: give each worker more, or run fewer on a machine."
        return _Failed(StoreError(asked, found, f"{hint} {kept}"), may_pass=False)
    if "refused" in answer:
        raise error_from_plain(answer["refused"])
    if "error" in answer:
        failed = error_from_plain(answer["error"])
        return _Failed(failed, isinstance(failed, StoreError) and not isinstance(failed, (ChangedError, ManifestError)))
    return answer


def _failure(what: str, failed: Mapping[int, CloisonError], total: int) -> CloisonError:
    """Return the first error, with word of how many there are and what they say."""
    first, *others = sorted(failed)
    error = failed[first]
    also = "".join(
        f" {what.capitalize()} {index}: {failed[index].asked} {failed[index].found}" for index in others[: _NAMED - 1]
    )
    more = f" ... and {len(others) - _NAMED + 1:,} more." if len(others) >= _NAMED else ""
    count = f"{what.capitalize()} {first} failed so" if not others else f"{len(failed):,} failed, {what} {first} so"
    done = f"({count}; of {total:,}, {total - len(failed):,} are done and kept.{also}{more})"
    return type(error)(error.asked, f"{error.found} {done}", error.remedy)


def _end(ray: ModuleType, refs: list[Any], scratch: Place) -> None:
    """Stop tasks that nobody waits for any more, and wait until they are gone and what they left can be removed."""
    if not refs:
        return
    for ref in refs:
        with suppress(Exception):
            ray.cancel(ref, force=True)
    with suppress(Exception):
        ray.wait(refs, num_returns=len(refs), timeout=_LEAVE_S)
    time.sleep(_DYING_S)  # a task is over for Ray a moment before its process is
    deadline = time.monotonic() + _LEAVE_S
    while isinstance(scratch, Path) and any(scratch.glob(f"*{PART}")) and time.monotonic() < deadline:
        sweep(scratch)
        time.sleep(_DYING_S / 5)


def _answers(address: str) -> None:
    """Return when something at the address speaks as the head of a cluster does; Ray itself would try for minutes."""
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 3.4, and empty SETTINGS
    try:
        with socket.create_connection(_host_and_port(address), _ANSWER_S) as line:
            line.settimeout(_ANSWER_S)
            line.sendall(hello)
            heard = line.recv(9)
    except (OSError, OverflowError) as error:
        raise _silent(address, getattr(error, "strerror", None) or str(error) or type(error).__name__) from error
    if len(heard) < 4 or heard[3] != 4:
        raise _silent(address, "what listens there is no Ray head")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise InputError(
            'a Ray address is HOST:PORT of the cluster\'s head, or "auto" on one of its machines.',
            f"It is {address!r}.",
            "Run this on a machine of the cluster (ray job submit does), with the address auto.",
        )
    return host.strip("[]"), int(port)


def _silent(address: str, said: str) -> StoreError:
    return StoreError(
        f"a Ray cluster must answer at {address}.",
        f"None does: {said}.",
        "Check that it runs (ray status), with the Ray and Python of this process; or leave the address out.",
    )
