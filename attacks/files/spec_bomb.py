"""A spec that nests 200,000 levels deep: the parser gives up, and that is an error of ours."""

from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "spec.json").write_text('{"columns":' * 200_000 + "1" + "}" * 200_000)
    (folder / "a.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    return ["pack", str(folder / "a.jsonl"), "--out", str(folder / "out"), "--spec", str(folder / "spec.json")]
