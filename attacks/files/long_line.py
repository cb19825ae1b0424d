"""A line of 256 MB, which takes no room on disk: a line has a limit, and is passed over in pieces."""

from pathlib import Path


def make(folder: Path) -> list[str]:
    with open(folder / "long.jsonl", "wb") as file:
        file.truncate(1 << 28)
    return ["pack", str(folder / "long.jsonl"), "--out", str(folder / "out"), "--capacity", "64"]
