"""A manifest in which one number was changed: its seal does not fit any more."""

from pathlib import Path

from cloison import PackSpec, pack


def make(folder: Path) -> list[str]:
    (folder / "a.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    pack(str(folder / "a.jsonl"), folder / "out", PackSpec(8))
    path = folder / "out" / "manifest.json"
    path.write_text(path.read_text().replace('"num_targets": 2', '"num_targets": 3'))
    return ["show", str(folder / "out")]
