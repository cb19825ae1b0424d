"""The command line in environments that others leave to it: the same bytes, or an error of ours, and never half of either."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cloison
from tests.campaign.runs import tree
from tests.packing.corpus import chats, write_lines

pytestmark = pytest.mark.skipif(os.name != "posix", reason="standard streams and limits as POSIX has them")

TOKENIZER = str(Path(cloison.__file__).parent / "story" / "tokenizer")
HOME = str(Path(cloison.__file__).parents[1])


def words(folder: Path, *more: str, source: str = "") -> list[str]:
    pack = [sys.executable, "-m", "cloison.cli", "pack", source or str(folder / "in"), "--out", str(folder / "out")]
    return [*pack, "--tokenizer", TOKENIZER, "--capacity", "512", *more]


def shell(script: str, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` as ``"$@"`` of a script of bash."""
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (HOME, os.environ.get("PYTHONPATH"))))}
    return subprocess.run(
        ["bash", "-c", script, "bash", *command],
        capture_output=True,
        text=True,
        env={**known, **environment},
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of an ordinary run."""
    folder = tmp_path_factory.mktemp("ordinary")
    made(folder)
    done = shell('"$@"', words(folder))
    assert done.returncode == 0, done.stderr
    return tree(folder / "out")


def made(folder: Path) -> Path:
    (folder / "in").mkdir()
    for number in range(3):
        write_lines(folder / "in" / f"{number}.jsonl", chats(20, number))
    return folder


@pytest.mark.parametrize(
    "script",
    [
        'ulimit -n 24; umask 077; unset HOME; "$@"',  # numba and tokenizers find no home
        '"$@" <&- >&- 2>&-',  # the first files that are opened would be standard output, and what is printed in them
    ],
)
def test_the_environment_changes_no_byte(script: str, tmp_path: Path, expected: dict[str, str]) -> None:
    odd = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "7"}
    done = shell(f"cd {tmp_path}; {script}", words(made(tmp_path), "--workers", "2"), PYTHONOPTIMIZE="2", **odd)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "out") == expected


def test_who_reads_no_further_changes_nothing(tmp_path: Path, expected: dict[str, str]) -> None:
    done = shell('"$@" | head -c 1; exit ${PIPESTATUS[0]}', words(made(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "p", "")
    assert tree(tmp_path / "out") == expected
    row = '{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "position_ids": [0, 1, 0, 1]}'
    (tmp_path / "bad.jsonl").write_text(row)
    check = [sys.executable, "-m", "cloison.cli", "check", str(tmp_path / "bad.jsonl")]
    done = shell('"$@" | head -c 1; exit ${PIPESTATUS[0]}', check)
    assert (done.returncode, len(done.stdout)) == (1, 1), "a finding stays one"
    done = shell('"$@" 2>&1 | true; exit ${PIPESTATUS[0]}', words(tmp_path, source="nothing"))
    assert done.returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_answer_that_finds_no_room_is_told_and_the_work_is_done(tmp_path: Path, expected: dict[str, str]) -> None:
    done = shell('"$@" > /dev/full', words(made(tmp_path)))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "standard output must take the answer" in done.stderr and "No space left" in done.stderr
    assert tree(tmp_path / "out") == expected


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    done = shell(f'cd {tmp_path}; mkdir gone; cd gone; rmdir ../gone; "$@"', words(made(tmp_path)))
    assert (done.returncode, done.stdout) == (2, "") and "That one is gone" in done.stderr


def test_closed_standard_input_is_empty(tmp_path: Path) -> None:
    done = shell('"$@" <&-', words(tmp_path, source="-"))
    assert done.returncode == 2 and "standard input must hold records" in done.stderr


def test_runs_at_once_into_one_folder_are_one_run(tmp_path: Path, expected: dict[str, str]) -> None:
    """Each ends well or is told to wait; what is there is whole, and as ever."""
    command = words(made(tmp_path), "--json")
    runs = [
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": HOME}
        )
        for _ in range(3)
    ]
    ends = [(run.communicate(timeout=300)[1], run.returncode) for run in runs]
    assert any(status == 0 for _, status in ends)
    assert all(status == 0 or (status == 2 and "one run at a time" in said) for said, status in ends), ends
    assert tree(tmp_path / "out") == expected
