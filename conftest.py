"""The code of README.md and docs/ runs as tests, each page in a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

_home = os.getcwd()


def _enter(namespace: dict[str, Any]) -> None:
    import tempfile

    namespace["_folder"] = tempfile.TemporaryDirectory()
    os.chdir(namespace["_folder"].name)


def _leave(namespace: dict[str, Any]) -> None:
    os.chdir(_home)
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    # tests/test_recipes_apart.py runs them: jax and grain start threads while other tests fork, and MosaicML is elsewhere
    excludes=[f"docs/recipes/{name}.md" for name in ("jax", "grain", "mosaicml", "loaders")],
    path=str(Path(__file__).parent),
    setup=_enter,
    teardown=_leave,
).pytest()
