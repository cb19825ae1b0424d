"""``cloison audit -- COMMAND``: real commands, unchanged, one step, a report and an exit status."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from cloison.cli import main
from cloison.errors import InputError
from cloison.proof.launching import launch

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def audit(command: list[str], capsys: Any) -> tuple[int, dict[str, Any]]:
    status = main(["audit", "--json", "--timeout", "200", "--", *command])
    plain = json.loads(capsys.readouterr().out)
    assert "verdicts" in plain, plain
    return status, plain


def kinds(plain: dict[str, Any]) -> list[str]:
    return sorted(f["kind"] for f in plain["findings"] if f["severity"] == "error")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [("gpt_oss", ["leak"]), ("wrapped", ["boundary_target", "leak"]), ("cache", ["leak"])],
)
def test_python(setting: str, wanted: list[str], tmp_path: Path, capsys: Any) -> None:
    status, plain = audit([sys.executable, str(HERE / "train_script.py"), setting, str(tmp_path)], capsys)
    assert kinds(plain) == wanted
    assert status == int(bool(wanted))
    assert plain["command_status"] == 0
    assert not (tmp_path / "trained").exists() and not list(tmp_path.glob("checkpoint*"))
    if setting == "wrapped":
        (isolation,) = (v for v in plain["verdicts"] if v["experiment"] == "isolation")
        assert isolation["evidence"]["boundaries"] == "the samples and pieces of them, found in the rows"


def test_torchrun_two_ranks_share_one_verdict(tmp_path: Path, capsys: Any) -> None:
    launcher = [str(BIN / "torchrun"), "--nproc-per-node", "2", "--master-port", port()]
    status, plain = audit([*launcher, str(HERE / "train_script.py"), "ranks", str(tmp_path)], capsys)
    assert status == 1 and kinds(plain) == ["leak", "weights"]
    assert plain["certificate"]["ranks"] == 2
    said = {v["experiment"]: v["summary"] for v in plain["verdicts"]}
    assert "2 of 2 ranks" in said["isolation"] and "mean of means over ranks" in said["weights"]


def test_accelerate_launch(tmp_path: Path, capsys: Any) -> None:
    launcher = [str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    status, plain = audit([*launcher, str(HERE / "train_script.py"), "packing", str(tmp_path)], capsys)
    assert status == 0 and kinds(plain) == []


@pytest.mark.parametrize(("setting", "wanted"), [("right", []), ("wrong", ["leak"])])
def test_a_loop_without_a_trainer(setting: str, wanted: list[str], tmp_path: Path, capsys: Any) -> None:
    status, plain = audit([sys.executable, str(HERE / "loop_script.py"), setting, str(tmp_path)], capsys)
    assert (status, kinds(plain)) == (int(bool(wanted)), wanted)
    assert not (tmp_path / "trained").exists()
    said = {v["experiment"]: v["status"] for v in plain["verdicts"]}
    assert said["targets"] == "right" and said["isolation"] == ("leak" if wanted else "exact")


def test_commands_that_never_reach_a_step() -> None:
    with pytest.raises(InputError, match="ended with status 3"):
        launch([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(InputError, match="ended with status 0"):
        launch([sys.executable, "-c", "import transformers"])
    with pytest.raises(InputError, match="must start"):
        launch(["/no/such/program"])
    with pytest.raises(InputError, match="ran out of time"):
        launch([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=1)
    with pytest.raises(InputError, match="none after --"):
        launch([])


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stderr.write('own sitecustomize ran\\n')\n")
    script = (
        "import sys; from cloison.proof.launching import launch\n"
        "try: launch([sys.executable, '-c', 'pass'])\n"
        "except Exception as error: print(type(error).__name__)"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "InputError"
    assert run.stderr.count("own sitecustomize ran") == 2


def test_a_python_without_cloison_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be able to import cloison"):
        launch([sys.executable, "-S", "-c", "import sitecustomize"])
