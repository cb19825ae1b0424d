"""A data set whose manifest is a pipe that nobody writes to: only ordinary files are opened, and none is waited for."""

import os
from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "out").mkdir()
    os.mkfifo(folder / "out" / "manifest.json")
    return ["show", str(folder / "out")]
