"""Between packed rows [B, T] and one row a segment [segments, longest], for any tensor, forth and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["Layout", "equal_lengths"]


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
        """Return the layout of ``segments``, or of the ``chosen`` ones; with ``padding`` padding tails count too."""
        import torch

        rows = _with_padding(segments) if padding else segments.rows()
        lengths = [length for row in rows for length in row]
        starts = [
            row * segments.width + start for row, sizes in enumerate(rows) for start in np.cumsum([0, *sizes])[:-1].tolist()
        ]
        if chosen is not None:
            lengths, starts = [lengths[i] for i in chosen], [starts[i] for i in chosen]
        first = torch.tensor(starts, dtype=torch.int64)[:, None]
        size = torch.tensor(lengths, dtype=torch.int64)[:, None]
        steps = torch.arange(max(lengths, default=0))[None]
        places = first + torch.minimum(steps, size - 1)
        return cls(segments.num_rows, segments.width, tuple(lengths), places.to(device), (steps < size).to(device))

    @classmethod
    def of_one_row(cls, segments: Segments, device: torch.device) -> Layout:
        """Return the layout of all rows of ``segments`` one after the other, padding included: [1, B * T]."""
        import torch

        tokens = segments.num_rows * segments.width
        places = torch.arange(tokens, device=device)[None]
        return cls(segments.num_rows, segments.width, (tokens,), places, torch.ones_like(places, dtype=torch.bool))

    @property
    def longest(self) -> int:
        """Tokens of the longest segment: the width of the rows."""
        return int(self.places.shape[1])

    def to_rows(self, packed: torch.Tensor) -> torch.Tensor:
        """Return ``packed`` [B, T, ...] as [segments, longest, ...]."""
        return packed.reshape(self.rows * self.width, *packed.shape[2:])[self.places]

    def to_packed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` [segments, longest, ...] as [B, T, ...], with 0 where no segment is."""
        flat = rows.new_zeros(self.rows * self.width, *rows.shape[2:])
        flat = flat.index_put((self.places[self.valid],), rows[self.valid])
        return flat.reshape(self.rows, self.width, *rows.shape[2:])

    def mask_to_rows(self, mask: torch.Tensor) -> torch.Tensor:
        """Return an additive or boolean mask [B, heads, T, T] as [segments, heads, longest, longest]; padding is not seen."""
        import torch

        row, column = self.places // self.width, self.places % self.width
        taken = mask[
            row[:, :1, None, None],
            torch.arange(mask.shape[1])[None, :, None, None],
            column[:, None, :, None],
            column[:, None, None],
        ]
        steps = torch.arange(self.longest, device=mask.device)
        hidden = ~self.valid[:, None, None, :] & (steps[:, None] != steps[None])
        return taken.masked_fill(hidden, False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min)

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``options`` with every tensor [B, T, ...] unpacked."""
        shape = (self.rows, self.width)
        return {
            name: self.to_rows(value) if tuple(getattr(value, "shape", ())[:2]) == shape else value
            for name, value in options.items()
        }


def equal_lengths(segments: Segments, *, padding: bool = False) -> list[list[int]]:
    """Return the indices of the segments in groups of equal length; with ``padding`` padding tails count as segments."""
    groups: dict[int, list[int]] = {}
    rows = _with_padding(segments) if padding else segments.rows()
    for index, length in enumerate(length for row in rows for length in row):
        groups.setdefault(length, []).append(index)
    return list(groups.values())


def _with_padding(segments: Segments) -> list[list[int]]:
    rows = segments.rows()
    return [[*row, segments.width - sum(row)] if sum(row) < segments.width else row for row in rows]
