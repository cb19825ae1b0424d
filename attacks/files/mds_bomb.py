"""An MDS shard of a few kilobytes that expands to 1 GB where its index says 64 bytes: read as far as the index says."""

import json
from pathlib import Path

import pyarrow as pa


def make(folder: Path) -> list[str]:
    (folder / "mds").mkdir()
    with pa.output_stream(str(folder / "mds" / "shard.mds.zstd"), compression="zstd") as stream:
        for _ in range(1 << 10):
            stream.write(b"\0" * (1 << 20))
    raw, packed = ({"basename": name, "bytes": 64, "hashes": {}} for name in ("shard.mds", "shard.mds.zstd"))
    shard = {"column_names": ["tokens"], "column_encodings": ["ndarray:int32"], "column_sizes": [None], "samples": 1}
    index = {"version": 2, "shards": [shard | {"raw_data": raw, "zip_data": packed, "compression": "zstd"}]}
    (folder / "mds" / "index.json").write_text(json.dumps(index))
    return ["import", str(folder / "mds"), str(folder / "out"), "--from", "mds"]
