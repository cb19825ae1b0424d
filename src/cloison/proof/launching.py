"""Run a training command unchanged, audited from inside, up to the end of its first step."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloison.errors import InputError
from cloison.findings import Finding
from cloison.proof.report import Verdict, VerifyReport

__all__ = ["Launched", "launch"]

_STANDARD_ERROR = 2

_INJECTED = Path(__file__).parent / "injected"


@dataclass(frozen=True)
class Launched:
    """How an audited command ended.

    Attributes:
        report: what its first step showed.
        status: the command's own exit status.
    """

    report: VerifyReport
    status: int


def launch(command: Sequence[str], *, timeout_s: float | None = None, env: Mapping[str, str] | None = None) -> Launched:
    """Run ``command`` up to the end of its first training step, and return what the audit of that step says.

    The command is not changed: its Python (and every Python that it starts) is told by PYTHONPATH to audit the trainers of
    transformers and TRL when they are imported (and else the first module that is called with ids, up to its ``backward``, as
    `watch` does), and to end after one step. Nothing is saved and no run is reported. Its output
    goes to standard error.

    Args:
        command: program and arguments, as ``["torchrun", "--nproc-per-node", "2", "train.py"]``.
        timeout_s: seconds after which the command is ended; None waits.
        env: the environment; None: this process's.

    Raises:
        InputError: no command, one that does not start, one that ends (or runs out of time) without a training step.
    """
    if not command:
        raise InputError("audit needs a command.", "There is none after --.", "Run: cloison audit -- python train.py")
    with tempfile.TemporaryDirectory(prefix="cloison-audit-") as folder:
        path = Path(folder) / "report.json"
        given = dict(os.environ if env is None else env)
        before = given.get("PYTHONPATH")
        given |= {
            "CLOISON_AUDIT_REPORT": str(path),
            "PYTHONPATH": os.pathsep.join([str(_INJECTED), *([before] if before else [])]),
            "WANDB_MODE": "disabled",
        }
        status = _run(list(command), given, timeout_s)
        missing = Path(f"{path}.missing")
        if not path.exists():
            _no_step(command, status, missing.read_text() if missing.exists() else "")
        return Launched(_from_plain(json.loads(path.read_text(encoding="utf-8"))), status)


def _run(command: list[str], env: dict[str, str], timeout_s: float | None) -> int:
    try:
        process = subprocess.Popen(command, env=env, stdout=_STANDARD_ERROR, start_new_session=True)
    except OSError as error:
        script = command[0].endswith(".py")
        remedy = f"Name what runs it: cloison audit -- python {command[0]}" if script else "Check its path."
        raise InputError(f"the command {command[0]!r} must start.", f"{error.strerror}.", remedy) from error
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return -signal.SIGKILL
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started: it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _no_step(command: Sequence[str], status: int, missing: str) -> None:
    said = shlex.join(command)
    if missing:
        raise InputError(
            f"{said} must be able to import cloison.", f"It cannot ({missing}).", "Install cloison in the Python that trains."
        )
    ended = "ran out of time" if status == -signal.SIGKILL else f"ended with status {status}"
    raise InputError(
        f"{said} must reach a training step.",
        f"It {ended} before a first step, of a transformers Trainer (TRL's and axolotl's are) or of a torch loop, was through.",
        "Read its output above. A loop of your own can use cloison.watch(model) itself.",
    )


def _from_plain(plain: Mapping[str, Any]) -> VerifyReport:
    verdicts = tuple(Verdict(v["experiment"], v["status"], v["summary"], v["evidence"]) for v in plain["verdicts"])
    findings = tuple(Finding(f["kind"], f["severity"], f["message"], f["fix"], f["where"]) for f in plain["findings"])
    matrix = plain["influence"]
    influence = None
    if matrix is not None:
        influence = np.array([[np.nan if cell is None else cell for cell in row] for row in matrix], np.float64)
    return VerifyReport(verdicts, findings, influence, plain["certificate"])
