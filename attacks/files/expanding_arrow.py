"""A few kilobytes of Arrow whose one buffer would become 600 MB: what a batch expands to is added up before it is read."""

from pathlib import Path

import numpy as np
import pyarrow as pa


def make(folder: Path) -> list[str]:
    table = pa.table({"text": pa.array(np.zeros(75_000_000, np.int64))})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(folder / "bomb.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return ["pack", str(folder / "bomb.arrow"), "--out", str(folder / "out"), "--capacity", "64"]
