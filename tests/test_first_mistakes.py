"""What people do wrong first: each message names what was passed and what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloison
from cloison.cli import main
from cloison.errors import InputError, ManifestError, RecordError


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    path.write_text("\n".join(json.dumps({"input_ids": list(range(1, n))}) for n in range(3, 20)))
    return path


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_a_source_is_not_opened_as_a_data_set(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        cloison.open(ids)
    assert (caught.value.found, caught.value.asked) == ("It is a file.", f"{ids} must be a packed data set.")
    assert "Name the folder that pack wrote" in complaint(capsys, "show", str(ids))


def test_rows_of_another_library_are_no_blocks(ids: Path, tmp_path: Path) -> None:
    packed = cloison.pack(str(ids), tmp_path / "out", cloison.PackSpec(32))
    with pytest.raises(InputError) as caught:
        cloison.collate([{"input_ids": [1], "labels": [1]}])  # type: ignore[list-item]
    assert "cloison.open(DIR)" in caught.value.remedy
    with pytest.raises(InputError, match="packed"):
        cloison.collate([[1, 2]])  # type: ignore[list-item]
    with pytest.raises(IndexError, match=f"block {len(packed)} of a packed data set of {len(packed)} blocks"):
        packed[len(packed)]
    assert packed[-1] == packed[len(packed) - 1]


def test_a_broken_record_may_be_mended_or_left_out(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids.write_text(ids.read_text() + '\n{"input_ids": [1')
    with pytest.raises(RecordError) as caught:
        cloison.pack(str(ids), tmp_path / "out", cloison.PackSpec(32))
    assert caught.value.remedy == 'Mend the line. on_error="skip" leaves such records out, and counts them.'
    said = complaint(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "32")
    assert "Mend the line. --on-error skip leaves such records out" in said
    assert (
        cloison.pack(str(ids), tmp_path / "out", cloison.PackSpec(32), on_error="skip").ledger.entries["skipped"].samples == 1
    )


def test_the_command_line_speaks_of_options(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Pass --capacity TOKENS." in complaint(capsys, "pack", str(ids), "--out", str(tmp_path / "out"))
    assert "Add --out DIR" in complaint(capsys, "pack", str(ids), "--capacity", "32")
