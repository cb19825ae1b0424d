"""A file whose name would clear the screen and set the window's title, with a broken record: names are shown as symbols."""

from pathlib import Path


def make(folder: Path) -> list[str]:
    path = folder / "a\x1b[2J\x1b]0;owned\x07.jsonl"
    path.write_text("nonsense\n")
    return ["pack", str(folder), "--out", str(folder / "out"), "--capacity", "64"]
