"""An Arrow file whose lists begin far outside of it: every batch is validated before an offset is followed."""

import struct
from pathlib import Path

import pyarrow as pa


def make(folder: Path) -> list[str]:
    table = pa.table({"input_ids": [[11, 12, 13], [14, 15]]}, schema=pa.schema([("input_ids", pa.list_(pa.int32()))]))
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    body = (folder / "a.arrow").read_bytes()
    offsets = struct.pack("<3i", 0, 3, 5)
    assert body.count(offsets) == 1
    (folder / "a.arrow").write_bytes(body.replace(offsets, struct.pack("<3i", 0, -(1 << 30), 5)))
    return ["pack", str(folder / "a.arrow"), "--out", str(folder / "out"), "--capacity", "64"]
