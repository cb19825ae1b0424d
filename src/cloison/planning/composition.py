"""Composition: how far the blocks of a plan are from a random assignment of the same samples.

A plan that puts like lengths together is a worse plan, however tight: steps differ in how many samples they hold, and what a
mean over tokens does to the weight of a sample varies with them. The numbers stand beside what a random assignment gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.planning.bijection import derive, permutation
from cloison.planning.plans import Plan
from cloison.planning.stretches import Stretch, stretches_of

__all__ = ["Composition", "compose", "composition_of"]


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

    Cost: a few passes over the segments, about 30 ns each; where the plan keeps an order, 8 bytes a sample.
    """
    if isinstance(blocks_per_step, bool) or not isinstance(blocks_per_step, int) or blocks_per_step < 1:
        raise InputError("blocks_per_step is at least 1.", f"It is {blocks_per_step!r}.", "Pass the blocks of one step.")
    found = composition_of(stretches_of(plan), blocks_per_step)
    if targets is not None:
        steps = _Steps(blocks_per_step)
        steps.add(_targets_per_block(plan, np.asarray(targets)))
        mean, variation = steps.mean_and_variation()
        found = replace(found, targets_per_step=mean, targets_per_step_variation=variation)
    if sources is not None and plan.num_blocks >= blocks_per_step:
        distance, by_chance = _source_distance(plan, np.asarray(sources), blocks_per_step)
        found = replace(found, source_distance=distance, random_source_distance=by_chance)
    return found


def composition_of(stretches: Callable[[], Iterable[Stretch]], blocks_per_step: int = 64) -> Composition:
    """Return the Composition of a plan that is passed over twice, stretch by stretch.

    Cost: about 30 ns a segment and pass; memory for one stretch, and 16 bytes a step.
    """
    blocks = segments = tokens = 0
    moments = np.zeros(2)
    samples_of, tokens_of = _Steps(blocks_per_step), _Steps(blocks_per_step)
    for stretch in stretches():  # the first pass: the mean of log length
        lengths = stretch.seq_lengths
        moments += [np.log(lengths).sum(), lengths.size]
        held = np.add.reduceat(lengths.astype(np.int64), np.cumsum(stretch.sizes) - stretch.sizes)
        samples_of.add(stretch.sizes)
        tokens_of.add(held)
        blocks, segments, tokens = blocks + held.size, segments + lengths.size, tokens + int(held.sum())
    mean = moments[0] / moments[1] if segments else 0.0
    between = total = lagged = displaced = furthest = 0.0
    last, done, ordered = np.zeros(0), 0, False
    for stretch in stretches():
        logs = np.log(stretch.seq_lengths) - mean
        sums = np.add.reduceat(logs, np.cumsum(stretch.sizes) - stretch.sizes)
        between += float((sums**2 / stretch.sizes).sum())
        total += float(np.dot(logs, logs))
        joined = np.concatenate([last, logs])
        lagged += float(np.dot(joined[:-1], joined[1:]))
        last = logs[-1:]
        if stretch.begins is not None:  # how far a block is from where the tokens of its segments lie in the order
            ordered = True
            found = np.repeat(np.arange(done, done + sums.size), stretch.sizes)
            off = np.abs(found - np.floor(stretch.begins / (tokens / blocks)))
            displaced += float(off.sum())
            furthest = max(furthest, float(off.max()))
        done += sums.size
    spread = segments > 1 and total > 1e-9 * segments
    samples_mean, samples_variation = samples_of.mean_and_variation()
    return Composition(
        blocks_per_step=blocks_per_step,
        length_variance_share=between / total if spread else None,
        random_variance_share=(blocks - 1) / (segments - 1) if segments > 1 else None,
        samples_per_step=samples_mean,
        samples_per_step_variation=samples_variation,
        tokens_per_step_variation=tokens_of.mean_and_variation()[1],
        displacement_mean_steps=displaced / segments / blocks_per_step if ordered else None,
        displacement_max_steps=furthest / blocks_per_step if ordered else None,
        lag1_length_correlation=lagged / total if spread else None,
    )


class _Steps:
    """The sums of a number over the blocks of each whole step, of blocks that come some at a time."""

    def __init__(self, blocks_per_step: int) -> None:
        self._blocks = blocks_per_step
        self._rest: npt.NDArray[Any] = np.zeros(0, np.int64)
        self._sums: list[npt.NDArray[Any]] = [self._rest]

    def add(self, values: npt.NDArray[Any]) -> None:
        """Take the number of each of some more blocks."""
        waiting = np.concatenate([self._rest, values]) if self._rest.size else values
        whole = waiting.size // self._blocks * self._blocks
        self._sums.append(waiting[:whole].reshape(-1, self._blocks).sum(axis=1))
        self._rest = waiting[whole:].copy()

    def mean_and_variation(self) -> tuple[float | None, float | None]:
        """Return the mean over steps and the coefficient of variation; None where there are no steps, or no two."""
        sums = np.concatenate(self._sums[1:] or self._sums)
        if not sums.size:
            return None, None
        mean = float(sums.mean())
        return mean, float(sums.std() / mean) if sums.size > 1 and mean else None


def _targets_per_block(plan: Plan, targets: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if targets.shape != (plan.items.samples,):
        raise InputError(
            "targets has one number a sample.", f"{targets.shape} for {plan.items.samples} samples.", "Pass [samples]."
        )
    whole = plan.items.lengths[plan.sample_ids].astype(np.float64)
    each = targets[plan.sample_ids] * (plan.seq_lengths / whole)
    return np.asarray(np.add.reduceat(each, plan.offsets[:-1])) if plan.num_blocks else np.zeros(0)


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

    return distance(code), distance(code[permutation(code.size, derive(plan.seed, 9))])
