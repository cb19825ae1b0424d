"""Composition: how far the blocks of a plan are from a random assignment of the same samples.

A plan that puts like lengths together is a worse plan, however tight: steps differ in how many samples they hold, and what a
mean over tokens does to the weight of a sample varies with them. The numbers stand beside what a random assignment gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError

if TYPE_CHECKING:
    from cloison.planning.plans import Plan

__all__ = ["Composition", "compose"]

_CHUNK = 1 << 18


@dataclass(frozen=True)
class Composition:
    """How mixed the blocks are. ``None`` stands where there is nothing to measure (no variance, fewer than two steps).

    Attributes:
        blocks_per_step: blocks of one optimizer step, in this account.
        length_variance_share: share of the variance of log length that lies between blocks (0: each block is a small copy of
            the whole, 1: each holds one length).
        random_variance_share: its expectation when the same segments are dealt to the same blocks at random:
            (blocks - 1) / (segments - 1).
        samples_per_step, samples_per_step_variation: mean and coefficient of variation over whole steps.
        tokens_per_step_variation: the same of valid tokens.
        targets_per_step, targets_per_step_variation: where targets were given.
        displacement_mean_steps, displacement_max_steps: how far a segment lies from where its place in the planning order would
            put it, in steps. Only for policies that keep an order.
        lag1_length_correlation: of log length, one segment to the next (random: about 0).
        source_distance, random_source_distance: where sources were given: mean over steps of half the sum of absolute
            differences between the step's shares of tokens by source and those of the whole, and the same for blocks in random
            order with segments dealt at random.
    """

    blocks_per_step: int
    length_variance_share: float | None
    random_variance_share: float | None
    samples_per_step: float | None
    samples_per_step_variation: float | None
    tokens_per_step_variation: float | None
    targets_per_step: float | None = None
    targets_per_step_variation: float | None = None
    displacement_mean_steps: float | None = None
    displacement_max_steps: float | None = None
    lag1_length_correlation: float | None = None
    source_distance: float | None = None
    random_source_distance: float | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return plain data for JSON."""
        return dict(self.__dict__)


def compose(
    plan: Plan,
    blocks_per_step: int = 64,
    targets: npt.ArrayLike | None = None,
    sources: npt.ArrayLike | None = None,
) -> Composition:
    """Return the Composition of ``plan``.

    Args:
        targets: int [samples], targets of each sample (of a split sample, its pieces count in proportion to their length).
        sources: [samples], any labels: which corpus, which task.

    Cost: a few passes over the segments in chunks, about 30 ns each; with displacement 16 bytes a sample more.
    """
    if isinstance(blocks_per_step, bool) or not isinstance(blocks_per_step, int) or blocks_per_step < 1:
        raise InputError("blocks_per_step is at least 1.", f"It is {blocks_per_step!r}.", "Pass the blocks of one step.")
    blocks, segments = plan.num_blocks, plan.num_segments
    tokens = np.zeros(blocks, np.int64)
    between = total = lagged = mean = 0.0
    moments = np.zeros(2)
    edges = _block_chunks(plan.offsets)
    for a, b in edges:  # first pass: the mean of log length
        lengths = plan.lengths_of(int(plan.offsets[a]), int(plan.offsets[b]))
        moments += [np.log(lengths).sum(), lengths.size]
        tokens[a:b] = np.add.reduceat(lengths.astype(np.int64), plan.offsets[a:b] - plan.offsets[a])
    mean = moments[0] / moments[1] if segments else 0.0
    last = np.zeros(0)
    for a, b in edges:
        logs = np.log(plan.lengths_of(int(plan.offsets[a]), int(plan.offsets[b]))) - mean
        sums = np.add.reduceat(logs, plan.offsets[a:b] - plan.offsets[a])
        between += float((sums**2 / np.diff(plan.offsets[a : b + 1])).sum())
        total += float(np.dot(logs, logs))
        joined = np.concatenate([last, logs])
        lagged += float(np.dot(joined[:-1], joined[1:]))
        last = logs[-1:]
    spread = segments > 1 and total > 1e-9 * segments
    steps = blocks // blocks_per_step
    counts = np.diff(plan.offsets)
    samples_mean, samples_cv = _per_step(counts, blocks_per_step)
    target_mean, target_cv = (None, None)
    if targets is not None:
        target_mean, target_cv = _per_step(_targets_per_block(plan, np.asarray(targets)), blocks_per_step)
    displaced = _displacement(plan, tokens) if plan.policy in ("look_ahead", "in_order") or plan.order == "input" else None
    distance: tuple[float | None, float | None] = (None, None)
    if sources is not None and steps:
        distance = _source_distance(plan, np.asarray(sources), blocks_per_step)
    return Composition(
        blocks_per_step=blocks_per_step,
        length_variance_share=between / total if spread else None,
        random_variance_share=(blocks - 1) / (segments - 1) if segments > 1 else None,
        samples_per_step=samples_mean,
        samples_per_step_variation=samples_cv,
        tokens_per_step_variation=_per_step(tokens, blocks_per_step)[1],
        targets_per_step=target_mean,
        targets_per_step_variation=target_cv,
        displacement_mean_steps=None if displaced is None else displaced[0] / blocks_per_step,
        displacement_max_steps=None if displaced is None else displaced[1] / blocks_per_step,
        lag1_length_correlation=lagged / total if spread else None,
        source_distance=distance[0],
        random_source_distance=distance[1],
    )


