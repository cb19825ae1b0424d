"""The planning order: shuffled by seed, or as the samples came, found piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.planning.bijection import derive, permutation
from cloison.planning.items import Items

__all__ = ["planning_order", "planning_ranks"]


def planning_order(
    items: Items, seed: int, shuffled: bool
) -> Callable[[int, int], tuple[npt.NDArray[Any], npt.NDArray[np.int32]]]:
    """Return a function of (start, stop) that gives the item ids at those places of the order, and their classes.

    Input order puts the further pieces of a split sample right after its first; shuffled, each piece has a place of its own.
    """
    if shuffled:

        def shuffled_part(start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
            ids = permutation(items.ids, derive(seed, 0), start, stop)
            return ids, items.classes_of(ids)

        return shuffled_part
    if not items.extra_samples.size:
        return lambda start, stop: (np.arange(start, stop, dtype=items.id_type), items.classes(start, stop))
    among = items.extra_samples + 1 + np.arange(items.extra_samples.size)  # the places of further pieces, which rise

    def listed_part(start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
        first, last = (int(found) for found in np.searchsorted(among, [start, stop]))
        further = np.zeros(stop - start, bool)
        further[among[first:last] - start] = True
        ids = np.empty(stop - start, items.id_type)
        ids[further] = np.arange(items.samples + first, items.samples + last)
        ids[~further] = np.arange(start - first, stop - last)
        return ids, items.classes_of(ids)

    return listed_part


def planning_ranks(items: Items, seed: int, shuffled: bool) -> npt.NDArray[Any]:
    """Return [ids], the place of each item in the planning order."""
    if not shuffled and not items.extra_samples.size:
        return np.arange(items.ids, dtype=items.id_type)
    order = planning_order(items, seed, shuffled)(0, items.ids)[0]
    ranks = np.empty(items.ids, items.id_type)
    ranks[order] = np.arange(items.ids, dtype=items.id_type)
    return ranks
