"""An Arrow file of some hundred bytes with two billion rows of nothing: rows are held against the bytes of their batch."""

from pathlib import Path

import pyarrow as pa


def make(folder: Path) -> list[str]:
    nothing = pa.Array.from_buffers(pa.null(), 2_000_000_000, [None])
    batch = pa.record_batch([nothing], ["text"])
    with pa.OSFile(str(folder / "bomb.arrow"), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return ["pack", str(folder / "bomb.arrow"), "--out", str(folder / "out"), "--capacity", "64", "--on-error", "skip"]
