"""in_order: next-fit. A block takes the samples in their order while they fit; the first that does not begins the next.

Cost: about 2 ns a sample. Nothing is early and nothing is late. What it gives up: a tenth to a third
of the space, depending on the lengths (each block ends where the next sample happens not to fit).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cloison.planning.items import Items
from cloison.planning.ordering import planning_order

__all__ = ["in_order_blocks"]

_CHUNK = 1 << 20


@njit(cache=True, nogil=True)
def _next_fit(classes: Any, units: int, limit: int, room: int, taken: int, at: int) -> Any:
    """Return (ends of the blocks closed here, room and segments of the open one, items so far)."""
    ends = np.empty(classes.size, np.int64)
    closed = 0
    for c in classes:
        if c == 0:
            continue
        if c > room or taken == limit:
            if taken:
                ends[closed] = at
                closed += 1
            room, taken = units, 0
        room -= c
        taken += 1
        at += 1
    return ends[:closed].copy(), room, taken, at


def in_order_blocks(
    items: Items, seed: int, shuffled: bool, max_segments: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return (offsets int64 [blocks + 1], item ids [placed])."""
    limit = 2**31 - 1 if max_segments is None else max_segments
    order = planning_order(items, seed, shuffled)
    out = np.empty(items.placed, items.id_type)
    offsets = [np.zeros(1, np.int64)]
    room, taken, at = items.units, 0, 0
    for start in range(0, items.ids, _CHUNK):
        ids, classes = order(start, min(start + _CHUNK, items.ids))
        kept = ids[classes > 0]
        out[at : at + kept.size] = kept
        ends, room, taken, at = _next_fit(classes, items.units, limit, room, taken, at)
        offsets.append(ends)
    if taken:
        offsets.append(np.array([at], np.int64))
    return np.concatenate(offsets), out
