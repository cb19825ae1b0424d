"""Rows of fixed width: the compiled passes against slow, obvious ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.formats.rows import lay, number, place, shift


def _slow(blocks: list[list[int]], width: int, ids: np.ndarray, labels: np.ndarray) -> list[list[list[int]]]:
    out = []
    start = 0
    for lengths in blocks:
        inputs, numbers, positions, targets, asked = ([] for _ in range(5))
        for n, length in enumerate(lengths):
            own, wanted = ids[start : start + length].tolist(), labels[start : start + length].tolist()
            inputs += own
            numbers += [n + 1] * length
            positions += range(length)
            following = [*wanted[1:], -100]
            targets += [0 if label == -100 else label for label in following]
            asked += [0 if label == -100 else n + 1 for label in following]
            start += length
        rest = width - len(inputs)
        out.append([inputs + [7] * rest, *(row + [0] * rest for row in (numbers, positions, targets, asked))])
    return out


@settings(max_examples=50, deadline=None)
@given(
    blocks=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=5),
    spare=st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_the_compiled_passes_are_the_slow_ones(blocks: list[list[int]], spare: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = np.array([len(one) for one in blocks], np.int64)
    lengths = np.array([length for one in blocks for length in one], np.int32)
    ids = random.integers(1, 2**31 - 1, lengths.sum(), dtype=np.int32)
    labels = np.where(random.random(ids.size) < 0.4, np.int32(-100), ids)
    width = max(map(sum, blocks)) + spare
    cells = np.full((5, counts.size, width), -5, np.int32)
    lay(ids, lengths, counts, 7, cells[0])
    number(lengths, counts, 1, 0, cells[1])
    place(lengths, counts, cells[2])
    shift(labels, -100, lengths, counts, cells[3], cells[4])
    assert cells.transpose(1, 0, 2).tolist() == _slow(blocks, width, ids, labels)
    strided = np.empty(counts.size, np.dtype([("a", "<f4", (width,)), ("b", "<i4", (width,))]))
    lay(labels, lengths, counts, -100, strided["b"])
    number(lengths, counts, 0, -1, strided["b"])
    assert np.array_equal(strided["b"], cells[1] - 1)
