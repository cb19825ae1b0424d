"""Targets of many segments at once are what `cloison.text.targets.labels` says of each sample alone, cut to its segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.packing.targets import choose, fill_targets, first_targets, flat_ranges, is_weighted
from cloison.segments import IGNORE
from cloison.text.targets import ROLES, SAMPLE, SHAPES, labels, span_array


@st.composite
def sample(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int, bool, int, float]], str]:
    """A length, its spans (in order, apart), and a shape."""
    size = draw(st.integers(0, 24))
    weights = st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.0])
    edges = sorted(draw(st.sets(st.integers(0, size), max_size=8)))
    spans = [
        (a, b, draw(st.integers(0, len(ROLES) - 1)), draw(st.booleans()), number // 2, draw(weights))
        for number, (a, b) in enumerate(zip(edges[::2], edges[1::2], strict=False))
    ]
    if size and draw(st.integers(0, 3)) == 0:
        spans.append((0, size, SAMPLE, False, -1, draw(weights)))
    return size, spans, draw(st.sampled_from(SHAPES))


def _allowed(shape: str, train_on: str) -> bool:
    return not (train_on == "completion" and shape == "messages")


@settings(max_examples=150, deadline=None)
@given(st.lists(sample(), max_size=6), st.sampled_from(["auto", "assistant", "last-assistant", "completion", "all"]), st.data())
def test_many_at_once_are_what_each_is_alone(drawn: list[Any], train_on: str, data: st.DataObject) -> None:
    drawn = [one for one in drawn if _allowed(one[2], train_on)]
    sizes = np.array([size for size, _, _ in drawn], np.int64)
    starts = np.array([data.draw(st.integers(0, size)) for size in sizes], np.int64)
    lengths = np.array([data.draw(st.integers(0, int(n - s))) for n, s in zip(sizes, starts, strict=True)], np.int64)
    samples = [np.arange(100 * i, 100 * i + size, dtype=np.int32) for i, size in enumerate(sizes)]
    spans = np.concatenate([span_array([]), *(span_array(rows) for _, rows, _ in drawn)])
    counts = np.array([len(rows) for _, rows, _ in drawn], np.int64)
    shapes = np.array([SHAPES.index(shape) for _, _, shape in drawn], np.uint8)
    chosen = choose(spans, counts, shapes, train_on)

    whole = [labels(ids, span_array(rows), shape, train_on) for ids, (_, rows, shape) in zip(samples, drawn, strict=True)]
    cuts = [slice(int(a), int(a + n)) for a, n in zip(starts, lengths, strict=True)]
    ids = _joined([one[cut] for one, cut in zip(samples, cuts, strict=True)])
    found = fill_targets(ids, starts, lengths, chosen, weighted=True)

    expected = [np.array(made[cut]) for (made, _), cut in zip(whole, cuts, strict=True)]
    firsts = [int(part[0]) if part.size else IGNORE for part in expected]
    for part in expected:
        part[:1] = IGNORE
    assert found.labels.tolist() == _joined(expected).tolist()
    assert found.first_labels.tolist() == firsts
    targets = found.labels != IGNORE
    assert found.loss_weights is not None
    of_targets = [np.ones(size, np.float32) if w is None else w for (_, w), size in zip(whole, sizes, strict=True)]
    assert (
        found.loss_weights[targets].tolist()
        == _joined([w[cut] for w, cut in zip(of_targets, cuts, strict=True)])[targets].tolist()
    )
    assert sum(count for count, _ in found.roles.values()) == int(targets.sum())

    begins = [np.flatnonzero(made != IGNORE) for made, _ in whole]
    wanted = [int(where[0]) if where.size else int(size) for where, size in zip(begins, sizes, strict=True)]
    assert first_targets(chosen, sizes).tolist() == wanted
    piece = data.draw(st.integers(1, 12))
    begins = [np.flatnonzero((made != IGNORE) & (np.arange(made.size) % piece > 0)) for made, _ in whole]
    wanted = [int(where[0]) if where.size else int(size) for where, size in zip(begins, sizes, strict=True)]
    assert first_targets(chosen, sizes, piece).tolist() == wanted
    if any(weights is not None for _, weights in whole):
        assert is_weighted(chosen)


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, np.int32), *parts])


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5))))
def test_flat_ranges_are_ranges_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in pairs], np.int64)
    lengths = np.array([length for _, length in pairs], np.int64)
    assert flat_ranges(starts, lengths).tolist() == [place for a, n in pairs for place in range(a, a + n)]
