"""Every attack of ``attacks/`` is stopped, by the real command line, in the way that its table says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import cloison
from cloison.cli import main
from cloison.text import encoder
from cloison.text.sandbox import Sandbox
from tests.packing.corpus import chats, write_lines

HOME = Path(__file__).resolve().parents[1] / "attacks"
ROW = re.compile(r"^\| `(?P<file>[^`]+)` \| (?P<aim>[^|]+) \| (?P<check>[^|]+) \| (?P<status>\d) \| `(?P<said>[^`]+)` \|$")
ATTACKS = {
    found["file"]: (int(found["status"]), found["said"])
    for line in (HOME / "README.md").read_text(encoding="utf-8").splitlines()
    if (found := ROW.match(line))
}
TOKENIZER = str(Path(cloison.__file__).parent / "story" / "tokenizer")
HEAVY = {
    f"files/{name}.py"
    for name in ("gzip_bomb", "zstd_bomb", "document_bomb", "mds_bomb", "long_line", "expanding_parquet", "expanding_arrow")
}
"""Those that go for memory: they run in a process of their own, whose peak is measured."""

MEMORY_BYTES = 1 << 30
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def command(name: str, folder: Path) -> list[str]:
    """Return the words of the command line that meets the attack ``name``; its files go to ``folder``."""
    kind = name.partition("/")[0]
    words = ["--out", str(folder / "out"), "--capacity", "4096", "--tokenizer", TOKENIZER]
    if kind == "templates":
        source = write_lines(folder / "chats.jsonl", chats(1, 0))
        return ["pack", str(source), *words, "--chat-template", str(HOME / name)]
    if kind == "sources":
        return ["pack", str(HOME / name), *words]
    spec = importlib.util.spec_from_file_location("attack", HOME / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: list[str] = module.make(folder)
    return made


def test_the_table_has_every_attack_and_no_other() -> None:
    files = {str(path.relative_to(HOME)) for path in HOME.glob("*/*") if path.is_file() and path.suffix != ".pyc"}
    assert files == set(ATTACKS)


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - HEAVY))
def test_it_is_stopped(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = ATTACKS[name]
    # The limits are 10 s and 4 GiB; smaller ones are met sooner.
    seconds = 1.0 if "endless" in name else 20.0
    monkeypatch.setattr(encoder, "Sandbox", partial(Sandbox, seconds=seconds, limit_bytes=1 << 30))
    words = command(name, tmp_path)
    found = main(words)
    shown = capsys.readouterr()
    assert found == status, shown.err
    assert said in " ".join((shown.out + shown.err).split())
    assert not CONTROL.search(shown.out + shown.err)
    assert not (tmp_path / "owned").exists()
    assert not list(tmp_path.glob("elsewhere/*"))
    assert [path.read_text() for path in tmp_path.glob("victim*")] in ([], ["kept"])
    if status:
        assert not (tmp_path / "out" / "manifest.json").exists() or words[0] in ("show", "check")
        assert not list(tmp_path.rglob("*.part"))


MEASURED = """
import sys
from pathlib import Path
from cloison.cli import main
try:
    status = main(sys.argv[1:])
finally:  # not ru_maxrss: it begins with that of the process that started this one
    print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(status)
"""
"""The command line, which then prints the most memory that it held, in KiB."""


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory of a process is read from /proc")
@pytest.mark.parametrize("name", sorted(HEAVY))
def test_it_is_stopped_before_it_fills_memory(name: str, tmp_path: Path) -> None:
    status, said = ATTACKS[name]
    words = command(name, tmp_path)
    files = {path: path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file()}
    assert all(size < 8 << 20 for size in files.values()), "a bomb is small"
    ran = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True)
    assert ran.returncode == status, ran.stderr
    assert said in " ".join(ran.stderr.split())
    assert int(ran.stdout.split()[-1]) << 10 < MEMORY_BYTES


@pytest.mark.parametrize("name", ["escape_codes.jsonl", "html.jsonl"])
def test_what_is_shown_does_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that is packed, since it is only text, is shown as text: in the terminal, and on a page."""
    assert main(command(f"sources/{name}", tmp_path)) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "out"), "--tokenizer", TOKENIZER]) == 0
    shown = capsys.readouterr().out
    assert not CONTROL.search(shown)
    assert "owned" in shown
    assert main(["show", str(tmp_path / "out"), "--tokenizer", TOKENIZER, "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>document" not in page and "<img src=x" not in page and not CONTROL.search(page)
