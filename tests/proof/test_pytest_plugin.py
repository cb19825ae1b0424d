"""The fixture fails a test that packs wrongly, and passes one that packs right."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest_plugins = ["pytester"]

TESTS = """
from cloison.proof.signals import signal
from cloison.proof.tiny import tiny_model


def test_right(cloison_verify):
    assert cloison_verify(tiny_model("llama")[0], collate=signal("positions")).ok


def test_wrong(cloison_verify):
    cloison_verify(tiny_model("llama")[0], collate=signal("positions-ones"))


def test_allowed(cloison_verify):
    report = cloison_verify(tiny_model("llama")[0], collate=signal("positions-ones"), allow=["leak", "mismatch"])
    assert not report.ok
"""


def test_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    arguments = ["-p", "no:cacheprovider", "-p", "no:cloison", "-p", "cloison.proof.pytest_plugin"]
    result = pytester.runpytest_inprocess(*arguments)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*cloison found: leak*", "*LEAK*cells moved*"])


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"cloison": "cloison.proof.pytest_plugin"}
