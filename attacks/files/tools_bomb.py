"""A record whose tools, given as JSON, nest 200,000 levels deep: that record is an error."""

import json
from pathlib import Path

import cloison


def make(folder: Path) -> list[str]:
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (folder / "a.jsonl").write_text(json.dumps({"messages": talk, "tools": "[" * 200_000}))
    tokenizer = Path(cloison.__file__).parent / "story" / "tokenizer"
    words = ["pack", str(folder / "a.jsonl"), "--out", str(folder / "out"), "--capacity", "64"]
    return [*words, "--tokenizer", str(tokenizer)]
