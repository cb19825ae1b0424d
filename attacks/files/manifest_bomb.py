"""A manifest that nests 200,000 levels deep: the parser gives up, and that is an error of ours."""

from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "manifest.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000)
    return ["check", str(folder)]
