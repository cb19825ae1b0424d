"""A manifest, with the right seal, that names a shard beside the data set: names are names, not paths."""

import json
from pathlib import Path

from cloison import PackSpec, pack
from cloison.store.records import sealed


def make(folder: Path) -> list[str]:
    (folder / "a.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    pack(str(folder / "a.jsonl"), folder / "out", PackSpec(8))
    (folder / "owned.parquet").write_bytes((folder / "out" / "blocks-00000.parquet").read_bytes())
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    manifest["shards"][0]["name"] = "../owned.parquet"
    (folder / "out" / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return ["show", str(folder / "out")]
