"""The batch of some blocks in the layout that a way runs, boundaries included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from cloison.blocks import Block
from cloison.forms.hf import flat, rows
from cloison.forms.joining import listed

__all__ = ["collated"]


def collated(blocks: Iterable[Block] | Block, layout: Literal["flat", "rows"], labels: bool = True) -> dict[str, Any]:
    """Return the batch of ``blocks``: one row for all ("flat"), or a row for each ("rows"), with ``seq_lengths``.

    ``labels``: whether those of the blocks, which are ids, go along, with their weights.
    """
    import torch

    parts = listed(blocks)
    make: Any = rows if layout == "rows" else flat
    batch = dict(make(parts, loss_weights="keep"))
    if layout == "rows":
        most = max(len(part) for part in parts)
        lengths = [[*part.segments.seq_lengths.tolist(), *[0] * (most - len(part))] for part in parts]
    else:
        lengths = [[int(length) for part in parts for length in part.segments.seq_lengths]]
    batch["seq_lengths"] = torch.tensor(lengths, dtype=torch.int32)
    return batch if labels else {name: value for name, value in batch.items() if name not in ("labels", "loss_weights")}
