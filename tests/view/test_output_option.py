"""What exists is never replaced unasked, in no command, and that is said before the work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cloison.cli import main


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    import cloison

    source = tmp_path / "ids.jsonl"
    source.write_text("".join(json.dumps({"input_ids": [4 + n % 60, 5, 6]}) + "\n" for n in range(9)))
    cloison.pack(source, tmp_path / "packed", cloison.PackSpec(16, append_eos="never"))
    np.save(tmp_path / "lengths.npy", np.arange(1, 9))
    return tmp_path


COMMANDS = {
    "show": ["show", "packed", "--html", "file"],
    "plan": ["plan", "lengths.npy", "--capacity", "8", "--policy", "in_order", "--html", "file"],
    "unpack": ["unpack", "packed", "file"],
    "verify": ["verify", "llama", "--html", "file"],
    "audit": ["audit", "--html", "file", "--", "no-such-program"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_that_exists_is_kept(name: str, packed: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(packed)
    Path("file").write_text("mine")
    if name in ("verify", "audit"):  # nothing is loaded or started before it is said
        monkeypatch.setattr("cloison.proof.models.load_model", None)
        monkeypatch.setattr("cloison.proof.launching.launch", None)
    assert main(COMMANDS[name]) == 2
    said = capsys.readouterr().err
    assert f"cloison {name}: file was to be written." in said and "--force" in said
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("name", ["show", "plan", "unpack"])
def test_force_replaces_it(name: str, packed: Path, monkeypatch) -> None:
    monkeypatch.chdir(packed)
    Path("file").write_text("mine")
    first, *rest = COMMANDS[name]
    assert main([first, "--force", *rest]) == 0
    assert Path("file").read_text() != "mine"


def test_a_report_is_written_as_a_page(packed: Path, monkeypatch) -> None:
    from cloison.proof.launching import Launched
    from cloison.proof.report import Verdict, VerifyReport

    monkeypatch.chdir(packed)
    report = VerifyReport((Verdict("isolation", "exact", "0 of 2 cells moved"),))
    monkeypatch.setattr("cloison.proof.launching.launch", lambda *_, **__: Launched(report, 0))
    assert main(["audit", "--html", "audit.html", "--", "python", "<train>.py"]) == 0
    page = Path("audit.html").read_text()
    assert "0 of 2 cells moved" in page and "the first step of: python" in page and "<train>" not in page
