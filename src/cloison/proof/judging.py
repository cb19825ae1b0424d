"""judge: the verdict on the targets of a batch whose blocks are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import CloisonError
from cloison.findings import Finding
from cloison.proof.blocks import lengths_of
from cloison.proof.fit import NOTHING
from cloison.proof.report import Verdict
from cloison.proof.run import places
from cloison.proof.setup import FAILURES
from cloison.proof.target_findings import target_findings
from cloison.proof.target_verdict import targets_verdict
from cloison.proof.targets import read_targets
from cloison.proof.truth import Truth, batch_rows
from cloison.proof.weights import Claim, StepWeights, weigh, weights_verdict

__all__ = ["judge", "truth_of_blocks"]


def truth_of_blocks(batch: Mapping[str, Any], blocks: Sequence[Block], ends: Sequence[int] = ()) -> Truth | None:
    """Return what ``batch`` holds, by the ``blocks`` that it was made of, or None where their tokens are not found in it."""
    at = places(batch, blocks)
    if at is None:
        return None
    shape = batch_rows(batch["input_ids"]).shape
    segments, labels = np.zeros(shape, np.int32).reshape(-1), np.full(shape, -100, np.int64).reshape(-1)
    numbers = np.repeat(np.arange(1, len(lengths_of(blocks)) + 1), lengths_of(blocks))
    segments[at] = numbers
    labels[at] = np.concatenate([block.labels for block in blocks])
    return Truth(segments.reshape(shape), "the blocks", labels=labels.reshape(shape), ends=frozenset(ends))


def judge(
    model: Any,
    batch: Mapping[str, Any],
    blocks: Sequence[Block],
    loss: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    *,
    seed: int = 0,
    claim: Claim | None = None,
) -> tuple[Verdict, list[Finding]]:
    """Return what the loss trains of ``batch``, held against the labels of the ``blocks`` that it was made of.

    Args:
        loss: see `read_targets`; None: the model's own.
        claim: what the weights ought to be; None: they are named and not judged.
    """
    try:
        reading = read_targets(model, batch, loss, seed=seed)
        truth = truth_of_blocks(batch, blocks)
    except CloisonError as error:
        return Verdict("targets", "not tested", f"{error.asked} {error.found}"), []
    except FAILURES as error:
        said = (str(error).strip().splitlines() or [""])[0][:300]
        return Verdict("targets", "not tested", f"{type(error).__name__}: {said}"), []
    if truth is None:
        return Verdict("targets", "not tested", "the tokens of the blocks were not found in the batch"), []
    findings = target_findings(batch_rows(batch["input_ids"]), reading, truth)
    trained = reading.tokens != NOTHING
    part = StepWeights(reading.weights[trained], truth.segment_ids[trained].astype(np.int64), 0, reading.precision)
    weighed, wrong = weights_verdict(weigh([part]), claim, form=reading.shape.name)
    findings += wrong
    verdict = targets_verdict([(reading, truth)], findings)
    said = f"{verdict.summary}; weights: {weighed.summary}"
    return Verdict("targets", verdict.status, said, {**verdict.evidence, "weights": weighed.evidence}), findings
