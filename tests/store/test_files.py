"""Files are whole or not there, and what the system refuses is said with what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloison.errors import StoreError
from cloison.store.files import file_sha256, read_json, replacing, store_errors, sweep, write_json, writer


def test_a_file_is_there_when_its_block_ended_well(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_block_that_ends_badly_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises((type(error), StoreError)), replacing(path) as part:
        part.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EACCES, "the right to it"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "ulimit"),
        (errno.EIO, "Run again"),
    ],
)
def test_the_system_s_refusals_have_three_parts(number: int, remedy: str) -> None:
    with pytest.raises(StoreError) as caught, store_errors("a cannot be written"):
        raise OSError(number, "words of the system")
    assert caught.value.asked == "a cannot be written."
    assert os.strerror(number) in caught.value.found
    assert remedy in caught.value.remedy


def test_only_the_leavings_of_the_dead_are_swept(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    gone = tmp_path / f"a.{node()}-{dead.stdout.strip()}.part"
    mine = tmp_path / f"b.{writer()}.part"
    for path in (gone, mine, tmp_path / "whole"):
        path.write_text("")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.name, "whole"])
    sweep(tmp_path, alone=True)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def node() -> str:
    return writer().rpartition("-")[0]


def test_what_another_machine_writes_stays_until_it_is_silent(tmp_path: Path) -> None:
    written, silent = tmp_path / "a.other-1.part", tmp_path / "b.other-1.part"
    for path in (written, silent):
        path.write_text("")
    os.utime(silent, (1e9, 1e9))
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [written.name]
    sweep(tmp_path, alone=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_zombie_writes_no_more_and_a_number_that_was_given_again_is_another_s(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
            time.sleep(0.01)
        zombie = tmp_path / f"a.{node()}-{process.pid}.part"
        older = tmp_path / f"b.{writer()}.part"  # written by one that had our number before this process began
        for path in (zombie, older):
            path.write_text("")
        os.utime(older, (1e9, 1e9))
        sweep(tmp_path)
        assert not list(tmp_path.iterdir())


def test_json_comes_back_also_with_lone_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_json(path) is None
    write_json(path, {"b": ["\ud800", 1], "a": None})
    assert read_json(path) == {"b": ["\ud800", 1], "a": None}
    path.write_text("{")
    with pytest.raises(StoreError, match="must be JSON"):
        read_json(path)


def test_a_hash_of_what_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        file_sha256(tmp_path / "none")
