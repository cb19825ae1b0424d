"""JAX: segment ids and masks as numpy arrays (jax is not imported), and the names that grain and MaxText use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.forms.joining import listed, segments_of
from cloison.segments import IGNORE, Segments

__all__ = ["grain", "mask", "maxtext", "segment_ids"]


def segment_ids(segments: Segments) -> npt.NDArray[np.int32]:
    """Return int32 [B, T]: 1, 2, ... in each row, 0 in the padding, as splash and TPU flash attention take them.

    Pass the same array for queries and keys. Those kernels compare ids for equality, so padding sees padding alone.
    """
    return segments.segment_ids()


def mask(segments: Segments, **options: Any) -> npt.NDArray[np.bool_]:
    """Return bool [B, 1, T, T] for ``jax.nn.dot_product_attention(q, k, v, mask=...)``, True where a query may attend.

    ``options`` are those of `Segments.dense_mask`. Leave ``is_causal`` off: the mask says it.
    """
    return segments.dense_mask(**options)


def grain(blocks: Iterable[Block] | Block, capacity: int | None = None, *, pad_id: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Return rows [B, T] under the names of grain's packing: ``{f}``, ``{f}_segment_ids``, ``{f}_positions``, all int32.

    Returns:
        f is ``inputs`` and ``targets``. Segment ids count from 1 and positions from 0 in each segment; padding has 0 in both.
        ``targets`` are already shifted, and ``targets_segment_ids`` are 0 where there is none (a segment's last token, a
        masked prompt, padding): that is the loss mask of those trainers, and the input's ids would train the padding.
    """
    return _rows(blocks, capacity, pad_id, "_segment_ids", "_positions")


def maxtext(blocks: Iterable[Block] | Block, capacity: int | None = None, *, pad_id: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `grain` under MaxText's names: ``{f}_segmentation`` and ``{f}_position``."""
    return _rows(blocks, capacity, pad_id, "_segmentation", "_position")


def _rows(
    blocks: Iterable[Block] | Block, capacity: int | None, pad_id: int, ids_name: str, positions_name: str
) -> dict[str, npt.NDArray[Any]]:
    parts = listed(blocks)
    segments = segments_of(parts, max(block.segments.width for block in parts) if capacity is None else capacity)
    ids = segments.segment_ids()
    valid = ids > 0
    inputs = np.full(ids.shape, pad_id, np.int32)
    inputs[valid] = np.concatenate([block.input_ids for block in parts])
    shifted = np.full(ids.shape, IGNORE, np.int32)
    shifted[valid] = np.concatenate([block.targets for block in parts])
    positions = np.where(valid, segments.position_ids(), 0).astype(np.int32)
    return {
        "inputs": inputs,
        f"inputs{ids_name}": ids,
        f"inputs{positions_name}": positions,
        "targets": np.where(shifted != IGNORE, shifted, pad_id),
        f"targets{ids_name}": np.where(shifted != IGNORE, ids, 0),
        f"targets{positions_name}": positions,
    }
