"""Between packed rows [B, T] and one row a segment [segments, longest], for any tensor, forth and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Where each token of packed rows stands when every segment has a row of its own, right-padded.

    Attributes:
        rows, width: B and T of the packed rows.
        lengths: tokens of each segment, in order.
        places: int64 [segments, longest], the index of each token among the flattened [B * T]; padding repeats the segment's
            last token, so that a gather gives finite values there.
        valid: bool [segments, longest].
    """

    rows: int
    width: int
    lengths: tuple[int, ...]
    places: torch.Tensor
    valid: torch.Tensor

    @classmethod
    def of(
        cls, segments: Segments, device: torch.device, *, padding: bool = False, chosen: Sequence[int] | None = None
    ) -> Layout:
        """Return the layout of ``segments``, or of the ``chosen`` ones; with ``padding`` each row's padding tail counts as one."""
        import torch

        lengths: list[int] = []
        starts: list[int] = []
        for row, row_lengths in enumerate(segments.rows()):
            tail = segments.width - sum(row_lengths)
            row_lengths = [*row_lengths, tail] if padding and tail else row_lengths
            starts += (row * segments.width + np.cumsum([0, *row_lengths])[:-1]).tolist()
            lengths += row_lengths
        if chosen is not None:
            lengths, starts = [lengths[i] for i in chosen], [starts[i] for i in chosen]
        first = torch.tensor(starts, dtype=torch.int64)[:, None]
        size = torch.tensor(lengths, dtype=torch.int64)[:, None]
        steps = torch.arange(max(lengths, default=0))[None]
        places = first + torch.minimum(steps, size - 1)
        return cls(segments.num_rows, segments.width, tuple(lengths), places.to(device), (steps < size).to(device))

    def to_rows(self, packed: torch.Tensor) -> torch.Tensor:
        """Return ``packed`` [B, T, ...] as [segments, longest, ...]."""
        return packed.reshape(self.rows * self.width, *packed.shape[2:])[self.places]

    def to_packed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` [segments, longest, ...] as [B, T, ...], with 0 where no segment is."""
        flat = rows.new_zeros(self.rows * self.width, *rows.shape[2:])
        flat = flat.index_put((self.places[self.valid],), rows[self.valid])
        return flat.reshape(self.rows, self.width, *rows.shape[2:])
