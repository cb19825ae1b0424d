"""Row groups of a data set that others cut or damage while it is read: an error, and never the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cloison
from cloison import PackSpec, pack
from cloison.errors import ChangedError, StoreError
from tests.packing.corpus import token_records, write_lines


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cloison.store.shards.GROUP_TOKENS", 1 << 10)
    pack(str(write_lines(tmp_path / "a.jsonl", token_records(3000, 1))), tmp_path / "out", PackSpec(64, overflow="split"))
    return tmp_path / "out"


def test_a_shard_that_is_cut_while_a_loader_reads_it_is_an_error(packed: Path) -> None:
    """In a process of its own, which a mapped file would end by SIGBUS."""
    code = """
import os, sys
import cloison
from cloison.errors import StoreError
data = cloison.open(sys.argv[1])
groups = -(-len(data) // data.manifest.blocks_per_group)
assert groups > 2
loader = iter(cloison.loader(data, lambda blocks: blocks, blocks_per_step=4, shuffle=False, prefetch=0))
next(loader)
os.truncate(data.path / data.manifest.shards[0].name, 5000)
try:
    for batch in loader:
        pass
except StoreError as error:
    print(error.asked, error.found)
"""
    done = subprocess.run([sys.executable, "-c", code, str(packed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "blocks-00000.parquet cannot be read" in done.stdout and "damaged" in done.stdout
    with pytest.raises(ChangedError, match="must have"):
        cloison.open(packed)


def test_a_column_with_fewer_blocks_than_are_stated_is_an_error(packed: Path) -> None:
    """A page that is passed over, since its head lies, would leave boundaries out without a word."""
    data = cloison.open(packed)
    path = packed / data.manifest.shards[0].name
    whole = path.read_bytes()
    refused = []
    for at in range(4, 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        try:
            ids = cloison.open(packed).groups(1).column("input_ids")[1]
            assert ids.size == len(data)
        except StoreError as error:
            refused.append(error.found)
    assert any("are stated" in found for found in refused)
