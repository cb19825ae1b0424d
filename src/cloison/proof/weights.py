"""What the weights of a whole step amount to: a mean over tokens or samples, or a mean of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloison.findings import Finding
from cloison.proof.loss_shapes import SOFT
from cloison.proof.report import Verdict

__all__ = ["Claim", "StepWeights", "weigh", "weights_verdict"]

Claim = Literal["token_mean", "sample_mean"]
"""What the weights ought to be: equal for all targets of the step, or equal for all samples of the step."""


@dataclass(frozen=True, eq=False)
class StepWeights:
    """The targets of one micro-batch on one rank.

    Attributes:
        weights: float64 [targets], as they go to ``backward``.
        samples: int64 [targets], the sample that each belongs to, numbered inside the micro-batch.
        rank: whose it is.
        precision: how far weights may be off, relatively.
    """

    weights: npt.NDArray[np.float64]
    samples: npt.NDArray[np.int64]
    rank: int = 0
    precision: float = 1e-7


@dataclass(frozen=True)
class Weighing:
    """What the weights of a step are.

    Attributes:
        kind: "token_mean", "sample_mean", "mean of means over micro-batches", "mean of means over ranks",
            "mean of means over ranks and micro-batches", "mean of means over rows", "own weights" or "nothing".
        total: their sum over the step, ranks averaged as data-parallel training averages them: 1 for a mean.
        spread: the largest over the smallest.
        signs: whether some are positive and some negative.
    """

    kind: str
    total: float
    spread: float
    details: Mapping[str, Any] = field(default_factory=dict)
    signs: bool = False


def weigh(parts: Sequence[StepWeights], ranks: int = 1) -> Weighing:
    """Return what the weights of all micro-batches ``parts`` of one step, over all ranks, are."""
    kept = [part for part in parts if part.weights.size]
    if not kept:
        return Weighing("nothing", 0.0, 1.0)
    weights = np.concatenate([part.weights for part in kept]) / ranks
    tolerance = max(1e-4, 2 * max(part.precision for part in kept))
    sizes = np.abs(weights)
    total, spread = float(weights.sum()), float(sizes.max() / max(sizes.min(), 1e-300))
    details = {"targets": int(weights.size), "micro_batches": len(parts), "ranks": ranks}
    if _even(weights, tolerance):
        return Weighing("token_mean", total, spread, details)
    names = _groups(kept)
    for kind in ("micro", "rank", "both", "row"):
        groups = names[kind]
        sums = np.asarray(np.bincount(groups, weights=weights), np.float64)
        inside = all(_even(weights[groups == group], tolerance) for group in np.unique(groups))
        if not inside:
            continue
        alike = _even(sums[np.bincount(groups) > 0], tolerance)
        named = {
            "micro": "mean of means over micro-batches",
            "rank": "mean of means over ranks",
            "both": "mean of means over ranks and micro-batches",
            "row": "sample_mean",
        }[kind]
        if alike:
            return Weighing(named, total, spread, details)
        if kind == "row" and _mean_of_sample_means(weights, names, tolerance):
            return Weighing("mean of means over micro-batches of sample means", total, spread, details)
    both = bool((weights > 0).any() and (weights < 0).any())
    return Weighing("own weights", total, spread, details, both)


def weights_verdict(
    weighing: Weighing, claim: Claim | None, *, form: str = "cross entropy", explained: bool = False
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict on ``weighing`` and what is wrong with it.

    Args:
        claim: what the weights ought to be; None for no claim: then they are named and nothing is wrong.
        form: the kind of loss: where a weight depends on the model's confidence, sums mean nothing.
        explained: whether targets are known to be missing or too many, so that a sum beside 1 says nothing more.
    """
    evidence = {"kind": weighing.kind, "total": weighing.total, "spread": weighing.spread, **weighing.details}
    if weighing.kind == "nothing":
        return Verdict("weights", "not tested", "nothing is trained", evidence), []
    if form == SOFT:
        return Verdict(
            "weights", "not tested", "each position is pulled to many tokens (distillation), by shares", evidence
        ), []
    if weighing.signs:
        said = "targets are pulled up and pushed down (a preference or a policy loss), which is no mean over tokens"
        return Verdict("weights", "not tested", said, evidence), []
    findings: list[Finding] = []
    beside = (
        "" if 0.98 < weighing.total < 1.02 or form not in _COMPARABLE else f", and they sum to {weighing.total:.4g}, not to 1"
    )
    if claim is not None and weighing.kind != claim:
        findings.append(
            Finding(
                "weights",
                "error",
                f"The weights are not the {claim.replace('_', ' ')} of the step but: {weighing.kind}. The heaviest target "
                f"counts {weighing.spread:.3g} times the lightest{beside}.",
                _REMEDY.get(weighing.kind, "Divide the summed loss by the number of targets of the whole step."),
                evidence,
            )
        )
    total = weighing.total
    if claim is not None and form in _COMPARABLE and not findings and not 0.98 < total < 1.02:
        steps = weighing.details.get("micro_batches", 1) // weighing.details.get("ranks", 1)
        off = "loss_scale"
        said = f"The weights of the step sum to {total:.4g}, not to 1"
        if steps > 1 and abs(total / steps - 1) < 0.02:
            off, why = "accumulation_off", ": each micro-batch's mean is added, not averaged over the accumulation steps"
        elif steps > 1 and abs(total * steps - 1) < 0.02:
            off, why = "accumulation_off", ": the loss is divided by the accumulation steps once too often"
        elif _loss_scale(total):
            off, said = "loss_scaled", f"The weights of the step sum to {total:.6g}, a power of two"
            why = ": the scale of a loss scaler, which is taken out again before the step"
        else:
            why = ""
        remedy = "Divide by the targets of the whole step once (num_items_in_batch), and let the trainer not divide again."
        if off == "loss_scaled":
            findings.append(Finding(off, "note", f"{said}{why}.", "", evidence))
        elif off == "accumulation_off" or not explained:
            findings.append(Finding(off, "error", f"{said}{why}.", remedy, evidence))
    status: Any = "wrong" if any(finding.severity == "error" for finding in findings) else "right"
    summary = f"{weighing.kind.replace('_', ' ')}, summing to {total:.4g}" + ("" if claim else " (not judged)")
    return Verdict("weights", status, summary, evidence), findings


