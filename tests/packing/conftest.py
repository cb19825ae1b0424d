"""A small corpus of chats in several files, and the tokenizer that the project ships."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import cloison
from tests.packing.corpus import chats, token_records, write_lines


@pytest.fixture(scope="session")
def tokenizer() -> str:
    """The folder of the small tokenizer with a chat template that comes with the project."""
    return str(Path(cloison.__file__).parent / "story" / "tokenizer")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of six files of chats: at least six chunks."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(6):
        write_lines(folder / f"part-{number}.jsonl", chats(25, number))
    return folder


@pytest.fixture(scope="session")
def token_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of records that are token ids."""
    folder = tmp_path_factory.mktemp("tokens")
    for number in range(6):
        write_lines(folder / f"part-{number}.jsonl", token_records(25, number))
    return folder


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, str]]:
    """Return the files under a folder with their hashes."""

    def read(folder: Path) -> dict[str, str]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return read
