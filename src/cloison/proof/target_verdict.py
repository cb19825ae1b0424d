"""The verdict on the targets of a step, from what was read of them and what was found."""

from __future__ import annotations

from cloison.findings import Finding
from cloison.proof.report import Verdict
from cloison.proof.targets import Reading
from cloison.proof.truth import Truth

__all__ = ["TARGET_KINDS", "targets_verdict"]

TARGET_KINDS = (
    "boundary_target", "shifted_twice", "not_shifted", "prompt_trained", "padding_trained", "terminator_never_trained",
    "nothing_trained", "wrong_token", "target_missing", "not_finite", "auxiliary_over_padding", "no_loss",
)  # fmt: skip
"""Findings that say that something is trained, or is not, as it should be."""


def targets_verdict(read: list[tuple[Reading, Truth]], findings: list[Finding]) -> Verdict:
    """Return it for the micro-batches ``read``; the first stands for what they share."""
    reading, truth = read[0]
    bad = sorted({f.kind for f in findings if f.kind in TARGET_KINDS and f.severity == "error"})
    total = sum(one.num_targets for one, _ in read)
    if reading.beside_input:
        said = f"{total} targets of the decoder of an encoder-decoder: they do not lie in the rows of input_ids"
        return Verdict("targets", "not tested", said, {"targets": total})
    evidence = {
        "targets": total,
        "place": reading.place,
        "loss": reading.shape.name,
        "smoothing": reading.shape.smoothing,
        "z": reading.shape.z,
        "terms": list(reading.shape.terms),
        "boundaries": truth.source,
        "labels": "known" if truth.labels is not None else "not known: nothing says which tokens are prompts",
        "findings": bad,
    }
    real = reading.place.startswith("real ")
    how = f"from the gradient at the {reading.place}" if real else f"by substituting the {reading.place}"
    said = f"{total} targets read from the {reading.shape.name} loss {how.replace('the hidden', 'the last hidden state')}"
    said += f": {', '.join(bad)}" if bad else "" if truth.guessed else ", none across a boundary"
    if reading.shape.terms:
        said += f"; beside it {', '.join(reading.shape.terms)}"
    if truth.labels is None and not bad:
        said += "; prompts cannot be told from answers: pass the samples with their labels (samples=)"
    return Verdict("targets", "wrong" if bad else "right", said, evidence)
