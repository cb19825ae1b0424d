"""A prepared output folder whose work folder is a link: nothing is written or removed behind it."""

import json
from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "a.jsonl").write_text(json.dumps({"input_ids": [11, 12, 13]}) + "\n")
    for name in ("elsewhere", "out"):
        (folder / name).mkdir()
    (folder / "out" / ".work").symlink_to(folder / "elsewhere")
    return ["pack", str(folder / "a.jsonl"), "--out", str(folder / "out"), "--capacity", "64"]
