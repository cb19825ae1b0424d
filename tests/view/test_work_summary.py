"""The end of a run on many machines: a row a shard, the slowest where there are many."""

from __future__ import annotations

import pytest
from rich.console import Console

from cloison import PackSpec, pack
from cloison.packing.worker import Done
from cloison.store.packed import Packed
from cloison.view.work_summary import work_summary
from tests.packing.corpus import token_records, write_lines


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A data set of 25 shards."""
    folder = tmp_path_factory.mktemp("packed")
    source = write_lines(folder / "a.jsonl", token_records(75, 0))
    return pack(source, folder / "out", PackSpec(1 << 22, max_segments=3))


def said(packed: Packed, done: list[Done]) -> list[str]:
    console = Console(width=120)
    with console.capture() as got:
        console.print(work_summary(packed, done))
    return [line.rstrip() for line in got.get().splitlines()]


def test_every_shard_has_a_row_with_what_it_took_and_where(packed: Packed) -> None:
    done = [Done("tokenise", 0, 0.5, "here"), Done("fill", 3, 2.0, "node-1", 2), Done("fill", 1, 4.0, "node-2\x1b[31m")]
    lines = said(packed, done)
    assert lines[0] == "1 chunk tokenised on 1 machine: 0.5 s each (median), 0.5 s the longest"
    assert lines[1] == "2 shards written on 2 machines: 3.0 s each (median), 4.0 s the longest; 1 tried again"
    assert lines[2] == "23 shards of an earlier run kept"
    assert lines[3].split() == ["shard", "blocks", "segments", "tokens", "full", "MB", "s", "tries", "on"]
    shard = packed.manifest.shards[3]
    first, second = lines[4].split(), lines[5].split()
    assert first[:4] == ["blocks-00001.parquet", "1", "3", f"{packed.manifest.shards[1].num_tokens:,}"]
    assert second[:4] == ["blocks-00003.parquet", "1", "3", f"{shard.num_tokens:,}"]
    assert second[-3:] == ["2.0", "2", "node-1"]
    assert "\x1b" not in lines[4]


def test_of_many_shards_the_slowest_are_shown(packed: Packed) -> None:
    lines = said(packed, [Done("fill", index, float(index), "n") for index in range(25)])
    assert lines[0] == "no chunk tokenised"
    assert "the 20 slowest of 25 (all with --json):" in lines
    rows = [line.split()[0] for line in lines if line.startswith("blocks-")]
    assert rows == [f"blocks-{index:05d}.parquet" for index in range(5, 25)]
