"""A folder with links to a file and a folder outside: they are not followed, and that is said."""

from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "outside").mkdir()
    (folder / "outside" / "owned.jsonl").write_text('{"input_ids": [7, 7, 7]}\n')
    (folder / "source").mkdir()
    (folder / "source" / "a.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    (folder / "source" / "b.jsonl").symlink_to(folder / "outside" / "owned.jsonl")
    (folder / "source" / "c").symlink_to(folder / "outside")
    return ["pack", str(folder / "source"), "--out", str(folder / "out"), "--capacity", "64"]
