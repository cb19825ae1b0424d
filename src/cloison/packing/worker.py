"""A worker: a process of its own that prepares one step from a plain file and then does jobs, a line of JSON each.

    python -m cloison.packing.worker SETUP.json     jobs on standard input, results on standard output

It ends within a moment when standard input ends, so that none outlives the process that started it, whatever killed that one.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from cloison.errors import CloisonError
from cloison.packing.plain import error_to_plain

__all__ = ["step"]

_GRACE_S = 0.3


def step(name: str) -> ModuleType:
    """Return the module whose ``prepare`` and ``run`` are the step ``name``."""
    from cloison.packing import fill, tokenise

    return {"tokenise": tokenise, "fill": fill}[name]


def main() -> None:
    """Serve until standard input ends."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogatepass")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    jobs: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    setup = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8", errors="surrogatepass"))
    state: Any = None
    while (line := jobs.get()) is not None:
        job = json.loads(line)
        try:
            module = step(setup["step"])
            state = module.prepare(setup) if state is None else state
            answer = {"result": module.run(state, job)}
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
