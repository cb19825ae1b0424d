"""Unpacking from disk: the samples of a packed data set again, in source order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloison.packing.memory import join_pieces
from cloison.samples import Sample
from cloison.store.packed import Packed

__all__ = ["unpack_in_order"]

_WINDOW_TOKENS = 1 << 25


def unpack_in_order(packed: Packed, window_tokens: int = _WINDOW_TOKENS) -> Iterator[tuple[int, Sample]]:
    """Yield (sample id, sample) by rising id, pieces of split samples joined.

    Cost: the samples of one window in memory; the blocks are read once for every ``window_tokens`` tokens that there are.

    Raises:
        BoundaryError: a sample that appears twice, or a piece of which is missing.
    """
    segments = packed.segments()
    ids = packed.sample_ids()
    blocks = np.repeat(np.arange(segments.num_rows), np.diff(segments.row_offsets))
    known, place = np.unique(ids, return_inverse=True)
    tokens = np.bincount(place, weights=segments.seq_lengths, minlength=known.size)
    windows = (np.cumsum(tokens) - 1) // window_tokens
    token_columns = {name for name, kind in packed.manifest.columns.items() if kind == "token"}
    for window in np.unique(windows):
        wanted = known[windows == window]
        low, high = int(wanted[0]), int(wanted[-1])
        pieces: dict[int, list[tuple[int, Sample]]] = {}
        for b in np.unique(blocks[(ids >= low) & (ids <= high)]).tolist():
            block = packed[b]
            for sample_id, start, sample in zip(block.sample_ids.tolist(), block.starts.tolist(), block.samples(), strict=True):
                if low <= sample_id <= high:
                    pieces.setdefault(sample_id, []).append((start, sample))
        for sample_id in sorted(pieces):
            yield sample_id, join_pieces(sample_id, pieces.pop(sample_id), token_columns)