def _block_chunks(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of whole blocks of about _CHUNK segments."""
    blocks = offsets.size - 1
    edges = [0]
    while edges[-1] < blocks:
        edges.append(max(int(np.searchsorted(offsets, offsets[edges[-1]] + _CHUNK, side="right")) - 1, edges[-1] + 1))
    return list(pairwise(edges))


def _per_step(values: npt.NDArray[Any], blocks_per_step: int) -> tuple[float | None, float | None]:
    steps = values.size // blocks_per_step
    if not steps:
        return None, None
    sums = values[: steps * blocks_per_step].reshape(steps, blocks_per_step).sum(axis=1)
    mean = float(sums.mean())
    return mean, float(sums.std() / mean) if steps > 1 and mean else None


def _targets_per_block(plan: Plan, targets: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if targets.shape != (plan.items.samples,):
        raise InputError(
            "targets has one number a sample.", f"{targets.shape} for {plan.items.samples} samples.", "Pass [samples]."
        )
    whole = plan.items.lengths[plan.sample_ids].astype(np.float64)
    each = targets[plan.sample_ids] * (plan.seq_lengths / whole)
    return np.asarray(np.add.reduceat(each, plan.offsets[:-1])) if plan.num_blocks else np.zeros(0)


def _displacement(plan: Plan, tokens: npt.NDArray[np.int64]) -> tuple[float, float] | None:
    """Mean and maximum of |block of a segment - the block where its token lies in the order|, in blocks."""
    if not plan.num_blocks:
        return None
    from cloison.planning.ordering import planning_order

    items = plan.items
    if items.extra_samples.size or plan.policy == "wrap":
        ranks_of = plan.sample_ids if plan.order == "input" else None
        if ranks_of is None:
            return None
        mass = np.zeros(items.samples)
        np.add.at(mass, plan.sample_ids, plan.seq_lengths)
        centre = np.cumsum(mass) - mass
        starts: npt.NDArray[Any] | None = plan.starts
    else:
        order, _ = planning_order(items, plan.seed, plan.order == "shuffled")(0, items.ids)
        centre = np.empty(items.ids, np.float64)
        done = 0.0
        for first in range(0, items.ids, _CHUNK):
            some = order[first : first + _CHUNK]
            ends = done + np.cumsum(items.real_lengths(some).astype(np.float64))
            centre[some] = ends - items.real_lengths(some)
            done = float(ends[-1])
        starts = None
    total, furthest = 0.0, 0.0
    for a, b in _block_chunks(plan.offsets):
        here = slice(int(plan.offsets[a]), int(plan.offsets[b]))
        begin = centre[plan.sample_ids[here]]
        if starts is not None:
            begin = begin + starts[here]
        found = np.repeat(np.arange(a, b), np.diff(plan.offsets[a : b + 1]))
        off = np.abs(found - np.floor(begin / (plan.num_tokens / plan.num_blocks)))
        total += float(off.sum())
        furthest = max(furthest, float(off.max()))
    return total / plan.num_segments, furthest


def _source_distance(plan: Plan, sources: npt.NDArray[Any], blocks_per_step: int) -> tuple[float, float]:
    if sources.shape != (plan.items.samples,):
        raise InputError(
            "sources has one label a sample.", f"{sources.shape} for {plan.items.samples} samples.", "Pass [samples]."
        )
    labels, codes = np.unique(sources, return_inverse=True)
    steps = plan.num_blocks // blocks_per_step
    step = np.repeat(np.arange(plan.num_blocks) // blocks_per_step, np.diff(plan.offsets))
    code = codes[plan.sample_ids]
    weight = plan.seq_lengths.astype(np.float64)

    def distance(code: npt.NDArray[Any]) -> float:
        table = np.zeros((steps + 1, labels.size))
        np.add.at(table, (step, code), weight)
        whole = table.sum(axis=0) / table.sum()
        shares = table[:steps] / table[:steps].sum(axis=1, keepdims=True)
        return float(0.5 * np.abs(shares - whole).sum(axis=1).mean())

    from cloison.planning.bijection import derive, permutation

    return distance(code), distance(code[permutation(code.size, derive(plan.seed, 9))])
