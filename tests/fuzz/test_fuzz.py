"""A small share of `make fuzz`: a few changed files of every kind, each an error of ours or a right result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.child import prepare
from tests.fuzz.running import fuzz
from tests.fuzz.subjects import SUBJECTS

NAMES = sorted(SUBJECTS)


@pytest.mark.parametrize("part", [0, 1])
def test_changed_files_are_errors_of_ours_or_read_right(part: int, tmp_path: Path) -> None:
    assert not fuzz(NAMES[part::2], tmp_path, 8, 17)


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """The judge can tell: records that are not those of the file, and a store whose result is another."""
    lines = SUBJECTS["lines"]
    lines.write(tmp_path)
    right = lines.read(tmp_path)
    assert not lines.judge(tmp_path, right, None)
    assert "another reader finds" in lines.judge(tmp_path, right[1:], None)
    store = SUBJECTS["token store"]
    assert store.judge(tmp_path, 1, 2) and not store.judge(tmp_path, 1, 1)


def test_a_reader_that_crashes_is_seen(tmp_path: Path) -> None:
    wrong = fuzz(["no such subject"], tmp_path, 1, 0)
    assert "KeyError" in wrong and "status 1" in wrong
    assert callable(prepare)
