"""A prepared output folder whose lock is a link to a file of the victim's: the lock is not followed, and cuts nothing."""

import json
from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "a.jsonl").write_text(json.dumps({"input_ids": [11, 12, 13]}) + "\n")
    (folder / "victim.txt").write_text("kept")
    (folder / "out" / ".work").mkdir(parents=True)
    (folder / "out" / ".work" / "lock").symlink_to(folder / "victim.txt")
    return ["pack", str(folder / "a.jsonl"), "--out", str(folder / "out"), "--capacity", "64"]
