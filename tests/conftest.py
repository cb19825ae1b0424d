"""Fixtures that every test may use."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.places.server import ObjectStore, serving

settings.register_profile("untimed", deadline=None)  # no test is timed: a busy machine fails none
settings.load_profile("untimed")


def _shared() -> Path | None:
    named = os.environ.get("CLOISON_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that need it skip where it is absent."""
    folder = _shared()
    if folder is None:
        pytest.skip("the folder of shared data is not beside this checkout (set CLOISON_SHARED)")
    return folder


@pytest.fixture(scope="session")
def cases(shared: Path) -> dict[str, dict[str, Any]]:
    """The reported faults by id."""
    lines = (shared / "cases" / "reported_faults.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@pytest.fixture(scope="session")
def qwen3(shared: Path) -> Path:
    """The folder of a real tokenizer with its chat template."""
    return shared / "tokenizers" / "qwen3"


@pytest.fixture
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test alone, also for the processes that it starts."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def bare_memory(own_scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fsspec's file system in memory, empty, in which nothing can be renamed or copied."""
    from fsspec.implementations.memory import MemoryFileSystem

    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("a store of objects does not rename")

    for name in ("mv", "mv_file", "move", "rename", "copy", "cp_file"):
        monkeypatch.setattr(MemoryFileSystem, name, refused, raising=False)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    yield MemoryFileSystem()


@pytest.fixture
def loopback(own_scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store of objects that this process and those that it starts reach as ``loopback://``."""
    import fsspec

    plugin = str(Path(__file__).parent / "places" / "plugin")
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", plugin + (os.pathsep + known if known else ""))
    monkeypatch.syspath_prepend(plugin)
    with serving() as store:
        monkeypatch.setenv("FSSPEC_LOOPBACK_ENDPOINT", store.endpoint)
        monkeypatch.setitem(fsspec.config.conf, "loopback", {"endpoint": store.endpoint})
        fsspec.register_implementation("loopback", "loopback_store.LoopbackFileSystem", clobber=True)
        yield store
    sys.modules.pop("loopback_store", None)
