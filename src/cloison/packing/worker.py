"""A worker: what any process does with a step's setup and jobs. And the local engine's own worker process:

    python -m cloison.packing.worker SETUP.json     jobs on standard input, answers on standard output, a line of JSON each

That process ends within a moment when standard input ends, so that none outlives the one that started it, whatever killed that.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from cloison.errors import CloisonError, MissingDependencyError, StoreError
from cloison.packing.plain import error_to_plain
from cloison.packing.writers import versions
from cloison.places import Place, place
from cloison.spec import canonical_hash
from cloison.store.files import read_json, write_json

__all__ = ["ONE_THREAD", "Done", "do_job", "publish", "refusal", "step"]

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
"""The environment of a process that shares its machine with as many as there are cores."""

_GRACE_S = 0.3

_LOOKS, _WAIT_S = 6, 0.5
"""How often, and how far apart, a worker looks for a setup file: shared disks show new files a moment late."""


@dataclass(frozen=True)
class Done:
    """What one job took.

    Attributes:
        step: "hash", "tokenise", "plan" or "fill".
        index: of the file, chunk, piece of the plan, or shard.
        seconds: from the job's beginning to its end, where it ended well.
        node: the machine; "" for this one.
        tries: 1, or more where it failed and was done again.
    """

    step: str
    index: int
    seconds: float
    node: str = ""
    tries: int = 1


def step(name: str) -> ModuleType:
    """Return the module whose ``prepare`` and ``run`` are the step ``name``."""
    from cloison.packing import arrange, fill, hashes, tokenise

    return {"hash": hashes, "tokenise": tokenise, "plan": arrange, "fill": fill}[name]


def publish(setup: Mapping[str, Any], scratch: Place) -> tuple[str, str]:
    """Put ``setup`` into ``scratch`` for workers on any machine, and return where, and the seal by which they know it."""
    sealed = {**setup, "versions": versions()}
    seal = canonical_hash(sealed)
    path = scratch / f"{setup['step']}-{seal[:16]}.setup.json"
    write_json(path, sealed)
    return str(path), seal


def do_job(setup: str, seal: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one job of the step whose setup `publish` put at ``setup``, and return its record: plain data, a few kB.

    A function of files: the record says what is now in the chunk or shard that it wrote, whole, and the bytes are the same
    wherever, whenever and however often it is called. What the step's jobs share is kept for the next call.

    Raises:
        StoreError: this machine does not see the setup, or files cannot be read or written.
        MissingDependencyError: this machine has other versions of what shapes the bytes.
        RecordError: a broken record, where the run was not told to skip those.
    """
    if refused := refusal(setup, seal):
        raise refused
    name, state = _prepared(setup, seal)
    record: dict[str, Any] = step(name).run(state, job)
    return record


def refusal(setup: str, seal: str) -> CloisonError | None:
    """Return why this process can do no job of the setup at all; None where it can."""
    found = _read(setup, seal)
    if found is None:
        return StoreError(
            f"every worker must see the files of the run: {place(setup).parent}.",
            f"{platform.node()} does not see {place(setup).name} there.",
            "Use --out and --tokens folders, and sources, that all machines share: a shared disk, or URLs such as s3://.",
        )
    here = versions()
    if differ := [
        f"{name} {here[name]} in place of {known}" for name, known in found["versions"].items() if here[name] != known
    ]:
        return MissingDependencyError(
            "workers must have the versions of the process that started them, or bytes would differ.",
            f"{platform.node()} has {', '.join(differ)}.",
            "Install the same versions on every machine.",
        )
    named_from = found.get("named_from")
    if named_from is not None and os.getcwd() != named_from:
        try:
            os.chdir(named_from)
        except OSError as error:
            return StoreError(
                f"every worker must see the folder that the sources are named from: {named_from}.",
                f"{platform.node()} does not: {error.strerror}.",
                "Start the run in a folder that all machines share, or name the sources from the root.",
            )
    return None


@lru_cache(maxsize=1)
def _sealed(setup: str, seal: str) -> dict[str, Any]:
    for look in range(_LOOKS):
        if look:
            time.sleep(_WAIT_S)
        found = read_json(place(setup))
        if isinstance(found, dict) and canonical_hash(found) == seal:
            return found
    raise FileNotFoundError(setup)


def _read(setup: str, seal: str) -> dict[str, Any] | None:
    try:
        return _sealed(setup, seal)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=1)
def _prepared(setup: str, seal: str) -> tuple[str, Any]:
    found = _sealed(setup, seal)
    return found["step"], step(found["step"]).prepare(found)


def main() -> None:
    """Serve until standard input ends."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogatepass")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    jobs: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    setup = read_json(place(sys.argv[1]))
    state: Any = None
    while (line := jobs.get()) is not None:
        job = json.loads(line)
        try:
            module = step(setup["step"])
            state = module.prepare(setup) if state is None else state
            began = time.monotonic()
            answer = {"result": module.run(state, job), "seconds": time.monotonic() - began}
        except CloisonError as error:
            answer = {"error": error_to_plain(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if setup["step"] == "tokenise" and state is not None:
        state.encoder.close()


def _listen(jobs: queue.Queue[str | None]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    jobs.put(None)
    time.sleep(_GRACE_S)  # a worker that is idle leaves by itself, and takes its renderer along
    os._exit(0)


if __name__ == "__main__":
    main()
