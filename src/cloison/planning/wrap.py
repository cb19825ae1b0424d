"""wrap: concatenate and cut. Blocks exactly full, for pre-training on documents.

Samples are laid end to end in their order and cut every ``capacity`` tokens; boundaries are kept, the last block keeps what is
left. A sample cut twice keeps its stream: its pieces carry where in it they begin (`Plan.starts`), and the ledger counts
samples that are cut because they are longer than a block ("split"), others that a block's end cuts ("cut_at_edges"), and the
further pieces of both ("continuations").

Cost: about 3 ns a sample. What it gives up: about as many samples are cut as there are blocks, and what a later piece says is
learnt without its beginning. ``best_fit`` with ``overflow="split"`` cuts only samples longer than a block. With
``max_segments`` a block that has them ends early; with ``align`` every piece but a sample's last is a multiple of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.ledger import Entry
from cloison.planning.items import Items
from cloison.planning.ordering import planning_order

__all__ = ["wrap_blocks"]

_CHUNK = 1 << 20


@njit(cache=True, nogil=True)
def _cut(lengths: Any, capacity: int, align: int, limit: int, room: int, taken: int) -> Any:
    """Return (item, start, tokens of each piece, pieces before which a block begins, room, segments of the open block)."""
    size = lengths.size * 2 + 64
    items = np.empty(size, np.int64)
    starts = np.empty(size, np.int32)
    tokens = np.empty(size, np.int32)
    opens = np.zeros(size, np.bool_)
    at = 0
    for i in range(lengths.size):
        done = 0
        while done < lengths[i]:
            if room == 0 or taken == limit:
                room, taken = capacity, 0
            if at == size:
                size *= 2
                items = np.concatenate((items, np.empty_like(items)))
                starts = np.concatenate((starts, np.empty_like(starts)))
                tokens = np.concatenate((tokens, np.empty_like(tokens)))
                opens = np.concatenate((opens, np.zeros_like(opens)))
            piece = min(lengths[i] - done, room)
            items[at], starts[at], tokens[at] = i, done, piece
            opens[at] = taken == 0
            at += 1
            done += piece
            taken += 1
            room -= -(-piece // align) * align
    return items[:at].copy(), starts[:at].copy(), tokens[:at].copy(), opens[:at].copy(), room, taken


def wrap_blocks(
    items: Items, seed: int, shuffled: bool, max_segments: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32], Items]:
    """Return (offsets, sample ids, starts, lengths, the items with the cuts in their ledger)."""
    limit = 2**31 - 1 if max_segments is None else max_segments
    capacity = items.units * items.align
    order = planning_order(items, seed, shuffled)
    ids, starts, tokens, opens, long = [], [], [], [], []
    room, taken = 0, 0
    for first in range(0, items.ids, _CHUNK):
        samples, _ = order(first, min(first + _CHUNK, items.ids))
        lengths = items.real_lengths(samples)
        which, begin, size, opened, room, taken = _cut(lengths, capacity, items.align, limit, room, taken)
        long.append(samples[lengths > capacity])
        ids.append(samples[which])
        starts.append(begin)
        tokens.append(size)
        opens.append(opened)
    if not ids:
        ids, starts, tokens, opens = [np.zeros(0, np.uint32)], *([np.zeros(0, np.int32)] for _ in range(2)), [np.zeros(0, bool)]
        long = ids
    sample_ids = np.concatenate(ids)
    piece_starts = np.concatenate(starts)
    offsets = np.append(np.flatnonzero(np.concatenate(opens)), sample_ids.size).astype(np.int64)
    further = sample_ids[piece_starts > 0].astype(np.int64)
    cut, longer = np.unique(further), np.concatenate(long)
    at_edges = np.setdiff1d(cut, longer, assume_unique=True)
    entries = dict(items.ledger.entries) | {"split": Entry.of(longer), "cut_at_edges": Entry.of(at_edges)}
    entries["continuations"] = Entry.of(further)
    ledger = replace(items.ledger, entries=entries)
    return offsets, sample_ids, piece_starts, np.concatenate(tokens), replace(items, ledger=ledger.verify())
