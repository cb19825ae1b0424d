"""An array of lengths that is a pickle and would write a file when loaded: pickles are never loaded."""

import os
from pathlib import Path

import numpy as np


class _Owned:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def make(folder: Path) -> list[str]:
    np.save(folder / "lengths.npy", np.array([_Owned(str(folder / "owned"))], object), allow_pickle=True)
    return ["plan", str(folder / "lengths.npy"), "--capacity", "64"]
