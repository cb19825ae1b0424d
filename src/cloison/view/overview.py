"""The overview of a packed data set for a page: the claim in numbers, lengths, strips of blocks, composition, roles, ledger."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloison.errors import ChangedError
from cloison.store.packed import Packed
from cloison.view.charts import bars, strips, trace
from cloison.view.tables import number, percent, table

__all__ = ["overview_section", "stale_notice"]

STRIPS = 40
"""Blocks drawn as strips."""

_FEWEST_STEPS = 4
"""Steps that make a line worth drawing."""


def stale_notice(packed: Packed) -> str:
    """Return a sentence if the files are not what the manifest states, else ""."""
    try:
        packed.verify()
    except ChangedError as error:
        return (
            f"This data set changed since it was packed: {error.asked} {error.found} What was verified then does not hold now."
        )
    return ""


def overview_section(packed: Packed, stale: str = "") -> dict[str, Any]:
    """Return the section. Cost: the columns of lengths are read, no tokens.

    Args:
        packed: an opened data set.
        stale: a warning to show at the top, as `stale_notice` gives it.
    """
    manifest, segments = packed.manifest, packed.segments()
    lengths = segments.seq_lengths
    per_step = _per_step(np.diff(segments.row_offsets), int(manifest.composition.get("blocks_per_step") or 64))
    shown = [
        (str(row), lengths[segments.row_offsets[row] : segments.row_offsets[row + 1]].tolist()) for row in _spread(len(packed))
    ]
    return {
        "id": "overview",
        "title": "Overview",
        "template": "overview.html.j2",
        "stale": stale,
        "numbers": _numbers(packed),
        "histogram": bars(lengths, "tokens", _said_of_lengths(lengths)),
        "strips": strips(shown, packed.capacity, f"{len(shown):,} of {len(packed):,} blocks; what is empty is padding."),
        "composition_said": _said_of_composition(manifest.composition),
        "mix": None
        if per_step.size < 2
        else trace(
            per_step, "step", "Samples in each step, in stored order; the dashed line is the mean.", float(per_step.mean())
        ),
        "roles": table(
            "targets by role",
            ("role", "trained tokens", "trained ends of turn"),
            [
                (role, number(c.get("targets", 0)), number(c.get("terminators", 0)))
                for role, c in sorted(manifest.roles.items())
            ],
            numbers=(1, 2),
        ),
        "ledger_said": _said_of_ledger(packed),
        "ledger": table(
            "ledger",
            ("what happened", "samples", "tokens lost", "which"),
            [
                ("came in", number(manifest.ledger.samples_in), "", ""),
                *[
                    (kind.replace("_", " "), number(e.samples), number(e.lost_tokens), _which(e.indices.tolist()))
                    for kind, e in manifest.ledger.entries.items()
                ],
                ("kept", number(manifest.ledger.samples_kept), "", ""),
            ],
            numbers=(1, 2),
        ),
    }


def _numbers(packed: Packed) -> list[dict[str, str]]:
    m, ledger = packed.manifest, packed.ledger
    rows = [
        ("utilization", percent(m.utilization), f"one sample a row would give {percent(m.padding_utilization)}"),
        ("blocks", number(m.num_blocks), f"proven bound {number(m.lower_bound)}: gap {percent(m.gap)}"),
        ("samples kept", f"{number(ledger.samples_kept)} of {number(ledger.samples_in)}", _lost(packed)),
        ("tokens", number(m.num_tokens), f"capacity {number(m.spec.capacity)}"),
        ("targets", number(m.num_targets), f"{percent(m.target_utilization)} of all positions"),
        ("segments", number(m.num_segments), f"{number(m.num_segments / max(m.num_blocks, 1), 1)} a block"),
    ]
    return [{"name": name, "value": value, "note": note} for name, value, note in rows]


def _lost(packed: Packed) -> str:
    ledger = packed.ledger
    return f"{number(ledger.lost_tokens)} tokens lost ({percent(ledger.lost_share)})" if ledger.lost_tokens else "no token lost"


def _said_of_lengths(lengths: Any) -> str:
    if not lengths.size:
        return "There are no segments."
    low, middle, high = (number(int(value)) for value in (lengths.min(), np.median(lengths), lengths.max()))
    return f"Lengths of {lengths.size:,} segments: from {low} to {high} tokens, median {middle}."


def _said_of_composition(composition: Any) -> str:
    share, chance = composition.get("length_variance_share"), composition.get("random_variance_share")
    if share is None or chance is None:
        return "There are too few segments to say how mixed the blocks are."
    words = (
        "as mixed as a random draw" if share <= chance + 0.06 else "less mixed than a random draw: like lengths share blocks"
    )
    return (
        f"{share:.2f} of the variance of log length lies between blocks, where dealing at random gives {chance:.2f}: {words}."
    )


def _said_of_ledger(packed: Packed) -> str:
    ledger = packed.ledger
    return (
        f"{number(ledger.samples_in)} samples with {number(ledger.tokens_in)} tokens came in; "
        f"{number(ledger.samples_kept)} with {number(ledger.tokens_kept)} were kept ({_lost(packed)})."
    )


def _which(indices: list[int]) -> str:
    return ", ".join(map(str, indices[:8])) + (f", ... ({len(indices):,})" if len(indices) > 8 else "")


def _spread(num_blocks: int) -> list[int]:
    return (
        sorted(set(np.linspace(0, max(num_blocks - 1, 0), min(num_blocks, STRIPS)).astype(int).tolist())) if num_blocks else []
    )


def _per_step(segments_per_block: Any, blocks_per_step: int) -> Any:
    steps = segments_per_block.size // blocks_per_step
    if steps < _FEWEST_STEPS:
        return np.zeros(0)
    return segments_per_block[: steps * blocks_per_step].reshape(steps, blocks_per_step).sum(axis=1)[:400]
