"""plan: lengths to a Plan. The one entrance to every policy."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.planning.best_fit import best_fit_patterns
from cloison.planning.bounds import lower_bound
from cloison.planning.in_order import in_order_blocks
from cloison.planning.items import Items, read_items
from cloison.planning.look_ahead import look_ahead_blocks
from cloison.planning.patterns import Patterns, fill
from cloison.planning.plans import Plan

__all__ = ["POLICIES", "Policy", "plan"]

Policy = Literal["look_ahead", "best_fit", "in_order"]
POLICIES: tuple[str, ...] = ("look_ahead", "best_fit", "in_order")


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
        policy: "look_ahead" (mixed, the default), "best_fit" (tight, groups like lengths), "in_order" (next-fit).
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
    began = perf_counter()
    _check(policy, order, seed, look_ahead, max_segments, time_limit)
    items = read_items(
        seq_lengths, capacity, overflow=overflow, align=align, max_sample_tokens=max_sample_tokens, threads=threads
    )
    shuffled = order == "shuffled"
    bound, name = lower_bound(items.counts, items.units, max_segments)
    patterns: Patterns | None = None
    if policy == "look_ahead":
        offsets, ids = look_ahead_blocks(items, seed, shuffled, look_ahead, max_segments)
    elif policy == "in_order":
        offsets, ids = in_order_blocks(items, seed, shuffled, max_segments)
    else:
        patterns = best_fit_patterns(items.counts, items.units, max_segments)
        offsets, ids = fill(patterns, items, seed, shuffled)
    sample_ids, starts, lengths = _segments(items, ids)
    return Plan(
        capacity=items.capacity,
        policy=policy,
        seed=seed,
        order=order,
        align=items.align,
        max_segments=max_segments,
        look_ahead=look_ahead,
        offsets=offsets,
        sample_ids=sample_ids,
        lower_bound=bound,
        bound_name=name,
        ledger=items.ledger,
        items=items,
        patterns=patterns,
        seconds=perf_counter() - began,
        given_starts=starts,
        given_lengths=lengths,
    )


def _segments(
    items: Items, ids: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32] | None, npt.NDArray[np.int32] | None]:
    sample_ids, starts = items.places(ids)
    return sample_ids, starts, None if starts is None else items.real_lengths(ids)


def _check(policy: str, order: str, seed: int, look_ahead: int, max_segments: int | None, time_limit: float | None) -> None:
    if policy not in POLICIES:
        raise InputError(f"policy is one of {', '.join(map(repr, POLICIES))}.", f"It is {policy!r}.", "Pick one.")
    if order not in ("shuffled", "input"):
        raise InputError("order is 'shuffled' or 'input'.", f"It is {order!r}.", "Pick one.")
    for name, value, least in (("seed", seed, 0), ("look_ahead", look_ahead, 1), ("max_segments", max_segments, 1)):
        if name == "max_segments" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise InputError(f"{name} is an integer of at least {least}.", f"It is {value!r}.", f"Pass {least} or more.")
    if time_limit is not None and not (isinstance(time_limit, (int, float)) and time_limit >= 0):
        raise InputError("time_limit is a number of seconds, 0 or more.", f"It is {time_limit!r}.", "Pass seconds or None.")
