"""The order of blocks: a shuffle that any stretch of can be found alone, and that keeps row groups near."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.loading.order import Order


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 700), st.integers(1, 9), st.integers(1, 7), st.integers(0, 5), st.data())
def test_every_block_once_and_any_stretch_alone(n: int, group: int, bucket: int, epoch: int, data: st.DataObject) -> None:
    order = Order(n, 3, epoch, group, bucket)
    whole = order.blocks(0, n)
    assert sorted(whole.tolist()) == list(range(n))
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    assert order.blocks(start, stop).tolist() == whole[start:stop].tolist()
    assert Order(n, 3, epoch, group, bucket).blocks(start, stop).tolist() == whole[start:stop].tolist()


def test_epochs_and_seeds_differ_and_groups_stay_near() -> None:
    order = Order(4096, 0, 0, group=8, bucket_groups=16)
    whole = order.blocks(0, 4096)
    assert whole.tolist() != Order(4096, 0, 1, group=8, bucket_groups=16).blocks(0, 4096).tolist()
    assert whole.tolist() != Order(4096, 1, 0, group=8, bucket_groups=16).blocks(0, 4096).tolist()
    for bucket in whole.reshape(-1, 128):
        assert np.unique(bucket // 8).size == 16
    assert abs(np.corrcoef(np.arange(4096), whole)[0, 1]) < 0.1
    assert (np.diff(whole) == 1).mean() < 0.02


def test_unshuffled_is_as_it_comes() -> None:
    assert Order(9, 0, 4, group=2, shuffle=False).blocks(2, 7).tolist() == [2, 3, 4, 5, 6]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 900), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_many_files_are_shuffled_some_at_a_time(n: int, group: int, bucket: int, file_groups: int, files: int) -> None:
    order = Order(n, 1, 2, group + 1, bucket, True, file_groups, files)
    whole = order.blocks(0, n)
    assert sorted(whole.tolist()) == list(range(n))
    assert Order(n, 1, 2, group + 1, bucket, True, file_groups, files).blocks(n // 3, n).tolist() == whole[n // 3 :].tolist()


def test_few_files_are_in_use_at_a_time() -> None:
    order = Order(64 * 100, 0, 0, group=8, bucket_groups=4, file_groups=8, files=10)
    file_of = order.blocks(0, 6400) // 64
    assert all(np.unique(part).size == 10 for part in file_of.reshape(10, 640))
    assert np.unique(file_of[:640]).tolist() != list(range(10))
