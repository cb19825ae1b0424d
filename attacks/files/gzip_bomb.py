"""A few kilobytes of gzip that expand to one line of 400 MB: read through a buffer, and a line has a limit."""

import gzip
from pathlib import Path


def make(folder: Path) -> list[str]:
    with gzip.open(folder / "bomb.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(400):
            file.write(b"x" * (1 << 20))
    return ["pack", str(folder / "bomb.jsonl.gz"), "--out", str(folder / "out"), "--capacity", "64"]
