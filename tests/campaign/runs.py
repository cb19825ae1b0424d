"""The main job as the campaigns run it: real chats and their tokenizer, many chunks and shards, its command line, its files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cloison
from tests.packing.corpus import chats, write_lines

__all__ = ["Job", "differing", "finished_pieces", "last_run", "made_again", "remains", "tree", "write_source"]

CAPACITY, SEGMENTS = 1 << 22, 12
"""Blocks of a few samples, each as wide as a shard: many shards from little text."""

ROOT = Path(__file__).resolve().parents[2]


def write_source(folder: Path, files: int = 10, records: int = 40) -> Path:
    """Write a source of several files of chats: a chunk each."""
    folder.mkdir(parents=True)
    for number in range(files):
        write_lines(folder / f"part-{number:02}.jsonl", chats(records, number))
    return folder


@dataclass(frozen=True)
class Job:
    """One ``cloison pack``.

    Attributes:
        source: what is read.
        folder: holds the data set (``out``) and the token store (``tokens``).
        workers: processes.
    """

    source: Path
    folder: Path
    workers: int = 1

    @property
    def words(self) -> list[str]:
        """The command line."""
        tokenizer = Path(cloison.__file__).parent / "story" / "tokenizer"
        words = ["pack", str(self.source), "--out", str(self.folder / "out"), "--tokenizer", str(tokenizer)]
        words += ["--capacity", str(CAPACITY), "--max-segments", str(SEGMENTS), "--workers", str(self.workers)]
        return [sys.executable, "-m", "cloison.cli", *words, "--json"]

    def start(self, **options: object) -> subprocess.Popen[str]:
        """Start it, in a session of its own and without a word on the terminal."""
        said = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True, "cwd": ROOT, **options}
        return subprocess.Popen(self.words, text=True, **said)  # type: ignore[call-overload, no-any-return]

    def run(self, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run it to its end, with ``more`` in its environment."""
        environment = {**os.environ, **(more or {})}
        return subprocess.run(self.words, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)


def tree(folder: Path) -> dict[str, str]:
    """Return the files under ``folder`` with their hashes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def finished_pieces(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the chunks and shards recorded as finished, with inode and time: who makes one anew changes those."""
    out = {}
    for record in (*folder.glob("tokens/*/chunk-*.json"), *folder.glob("out/.work/blocks-*.json")):
        if record.name.startswith("chunk-"):
            piece = record.with_suffix(".arrow")
        else:
            piece = folder / "out" / json.loads(record.read_text(encoding="utf-8"))["shard"]["name"]
        out[str(piece.relative_to(folder))] = _state(piece)
    return out


def made_again(before: Mapping[str, tuple[int, int]], folder: Path) -> list[str]:
    """Return the pieces, finished ``before``, that are there as other files."""
    return [name for name, state in before.items() if (folder / name).exists() and _state(folder / name) != state]


def differing(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """Return the names under ``folder`` that are not as in an undisturbed run: missing, strays, or of other bytes."""
    found = tree(folder)
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def last_run(job: Job, expected: Mapping[str, str]) -> str:
    """Run ``job`` to its end, and return what is wrong ("" for nothing): its status, work done twice, other bytes."""
    before = finished_pieces(job.folder)
    done = job.run()
    if done.returncode:
        return f"the last run ended with status {done.returncode}: {done.stderr[-800:]}"
    if again := made_again(before, job.folder):
        return f"made again although they were finished: {again}"
    differ = differing(job.folder, expected)
    return f"not as in an undisturbed run: {differ}" if differ else ""


def remains(folder: Path) -> list[str]:
    """Return what a run that ended with an error must not leave: unfinished files, a manifest."""
    return [str(path) for path in folder.rglob("*") if path.name.endswith(".part") or path.name == "manifest.json"]


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_ino, state.st_mtime_ns
