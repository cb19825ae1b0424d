"""What a live batch says of its boundaries, held against the true ones; and rows that say nothing and look packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.checking.batch import check_batch
from cloison.errors import CloisonError
from cloison.findings import Finding
from cloison.proof.truth import ONE_EACH, Truth

__all__ = ["contract", "unrecorded"]

_BOUNDARY_KINDS = (
    "boundaries_disagree",
    "lengths_disagree",
    "max_length_wrong",
    "mask_crosses",
    "mask_too_narrow",
    "position_ids",
)
"""What the static contract of the batch adds: signals that this machine's kernels may not read, and another's do."""

_CUT = (
    "Something cut the offsets to as many entries as the batch has rows, as accelerate's dispatcher does with streamed data: "
    'pass accelerator_config={"dispatch_batches": False} to the TrainingArguments.'
)


def contract(call: Mapping[str, Any], truth: Truth) -> list[Finding]:
    """Return what the static contract says of the boundaries that the batch carries, against the true ones where known."""
    mask = call.get("attention_mask")
    spans = truth.spans()
    if (mask is None or getattr(mask, "ndim", 0) != 2) and any(row and row[0][0] > 0 for row in spans):
        return []  # padding on the left that nothing shows: the contract counts from the start of a row
    lengths = None if truth.guessed else [[stop - start for start, stop in row] for row in spans]
    kinds = ("lengths_disagree",) if truth.guessed else _BOUNDARY_KINDS
    try:
        report = check_batch(call, seq_lengths=lengths)
    except (CloisonError, ValueError, TypeError):
        return []
    found = [finding for finding in report.findings if finding.severity == "error" and finding.kind in kinds]
    return [replace(finding, fix=_CUT) if _was_cut(call, finding) else finding for finding in found]


def unrecorded(ids: npt.NDArray[np.int64], truth: Truth) -> list[Finding]:
    """Return a warning where rows that were taken for one sample each look as if they held several."""
    if truth.source != ONE_EACH or not truth.ends:
        return []
    inner = np.isin(ids, list(truth.ends)) & (truth.segment_ids > 0)
    for row, spans in zip(inner, truth.spans(), strict=True):
        row[[stop - 1 for _, stop in spans]] = False
    rows = int(inner.any(1).sum())
    if not rows:
        return []
    said = (
        f"{rows} of {len(ids)} rows hold an id that ends a text before their last token, and nothing says whether they hold "
        "several samples: each was taken for one. If they are packed, every sample sees the ones before it, and each first "
        "token is a target. (A guess: the id may end turns.)"
    )
    fix = "Keep seq_lengths beside packed rows, or pass the samples as they were before packing (samples=)."
    return [Finding("no_boundaries", "warning", said, fix, {"rows": rows, "of": len(ids)})]


def _was_cut(call: Mapping[str, Any], finding: Finding) -> bool:
    offsets = call.get(str(finding.where.get("source")))
    return finding.kind == "lengths_disagree" and offsets is not None and len(offsets) == len(call["input_ids"])
