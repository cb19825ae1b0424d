"""What each query of a packed row may attend to, as one interval of keys.

Every mask of this project (same segment; causal or not; with a window, chunks or a visible prefix) lets a query see one
unbroken run of keys that contains the query itself, and both ends of that run never fall from one query to the next. That is
why a block-sparse mask can be built from two numbers a token, without a T x T evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.segments import Segments

__all__ = ["cut_into_chunks", "key_intervals"]


def key_intervals(
    segments: Segments,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    prefix_lengths: Sequence[int] | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``first`` and ``last``, int32 [B, T]: query i of row b may attend to the keys first[b, i] .. last[b, i].

    The arguments are those of `Segments.dense_mask`, and so is what they allow; the padding tail is a segment of its own.
    Both arrays rise (weakly) along a row, and ``first[b, i] <= i <= last[b, i]``. Cost: O(B * T).

    Raises:
        InputError: a window or chunk below 1, or a number of prefix lengths other than that of the segments.

    >>> first, last = key_intervals(Segments.from_lengths([[3, 2]]))
    >>> first.tolist(), last.tolist()
    ([[0, 0, 0, 3, 3]], [[0, 1, 2, 3, 4]])
    """
    for name, value in (("window", window), ("chunk", chunk)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1 token.", f"It is {value}.", "Pass None for no limit.")
    shape = (segments.num_rows, segments.width)
    offsets = segments.cu_seqlens(covering=True).astype(np.int64)
    lengths = np.diff(offsets)
    here = np.arange(offsets[-1])
    start = np.repeat(offsets[:-1], lengths)
    end = np.repeat(offsets[1:], lengths)
    first, last = start, here if causal else end - 1
    if causal and prefix_lengths is not None:
        prefix = np.asarray(prefix_lengths, np.int64)
        if prefix.shape != (segments.num_segments,):
            raise InputError(
                f"prefix_lengths must have one entry for each of {segments.num_segments} segments.",
                f"The shape is {list(prefix.shape)}.",
                "Pass 0 for segments without a prefix.",
            )
        per_token = np.zeros(here.size, np.int64)
        per_token[segments.segment_ids().reshape(-1) > 0] = np.repeat(prefix, segments.seq_lengths)
        last = np.maximum(last, np.minimum(start + per_token, end) - 1)
    if window is not None:
        first = np.maximum(first, here - window + 1)
        last = np.minimum(last, here + window - 1)
    if chunk is not None:
        chunk_start = start + (here - start) // chunk * chunk
        first = np.maximum(first, chunk_start)
        last = np.minimum(last, chunk_start + chunk - 1)
    row = np.arange(shape[0])[:, None] * shape[1]
    return (first.reshape(shape) - row).astype(np.int32), (last.reshape(shape) - row).astype(np.int32)


def cut_into_chunks(segments: Segments, chunk: int) -> Segments:
    """Return the Segments with every segment cut at each multiple of ``chunk`` tokens from its start.

    Chunked attention over ``segments`` is plain attention over these: that is how kernels which take lengths alone do it. The
    padding tail is no segment and stays whole.

    >>> cut_into_chunks(Segments.from_lengths([[5, 2]]), 2).rows()
    [[2, 2, 1, 2]]
    """
    if chunk < 1:
        raise InputError("chunk must be at least 1 token.", f"It is {chunk}.", "Pass None for no limit.")
    rows = []
    for lengths in segments.rows():
        pieces = [[chunk] * (length // chunk) + [length % chunk] for length in lengths]
        rows.append([piece for cut in pieces for piece in cut if piece])
    return Segments.from_lengths(rows, segments.width)
