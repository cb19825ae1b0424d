"""Slow and obvious consumers of the forms, and the segments that all their tests draw."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from cloison.blocks import Block
from cloison.samples import Sample
from cloison.segments import Segments


@st.composite
def segments(draw: st.DrawFn, max_rows: int = 3, max_width: int = 40, tails: bool = True) -> Segments:
    """Rows of any lengths, from empty to full, with padding tails (or one row without)."""
    count = draw(st.integers(1, max_rows)) if tails else 1
    rows = [draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)) for _ in range(count)]
    full = max(sum(row) for row in rows)
    return Segments.from_lengths(rows, draw(st.integers(full, max(full, max_width))) if tails else full)


@st.composite
def mask_options(draw: st.DrawFn, num_segments: int, prefix: bool = True) -> dict[str, Any]:
    """Options of `Segments.dense_mask`."""
    options: dict[str, Any] = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["window"] = draw(st.integers(1, 15))
    if draw(st.integers(0, 3)) == 0:
        options["chunk"] = draw(st.integers(1, 9))
    if prefix and draw(st.booleans()):
        options["prefix_lengths"] = draw(st.lists(st.integers(0, 14), min_size=num_segments, max_size=num_segments))
    return options


def a_block(lengths: list[int], capacity: int | None = None, seed: int = 0, vocabulary: int = 90, **fields: Any) -> Block:
    """A block of random tokens 4.. of which about a fifth are no targets."""
    rng = np.random.default_rng(seed)
    parts = Segments.from_lengths([lengths], capacity)
    ids = rng.integers(4, vocabulary, parts.num_tokens)
    labels = np.where(rng.random(ids.size) < 0.2, -100, ids)
    labels[parts.first_tokens()] = -100
    return Block(ids, labels, parts, rng.integers(0, 1000, parts.num_segments), **fields)


def samples_of(blocks: list[Block]) -> list[Sample]:
    return [sample for block in blocks for sample in block.samples()]


def flattened(seg: Segments, **options: Any) -> npt.NDArray[np.bool_]:
    """The dense specification over the flattened [B * T, B * T]."""
    width = seg.width
    out = np.zeros((seg.num_rows * width,) * 2, np.bool_)
    for row, mask in enumerate(seg.dense_mask(**options)[:, 0]):
        out[row * width : (row + 1) * width, row * width : (row + 1) * width] = mask
    return out


def varlen_mask(
    offsets: npt.ArrayLike, longest: int, window_size: tuple[int, int], causal: bool, total: int
) -> npt.NDArray[np.bool_]:
    """What a varlen kernel lets each query see: FlashAttention's documented rule for equal query and key offsets."""
    edges = np.asarray(offsets)
    assert edges.dtype == np.int32
    assert edges[0] == 0
    assert edges[-1] == total, "tokens that no segment covers stay unwritten"
    assert (np.diff(edges) >= 0).all()
    assert type(longest) is int
    assert longest >= np.diff(edges).max()
    left, right = window_size
    out = np.zeros((total, total), np.bool_)
    for start, stop in pairwise(edges):
        for query in range(start, stop):
            for key in range(start, stop):
                seen = (left < 0 or query - key <= left) and (right < 0 or key - query <= right)
                out[query, key] = seen and (not causal or key <= query)
    return out


def recurrence(values: npt.ArrayLike, seq_idx: npt.ArrayLike, decay: float = 0.5) -> list[float]:
    """h = decay * h + x with the state set to zero where ``seq_idx`` changes."""
    out: list[float] = []
    state, last = 0.0, None
    for value, index in zip(np.asarray(values).tolist(), np.asarray(seq_idx).tolist(), strict=True):
        state = value if index != last else decay * state + value
        last = index
        out.append(float(state))
    return out


def causal_sum(values: npt.ArrayLike, seq_idx: npt.ArrayLike, width: int) -> list[float]:
    """A causal convolution of ones over the last ``width`` tokens that share the ``seq_idx``."""
    x, index = np.asarray(values), np.asarray(seq_idx)
    return [float(sum(x[j] for j in range(max(0, i - width + 1), i + 1) if index[j] == index[i])) for i in range(len(x))]
