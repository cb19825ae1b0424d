"""A few kilobytes of Parquet that hold 20 million rows of nothing: no training data packs so well."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def make(folder: Path) -> list[str]:
    pq.write_table(pa.table({"text": pa.nulls(20_000_000, pa.int8())}), folder / "bomb.parquet", row_group_size=20_000_000)
    return ["pack", str(folder / "bomb.parquet"), "--out", str(folder / "out"), "--capacity", "64"]
