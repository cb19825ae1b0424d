"""A Megatron index that states a trillion sequences: held against the size of the file before anything is allocated."""

import struct
from pathlib import Path


def make(folder: Path) -> list[str]:
    (folder / "x.idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 1 << 40, 2) + b"\0" * 64)
    (folder / "x.bin").write_bytes(b"\0" * 64)
    return ["import", str(folder / "x"), str(folder / "out"), "--from", "megatron"]
