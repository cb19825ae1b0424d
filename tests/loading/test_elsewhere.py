"""A loader over a data set that is not on the local disk: the same batches, and few waits."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import cloison
from cloison import Packed, PackSpec, loader, pack
from tests.packing.corpus import token_records, write_lines
from tests.places.server import ObjectStore

URL = "loopback://bucket/out"


@pytest.fixture
def both(tmp_path: Path, loopback: ObjectStore) -> tuple[Packed, Packed]:
    """The same data set on the local disk and in a store of objects: many row groups in three files."""
    source = write_lines(tmp_path / "a.jsonl", token_records(2200, 0))
    here = pack(source, tmp_path / "out", PackSpec(1 << 13, max_segments=2))
    assert len(here.manifest.shards) == 3
    for path in (tmp_path / "out").iterdir():
        loopback.objects[f"bucket/out/{path.name}"] = path.read_bytes()
    return here, cloison.open(URL)


def gets(store: ObjectStore) -> int:
    return sum(count for (method, _), count in store.asked.items() if method == "GET")


def test_batches_are_those_of_the_local_disk_and_groups_are_asked_for_together(
    both: tuple[Packed, Packed], loopback: ObjectStore
) -> None:
    here = both[0]
    ours, theirs = (loader(packed, list, blocks_per_step=16, seed=3) for packed in both)
    loopback.asked.clear()
    for mine, other in zip(ours, theirs, strict=True):
        assert [block.sample_ids.tolist() for block in mine] == [block.sample_ids.tolist() for block in other]
        assert all(np.array_equal(a.input_ids, b.input_ids) for a, b in zip(mine, other, strict=True))
    groups = -(-len(here) // here.manifest.blocks_per_group)
    files = len(here.manifest.shards)
    assert gets(loopback) <= groups + 2 * files, "one request a group, and the footers"


def test_one_block_is_two_requests_and_boundaries_are_read_without_tokens(
    both: tuple[Packed, Packed], loopback: ObjectStore
) -> None:
    here, there = both
    loopback.asked.clear()
    assert np.array_equal(there[5].labels, here[5].labels)
    assert sum(loopback.asked.values()) <= 3
    loopback.asked.clear()
    assert there.segments() == here.segments()
    assert gets(loopback) < 2 * len(here) // here.manifest.blocks_per_group
    assert np.array_equal(there.sample_ids(), here.sample_ids())
    copy = pickle.loads(pickle.dumps(there))
    assert (copy.path, copy) == (there.path, here)


def test_a_file_that_is_gone_is_named_when_it_is_opened_and_when_it_is_read(
    both: tuple[Packed, Packed], loopback: ObjectStore
) -> None:
    there = both[1]
    del loopback.objects["bucket/out/blocks-00001.parquet"]
    with pytest.raises(cloison.errors.StoreError, match=r"blocks-00001.parquet cannot be read"):
        there[len(there) // 2]
    with pytest.raises(cloison.errors.ChangedError, match=r"blocks-00001.parquet must be there"):
        cloison.open(URL)
