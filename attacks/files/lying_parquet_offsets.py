"""A Parquet footer whose pages lie beyond the end of the file: the reader's error becomes one of ours, with the file's name."""

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def make(folder: Path) -> list[str]:
    wholes = []
    for count in (2, 50_000):
        pq.write_table(pa.table({"input_ids": [list(range(i, i + 9)) for i in range(count)]}), folder / "a.parquet")
        wholes.append((folder / "a.parquet").read_bytes())
    small, large = wholes
    (size,) = struct.unpack("<I", large[-8:-4])
    (folder / "a.parquet").write_bytes(small[: len(small) // 2] + large[-8 - size :])
    return ["pack", str(folder / "a.parquet"), "--out", str(folder / "out"), "--capacity", "64"]
