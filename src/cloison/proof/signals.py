"""The ways in which users tell a Hugging Face model that a row holds several samples, each a collate function.

They are here to be measured, the wrong ones too. What a model should be given is the business of `cloison.forms` and
`cloison.adapt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.segments import Segments

__all__ = ["SIGNALS", "UseCache", "flat_segments", "signal"]

UseCache = Literal["off", "default", "on"]
"""off: ``use_cache=False`` is passed; on: True is; default: nothing is, and the model's configuration decides."""

Batch = dict[str, Any]


def signal(name: str, use_cache: UseCache = "off", dtype: Any = None) -> Callable[[Sequence[Block]], Batch]:
    """Return the collate function of the signal ``name``, for one flat row [1, tokens] of all blocks.

    Args:
        name: "none" (ids and labels only), "positions" (positions restart in each segment), "positions-ones" (these and an
            all-ones 2-D mask), "mask4d" (positions and an additive float mask [1, 1, T, T]), "mask4d-bool" (the same as
            booleans) or "flattening" (transformers' `DataCollatorWithFlattening` with every keyword it can return).
        use_cache: see `UseCache`.
        dtype: torch dtype of the additive mask (float32 unless given; it must be the model's).

    Raises:
        InputError: an unknown name.
    """
    if name not in SIGNALS:
        raise InputError(f"a signal is one of {', '.join(SIGNALS)}.", f"{name!r} is none.", "Pass one of them.")
    return partial(_collate, name, use_cache, dtype)


def flat_segments(blocks: Sequence[Block]) -> Segments:
    """Return the segments of all ``blocks`` as one row."""
    return Segments.from_lengths([np.concatenate([block.segments.seq_lengths for block in blocks])])


def _collate(name: str, use_cache: UseCache, dtype: Any, blocks: Sequence[Block]) -> Batch:
    batch = SIGNALS[name](blocks, dtype)
    if use_cache != "default":
        batch["use_cache"] = use_cache == "on"
    return batch


def _none(blocks: Sequence[Block], dtype: Any = None) -> Batch:
    import torch

    return {
        name: torch.from_numpy(np.concatenate([getattr(block, name) for block in blocks]).astype(np.int64))[None]
        for name in ("input_ids", "labels")
    }


def _positions(blocks: Sequence[Block], dtype: Any = None) -> Batch:
    import torch

    return _none(blocks) | {"position_ids": torch.from_numpy(flat_segments(blocks).position_ids().copy())}


def _positions_ones(blocks: Sequence[Block], dtype: Any = None) -> Batch:
    import torch

    batch = _positions(blocks)
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def _mask4d(blocks: Sequence[Block], dtype: Any = None) -> Batch:
    import torch

    allowed = _mask4d_bool(blocks)
    dtype = dtype or torch.float32
    mask = torch.zeros(allowed["attention_mask"].shape, dtype=dtype)
    return allowed | {"attention_mask": mask.masked_fill(~allowed["attention_mask"], torch.finfo(dtype).min)}


def _mask4d_bool(blocks: Sequence[Block], dtype: Any = None) -> Batch:
    import torch

    return _positions(blocks) | {"attention_mask": torch.from_numpy(flat_segments(blocks).dense_mask().copy())}


def _flattening(blocks: Sequence[Block], dtype: Any = None) -> Batch:
    from transformers import DataCollatorWithFlattening

    collator: Any = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)  # type: ignore[no-untyped-call]
    samples = [sample for block in blocks for sample in block.samples()]
    features = [{"input_ids": sample.input_ids.tolist(), "labels": sample.labels.tolist()} for sample in samples]
    return dict(collator(features, return_tensors="pt"))


SIGNALS: Mapping[str, Callable[..., Batch]] = {
    "none": _none,
    "positions": _positions,
    "positions-ones": _positions_ones,
    "mask4d": _mask4d,
    "mask4d-bool": _mask4d_bool,
    "flattening": _flattening,
}
"""Name to function of (blocks, dtype)."""
