"""Boundaries as a tensor: what a model passes on as its mask, and `segment_attention` reads.

They travel with the micro-batch (transformers returns a 4-D mask untouched), so that a second forward, a recomputation in the
backward and a pipeline schedule each read those of their own call. What a kernel makes of them is kept on the tensor, never
anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.errors import BoundaryError
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["Boundaries", "boundaries", "is_boundaries", "kept_on", "read"]

_MARK = -7
_HEAD = 4  # entries before the offsets: mark, window, chunk, tokens
_KEPT = "_cloison_kept"


@dataclass(frozen=True)
class Boundaries:
    """What the tensor states.

    Attributes:
        lengths: tokens of each segment, padding tails as segments of their own, over all rows.
        window, chunk: 0 where none is stated.
    """

    lengths: tuple[int, ...]
    window: int
    chunk: int


def boundaries(
    segments: Segments, window: int | None = None, chunk: int | None = None, *, like: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the boundaries of ``segments`` as an int32 tensor [1, 1, 1, n] that `segment_attention` reads as its mask.

    Each row's padding is a segment of its own. ``window`` and ``chunk`` are as in `Segments.dense_mask`; None leaves the window
    to the keyword that the model passes; ``like`` gives both from boundaries made before. The tensor lives on the host:
    reading it never waits for a device.
    """
    import torch

    if like is not None:
        window, chunk = int(like[0, 0, 0, 1]), int(like[0, 0, 0, 2])

    offsets = segments.cu_seqlens(covering=True)
    head = [_MARK, window or 0, chunk or 0, segments.num_rows * segments.width]
    return torch.from_numpy(np.concatenate([np.array(head, np.int32), offsets]))[None, None, None]


def is_boundaries(mask: Any) -> bool:
    """Whether ``mask`` is what `boundaries` makes."""
    return getattr(mask, "ndim", 0) == 4 and tuple(mask.shape[:3]) == (1, 1, 1) and int(mask[0, 0, 0, 0]) == _MARK


def read(mask: Any, tokens: int, key_tokens: int) -> Boundaries:
    """Return what ``mask`` states.

    Raises:
        BoundaryError: it is no boundaries, or not of ``tokens`` queries and ``key_tokens`` keys.
    """
    found: Boundaries = kept_on(mask, (tokens, key_tokens), lambda: _read(mask, tokens, key_tokens))
    return found


def _read(mask: Any, tokens: int, key_tokens: int) -> Boundaries:
    if not is_boundaries(mask):
        raise BoundaryError(
            "this attention reads the boundaries from the mask that the model passes.",
            "The model passed no mask." if mask is None else f"The model passed a mask of shape {list(mask.shape)}.",
            "This model does not hand its attention_mask to its attention: adapt tries the next way.",
        )
    entries = [int(entry) for entry in mask[0, 0, 0].tolist()]
    lengths = np.diff(entries[_HEAD:])
    if entries[3] != tokens or entries[-1] != tokens or key_tokens != tokens or (lengths <= 0).any():
        raise BoundaryError(
            f"the boundaries must cover the {tokens} tokens of the queries.",
            f"They cover {entries[-1]}, and there are {key_tokens} keys.",
            "Pass the boundaries of this batch, without a cache.",
        )
    return Boundaries(tuple(lengths.tolist()), entries[1], entries[2])


def kept_on(mask: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """Return what ``make`` gives, made once for each ``key`` of this very tensor: all layers of a call share it."""
    kept = getattr(mask, _KEPT, None)
    if kept is None:
        kept = {}
        if mask is not None:
            setattr(mask, _KEPT, kept)
    if key not in kept:
        kept[key] = make()
    return kept[key]
