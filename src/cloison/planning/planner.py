"""plan: lengths to a Plan. The one entrance to every policy."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np

from cloison.errors import InputError
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import lower_bound
from cloison.planning.in_order import in_order_blocks
from cloison.planning.intake import read_items
from cloison.planning.items import Items
from cloison.planning.look_ahead import look_ahead_blocks
from cloison.planning.mixed import AHEAD, mixed_blocks
from cloison.planning.optimal import optimal_patterns
from cloison.planning.patterns import Patterns, fill
from cloison.planning.plans import Plan, Settings
from cloison.planning.regroup import as_patterns
from cloison.planning.wrap import wrap_blocks

__all__ = ["POLICIES", "Policy", "items_of", "plan", "plan_items", "plan_with"]

Policy = Literal["look_ahead", "best_fit", "optimal", "auto", "mixed", "in_order", "wrap"]
POLICIES: tuple[str, ...] = get_args(Policy)

_COMPARED = 1 << 20
"""Samples up to which ``optimal``, where it has no proof, is compared with what a look-ahead happens to find."""

AUTO_GAP = 0.001
"""``auto`` keeps best-fit where the bound says that it is within this share of the optimum."""


def plan(
    seq_lengths: Any,
    capacity: int,
    *,
    policy: str = "look_ahead",
    overflow: str = "raise",
    seed: int = 0,
    order: str = "shuffled",
    max_segments: int | None = None,
    align: int = 1,
    look_ahead: int = 1024,
    max_sample_tokens: int | None = None,
    time_limit: float | None = None,
    threads: int | None = None,
) -> Plan:
    """Return a Plan in which every sample is placed once and no block holds more than ``capacity`` tokens.

    Args:
        seq_lengths: int [samples], tokens of each: an array (a memory-mapped one is read in place), a sequence, or an iterator
            of integers or of arrays. Samples of length 0 are counted in the ledger and placed nowhere.
        capacity: tokens a block holds at most.
        policy: "look_ahead" (mixed, the default), "best_fit" (tight, groups like lengths), "optimal" (the tightest, with
            proof), "mixed" (as tight as may be while as mixed as a random draw), "auto" (best_fit where that is near enough,
            else optimal), "in_order" (next-fit), "wrap" (documents end to end, cut where a block ends: none is too long).
        overflow: what becomes of samples longer than ``capacity``: "raise", "truncate" (the head is kept), "drop", or "split"
            into pieces of ``capacity`` and a rest.
        seed: of all shuffles. The same seed gives the same plan on every machine, with any number of threads.
        order: "shuffled" by the seed, or the "input" order (`best_fit` then orders its blocks by their earliest sample).
        max_segments: segments a block holds at most.
        align: a segment counts as its length rounded up to this multiple; ``seq_lengths`` of the plan stay real.
        look_ahead: K, how many samples the policy of that name looks ahead.
        max_sample_tokens: what ``overflow`` does happens at this length already.
        time_limit: seconds, for policies that search.
        threads: at most this many; None: the cores of this process. The plan is the same with any number.

    Raises:
        InputError: an argument or a length that cannot be right.
        OverlongError: samples longer than the capacity under ``overflow="raise"``; no sample that fits under "drop".

    >>> tight = plan([6, 5, 5, 4], capacity=10, policy="best_fit")
    >>> tight.num_blocks, tight.lower_bound, tight.utilization
    (2, 2, 1.0)
    """
    settings = Settings(capacity, policy, overflow, seed, order, max_segments, align, look_ahead, max_sample_tokens, time_limit)
    return plan_with(settings, seq_lengths, threads)


def plan_with(settings: Settings, seq_lengths: Any, threads: int | None = None) -> Plan:
    """Return the Plan of ``seq_lengths`` under ``settings``: `plan` with its arguments as one value."""
    began = perf_counter()
    made = plan_items(settings, items_of(settings, seq_lengths, threads))
    return replace(made, seconds=perf_counter() - began)


def items_of(settings: Settings, seq_lengths: Any, threads: int | None = None) -> Items:
    """Return what there is to place under ``settings``, which are checked.

    Raises:
        InputError, OverlongError: as `plan`.
    """
    _check(settings)
    return read_items(
        seq_lengths,
        settings.capacity,
        overflow=settings.overflow,
        align=settings.align,
        max_sample_tokens=settings.max_sample_tokens,
        threads=threads,
        whole=settings.policy == "wrap",
    )


def plan_items(settings: Settings, items: Items) -> Plan:
    """Return the Plan of ``items``, which are those of ``settings`` (see `items_of`)."""
    return _wrapped(settings, items) if settings.policy == "wrap" else _placed(settings, items)


def _placed(settings: Settings, items: Items) -> Plan:
    policy, seed, most = settings.policy, settings.seed, settings.max_segments
    bound, name = lower_bound(items.counts, items.units, most)
    patterns: Patterns | None = None
    if policy == "mixed":
        given = (settings.look_ahead, most, settings.time_limit)
        offsets, ids, patterns, bound, name = mixed_blocks(items, seed, settings.shuffled, *given)
    elif policy == "look_ahead":
        offsets, ids = look_ahead_blocks(items, seed, settings.shuffled, settings.look_ahead, most)
    elif policy == "in_order":
        offsets, ids = in_order_blocks(items, seed, settings.shuffled, most)
    else:
        if policy == "best_fit":
            patterns = best_fit_patterns(items.counts, items.units, most)
        else:
            tolerance = AUTO_GAP if policy == "auto" else 0.0
            patterns, bound, name = optimal_patterns(items.counts, items.units, most, settings.time_limit, tolerance)
            luck = (
                policy == "optimal" and patterns.num_blocks > bound and items.placed <= _COMPARED and settings.time_limit != 0
            )
            for ahead in (settings.look_ahead, AHEAD) if luck else ():
                offsets, ids = look_ahead_blocks(items, seed, settings.shuffled, ahead, most)
                if offsets.size - 1 < patterns.num_blocks:
                    patterns = as_patterns(np.split(items.classes_of(ids), offsets[1:-1]))
        offsets, ids = fill(patterns, items, seed, settings.shuffled)
    sample_ids, starts = items.places(ids)
    lengths = None if starts is None else items.real_lengths(ids)
    return Plan(items, settings, offsets, sample_ids, bound, name, patterns, starts, lengths)


def _wrapped(settings: Settings, items: Items) -> Plan:
    offsets, sample_ids, starts, lengths, items = wrap_blocks(items, settings.seed, settings.shuffled, settings.max_segments)
    bound, name = -(-items.tokens // items.capacity), "volume"
    if settings.max_segments is not None and items.placed > bound * settings.max_segments:
        bound, name = -(-items.placed // settings.max_segments), "segments"
    return Plan(items, settings, offsets, sample_ids, bound, name, None, starts, lengths)


def _check(settings: Settings) -> None:
    policy, order, time_limit = settings.policy, settings.order, settings.time_limit
    if policy not in POLICIES:
        raise InputError(f"policy must be one of {', '.join(map(repr, POLICIES))}.", f"It is {policy!r}.", "Pick one.")
    if order not in ("shuffled", "input"):
        raise InputError("order is 'shuffled' or 'input'.", f"It is {order!r}.", "Pick one.")
    for name, least in (("seed", 0), ("look_ahead", 1), ("max_segments", 1)):
        value = getattr(settings, name)
        if name == "max_segments" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise InputError(f"{name} is an integer of at least {least}.", f"It is {value!r}.", f"Pass {least} or more.")
    if time_limit is not None and not (isinstance(time_limit, (int, float)) and time_limit >= 0):
        raise InputError("time_limit is a number of seconds, 0 or more.", f"It is {time_limit!r}.", "Pass seconds or None.")
