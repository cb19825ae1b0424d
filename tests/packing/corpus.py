"""Records for tests: chats of a few words, and files of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["chats", "token_records", "write_lines"]

WORDS = "the quick brown fox jumps over a lazy dog and then some more of it until evening falls".split()  # noqa: SIM905


def chats(count: int, seed: int) -> list[dict[str, Any]]:
    """Return ``count`` chats of one to three turns."""
    random = np.random.default_rng(seed)

    def words() -> str:
        return " ".join(random.choice(WORDS, random.integers(1, 14)))

    out = []
    for number in range(count):
        messages = []
        for _ in range(random.integers(1, 4)):
            messages += [{"role": "user", "content": words()}, {"role": "assistant", "content": words()}]
        out.append({"messages": messages, "source": f"s{number % 3}", "score": float(random.integers(0, 9))})
    return out


def token_records(count: int, seed: int, longest: int = 40) -> list[dict[str, Any]]:
    """Return ``count`` records of token ids with a completion mask."""
    random = np.random.default_rng(seed)
    out = []
    for number in range(count):
        size = int(random.integers(2, longest))
        mask = [0] * (size // 2) + [1] * (size - size // 2)
        ids = random.integers(0, 1000, size).tolist()
        out.append({"input_ids": ids, "completion_mask": mask, "source": f"s{number % 3}"})
    return out


def write_lines(path: Path, records: list[Any]) -> Path:
    """Write ``records`` as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
