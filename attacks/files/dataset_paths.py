"""A saved data set whose state names a file outside of its folder: names are names, not paths."""

import json
from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "saved").mkdir()
    (folder / "owned.arrow").write_bytes(b"ARROW1")
    (folder / "saved" / "dataset_info.json").write_text("{}")
    (folder / "saved" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../owned.arrow"}]}))
    return ["pack", str(folder / "saved"), "--out", str(folder / "out"), "--capacity", "64"]
