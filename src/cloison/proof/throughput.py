"""What packing buys, counted from real batches: valid tokens and targets per allocated position, beside padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloison.errors import InputError
from cloison.proof.report import Verdict
from cloison.proof.truth import Truth, batch_rows, truth_of
from cloison.segments import IGNORE

__all__ = ["Throughput", "throughput"]


@dataclass(frozen=True)
class Throughput:
    """Counts over batches; they add up (``+``).

    Attributes:
        positions: allocated token positions, rows x width, which is what compute is paid for.
        tokens: positions that hold a sample's token.
        targets: tokens that the loss asks for.
        samples: segments.
        rows: rows.
        padded_positions: what the same samples would allocate, one a row, each batch padded to its longest.
    """

    positions: int = 0
    tokens: int = 0
    targets: int = 0
    samples: int = 0
    rows: int = 0
    padded_positions: int = 0

    def __add__(self, other: Throughput) -> Throughput:
        return Throughput(
            self.positions + other.positions,
            self.tokens + other.tokens,
            self.targets + other.targets,
            self.samples + other.samples,
            self.rows + other.rows,
            self.padded_positions + other.padded_positions,
        )

    @property
    def utilization(self) -> float:
        """Valid tokens per allocated position."""
        return self.tokens / max(self.positions, 1)

    @property
    def target_utilization(self) -> float:
        """Targets per allocated position: what training gets for what it pays."""
        return self.targets / max(self.positions, 1)

    @property
    def padded_utilization(self) -> float:
        """Valid tokens per position if each batch's samples were padded to its longest instead."""
        return self.tokens / max(self.padded_positions, 1)

    @property
    def gain(self) -> float:
        """How many times fewer positions than with padding."""
        return self.padded_positions / max(self.positions, 1)

    def verdict(self) -> Verdict:
        """Return the counts as a verdict. Few targets are no fault: it says what is right, too."""
        evidence = {
            "positions": self.positions,
            "tokens": self.tokens,
            "targets": self.targets,
            "samples": self.samples,
            "rows": self.rows,
            "utilization": self.utilization,
            "target_utilization": self.target_utilization,
            "padded_utilization": self.padded_utilization,
            "gain": self.gain,
        }
        if not self.positions:
            return Verdict("throughput", "not tested", "no batch was seen", evidence)
        said = f"{self.utilization:.1%} of {self.positions:,} positions are valid tokens, {self.target_utilization:.1%} targets"
        if self.samples > self.rows:
            rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
            said += (
                f"; {self.samples:,} samples in {rows}, which padded to the longest would be "
                f"{self.padded_utilization:.1%} valid ({self.gain:.2g} x the positions): this claim of packing holds"
            )
        return Verdict("throughput", "right", said, evidence)


def counted(truth: Truth, targets: int) -> Throughput:
    """Return the counts of one batch of which ``truth`` is known and of which ``targets`` tokens are trained."""
    lengths = [stop - start for row in truth.spans() for start, stop in row]
    shape = truth.segment_ids.shape
    return Throughput(
        int(truth.segment_ids.size), sum(lengths), targets, len(lengths), int(shape[0]), len(lengths) * max(lengths, default=0)
    )


def throughput(batches: Iterable[Mapping[str, Any]], *, seq_lengths: Sequence[Sequence[Any]] | None = None) -> Throughput:
    """Return the counts over ``batches`` (dicts with ``input_ids`` [B, T], and ``labels`` or ``shift_labels``).

    Args:
        seq_lengths: for each batch the true lengths, rows of them; left out, what each batch says of itself.

    Raises:
        InputError: a batch without ids, or as many lengths as there are batches are not given.

    >>> batch = {"input_ids": [[5, 6, 7, 8, 0, 0]], "labels": [[-100, 6, -100, 8, -100, -100]]}
    >>> throughput([batch], seq_lengths=[[[2, 2]]]).utilization
    0.6666666666666666
    """
    total = Throughput()
    for index, batch in enumerate(batches):
        if seq_lengths is not None and index >= len(seq_lengths):
            raise InputError("seq_lengths must have an entry for each batch.", f"Batch {index} has none.", "Pass all of them.")
        truth = truth_of(batch, seq_lengths=None if seq_lengths is None else seq_lengths[index])
        asked = batch.get("shift_labels")
        labels = batch.get("labels") if asked is None else asked
        if labels is None:
            targets = 0
        else:
            rows = batch_rows(labels)
            targets = int(np.count_nonzero((rows if asked is not None else rows[:, 1:]) != IGNORE))
        total += counted(truth, targets)
    return total
