"""Engines: where the jobs of a step run. A step is a pure function of a setup and a job, both plain data.

``"local"`` is `cloison.packing.local`, ``"ray"`` is `cloison.packing.on_ray`, and a function of the caller's is an engine too:
it is given what does one job, and the jobs, and returns what came of each, in any order. Whatever can map a function over a
list, on whatever machines, can so run a packing job: a pool of processes, Spark, Dask, MPI, an array of SLURM jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from cloison.errors import CloisonError, InputError, StoreError
from cloison.packing import local
from cloison.packing.worker import Done, do_job, publish
from cloison.places import Place

__all__ = ["IN_THIS_PROCESS", "Do", "Engine", "EngineChoice", "Report", "starting"]

Do = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Does one job and returns its record. It can be pickled, and called in any process that sees the same files."""

EngineChoice = Literal["local", "ray"] | Callable[[Do, Sequence[Mapping[str, Any]]], Iterable[dict[str, Any]]]
"""An engine by name, or a function ``engine(do, jobs)`` that returns ``do(job)`` of every job, in any order."""

Report = Callable[[Done], None]
"""Called with what each job took, once it is done."""


class RunJobs(Protocol):
    """What engines have in common."""

    def __call__(
        self,
        setup: Mapping[str, Any],
        jobs: Sequence[Mapping[str, Any]],
        *,
        scratch: Place,
        state: Any = None,
        threads: int = 1,
    ) -> Iterator[dict[str, Any]]:
        """Yield the record of each job, in the order in which they finish.

        Args:
            setup: plain data for the step's ``prepare``; ``setup["step"]`` names it.
            jobs: plain data for its ``run``, handed out in this order; each has an ``index``.
            scratch: a folder for the setup file, which workers see.
            state: what ``prepare`` would return, where the caller has it already and the work is done in this process.
            threads: jobs under way at once where the work is done in this process.

        Raises:
            CloisonError: of the first job, in their order, that failed; what others finished stays finished.
        """
        ...


@dataclass(frozen=True)
class Engine:
    """An engine that is ready.

    Attributes:
        run: runs jobs.
        workers: jobs under way at once.
        apart: whether workers are never this process, and may be on other machines.
    """

    run: RunJobs
    workers: int
    apart: bool

    def in_this_process(self, jobs: int) -> bool:
        """Return whether that many jobs are done in this process."""
        return not self.apart and min(self.workers, jobs) <= 1


IN_THIS_PROCESS = Engine(partial(local.run_jobs, workers=1), 1, apart=False)
"""No workers at all."""


@contextmanager
def starting(
    engine: EngineChoice, *, workers: int | None = None, address: str | None = None, report: Report | None = None
) -> Iterator[Engine]:
    """Give the engine, ready; what it started has ended when the block ends.

    Args:
        engine: its name, or a function.
        workers: processes, or jobs under way at once on Ray. None: this process, or all that the cluster has.
        address: of the Ray cluster, "HOST:PORT" or "auto"; None: what RAY_ADDRESS names, else one of its own on this machine.
        report: called with what each job took.

    Raises:
        InputError: an engine, number of workers or address that cannot be.
        StoreError: no cluster answers.
        MissingDependencyError: the engine's package is not installed.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError("workers is a number of processes, 1 or more.", f"It is {workers!r}.", "Pass workers=1 or more.")
    if address is not None and engine != "ray":
        raise InputError("address is that of a Ray cluster.", f"The engine is {engine!r}.", 'Pass engine="ray", or no address.')
    if engine == "local":
        yield Engine(partial(local.run_jobs, workers=workers or 1, report=report), workers or 1, apart=False)
    elif engine == "ray":
        from cloison.packing import on_ray

        with on_ray.connected(address, workers) as cluster:
            run = partial(on_ray.run_jobs, cluster=cluster, workers=workers, report=report)
            yield Engine(run, workers or on_ray.cpus(cluster), apart=True)
    elif callable(engine):
        yield Engine(partial(_called, engine), workers or 1, apart=True)
    else:
        raise InputError(
            "engine names where jobs run.", f"It is {engine!r}.", 'Pass "local", "ray", or a function engine(do, jobs).'
        )


def _called(
    engine: Callable[[Do, Sequence[Mapping[str, Any]]], Iterable[dict[str, Any]]],
    setup: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    *,
    scratch: Place,
    state: Any = None,
    threads: int = 1,
) -> Iterator[dict[str, Any]]:
    """Have the caller's function do the jobs."""
    if not jobs:
        return
    left = {int(job["index"]) for job in jobs}
    try:
        for record in engine(partial(do_job, *publish(setup, scratch)), jobs):
            left.discard(int(record["index"]))
            yield record
    except (KeyError, TypeError, IndexError) as error:
        if isinstance(error, CloisonError):
            raise
        raise _no_records(f"{type(error).__name__}: {error}") from error
    if left:
        raise StoreError(
            "an engine returns what came of every job.",
            f"{len(left):,} of {len(jobs):,} are missing, job {min(left)} first.",
            "Run again: what is finished is kept.",
        )


def _no_records(found: str) -> InputError:
    return InputError(
        "an engine returns the record of each job, as do(job) gave it.", f"{found}.", "Return do(job) of every job."
    )
