"""A text of a few kilobytes of gzip that is a document of 100 MB: a document has a limit."""

import gzip
from pathlib import Path


def make(folder: Path) -> list[str]:
    with gzip.open(folder / "bomb.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(b"x" * (1 << 20))
    return ["pack", str(folder / "bomb.txt.gz"), "--out", str(folder / "out"), "--capacity", "64"]
