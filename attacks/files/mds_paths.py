"""An MDS index that names a shard outside of its folder: names are names, not paths."""

import json
from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "mds").mkdir()
    (folder / "owned.mds").write_bytes(b"\0" * 64)
    data = {"basename": "../owned.mds", "bytes": 64, "hashes": {}}
    shard = {"column_names": ["tokens"], "column_encodings": ["ndarray:int32"], "column_sizes": [None], "samples": 1}
    index = {"version": 2, "shards": [shard | {"raw_data": data, "zip_data": None, "compression": None}]}
    (folder / "mds" / "index.json").write_text(json.dumps(index))
    return ["import", str(folder / "mds"), str(folder / "out"), "--from", "mds"]
