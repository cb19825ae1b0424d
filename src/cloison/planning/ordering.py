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
    samples = np.concatenate([np.arange(items.samples, dtype=items.id_type), items.extra_samples.astype(items.id_type)])
    listed = np.argsort(samples, kind="stable").astype(items.id_type)
    return lambda start, stop: (listed[start:stop], items.classes_of(listed[start:stop]))


def planning_ranks(items: Items, seed: int, shuffled: bool) -> npt.NDArray[Any]:
    """Return [ids], the place of each item in the planning order."""
    if not shuffled and not items.extra_samples.size:
        return np.arange(items.ids, dtype=items.id_type)
    order = planning_order(items, seed, shuffled)(0, items.ids)[0]
    ranks = np.empty(items.ids, items.id_type)
    ranks[order] = np.arange(items.ids, dtype=items.id_type)
    return ranks