def _loss_scale(total: float) -> bool:
    """Whether ``total`` is such a power of two as loss scalers use, and accumulation does not."""
    if not 127 < total < 2**25:
        return False
    exponent = float(np.log2(total))
    return abs(exponent - round(exponent)) < 1e-3


_COMPARABLE = ("cross entropy", "label smoothing", "z-loss", "label smoothing and z-loss")

_REMEDY = {
    "mean of means over micro-batches": "Divide the summed loss by the targets of all micro-batches (num_items_in_batch).",
    "mean of means over ranks": "Divide by the targets of all ranks (average_tokens_across_devices=True), times the ranks.",
    "mean of means over ranks and micro-batches": "Divide by the targets of all ranks and micro-batches, times the ranks.",
}


def _even(values: npt.NDArray[np.float64], tolerance: float) -> bool:
    if values.size == 0:
        return True
    middle = float(np.median(values))
    return bool((np.abs(values - middle) <= tolerance * abs(middle)).all()) and middle != 0


def _groups(parts: Sequence[StepWeights]) -> dict[str, npt.NDArray[np.int64]]:
    """Return for every target its group number, by each way of grouping."""
    sizes = [part.weights.size for part in parts]
    ranks = [part.rank for part in parts]
    turn = [sum(1 for before in ranks[:index] if before == rank) for index, rank in enumerate(ranks)]
    starts = np.concatenate([[0], np.cumsum([int(part.samples.max(initial=0)) + 1 for part in parts])])[:-1]
    return {
        "micro": np.repeat(turn, sizes),
        "rank": np.repeat(ranks, sizes),
        "both": np.repeat(np.arange(len(parts)), sizes),
        "row": np.concatenate([part.samples + start for part, start in zip(parts, starts, strict=True)]),
    }


def _mean_of_sample_means(
    weights: npt.NDArray[np.float64], names: Mapping[str, npt.NDArray[np.int64]], tolerance: float
) -> bool:
    """Whether samples weigh alike inside each micro-batch, and micro-batches alike."""
    rows, both = names["row"], names["both"]
    sums = np.asarray(np.bincount(rows, weights=weights), np.float64)
    whole = np.asarray(np.bincount(both, weights=weights), np.float64)
    inside = all(_even(sums[np.unique(rows[both == group])], tolerance) for group in np.unique(both))
    return inside and _even(whole[np.bincount(both) > 0], tolerance)
