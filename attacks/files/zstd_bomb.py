"""A few kilobytes of zstd that expand to one record of 300 MB in an array: read through a buffer, and a record has a limit."""

from pathlib import Path

import pyarrow as pa


def make(folder: Path) -> list[str]:
    with pa.output_stream(str(folder / "bomb.json.zst"), compression="zstd") as stream:
        stream.write(b'[{"text": "')
        for _ in range(300):
            stream.write(b"x" * (1 << 20))
        stream.write(b'"}]')
    return ["pack", str(folder / "bomb.json.zst"), "--out", str(folder / "out"), "--capacity", "64"]
