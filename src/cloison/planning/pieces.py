"""Pieces: a plan made by processes that each hold a part of it, with the blocks of `plan`, one after the other.

A look-ahead begins anew at every `SHARD` places of the order, and the order is a keyed bijection: who can look lengths up (a
mapped file of them does) plans any piece alone, in memory for that piece. The other policies decide on all lengths together:
their plans are one piece, which takes 8 to 43 bytes a sample while it is made (`best_fit` the least, `mixed` the most).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cloison.ledger import Ledger
from cloison.planning.bounds import lower_bound
from cloison.planning.intake import read_items
from cloison.planning.items import Items
from cloison.planning.look_ahead import SHARD, look_ahead_blocks
from cloison.planning.ordering import planning_order
from cloison.planning.planner import plan_items
from cloison.planning.plans import Settings
from cloison.planning.stretches import Stretch, cut_into_stretches, stretches_of

__all__ = ["Piece", "num_pieces", "plan_piece"]


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive blocks of a plan, and what is known of the whole.

    Attributes:
        stretches: the blocks, to be passed over once; ``begins`` count from the first token of the piece.
        ledger, lower_bound: of the whole plan.
    """

    stretches: Iterator[Stretch]
    ledger: Ledger
    lower_bound: int


def num_pieces(settings: Settings, num_items: int) -> int:
    """Return of how many pieces a plan is made: 1 or more.

    Args:
        num_items: samples, and the further pieces of split ones.
    """
    return max(1, -(-num_items // SHARD)) if settings.policy == "look_ahead" else 1


def plan_piece(settings: Settings, items: Items, index: int) -> Piece:
    """Return piece ``index`` of the plan of ``items``, which are those of ``settings`` (see `items_of`).

    Cost: of a look-ahead about 100 ns and 50 bytes for each of at most `SHARD` items, and as many looks into the lengths.
    """
    if settings.policy != "look_ahead":
        plan = plan_items(settings, items)
        return Piece(stretches_of(plan)(), plan.ledger, plan.lower_bound)
    bound, _ = lower_bound(items.counts, items.units, settings.max_segments)
    return Piece(_looked_ahead(settings, items, index), items.ledger, bound)


def _looked_ahead(settings: Settings, items: Items, index: int) -> Iterator[Stretch]:
    start = index * SHARD
    ids, classes = planning_order(items, settings.seed, settings.shuffled)(start, min(start + SHARD, items.ids))
    own = read_items(classes, items.units, threads=1)
    offsets, places = look_ahead_blocks(own, 0, False, settings.look_ahead, settings.max_segments)
    begins = None
    if not (items.extra_samples.size and settings.shuffled):  # else a sample has a place for each of its pieces
        lengths = items.real_lengths(ids).astype(np.int64)
        begins = np.cumsum(lengths) - lengths
    for first, last in cut_into_stretches(offsets):
        here = places[offsets[first] : offsets[last]]
        sample_ids, starts = items.places(ids[here])
        yield Stretch(
            np.diff(offsets[first : last + 1]),
            sample_ids,
            starts,
            items.real_lengths(ids[here]),
            None if begins is None else begins[here],
        )
