"""Ranks that train on the same rows in one step: a sampler that was never told how many ranks there are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.findings import Finding

__all__ = ["digests", "repeated_rows", "replicated"]

FEWEST = 16
"""Ranks that share fewer tokens than these may do so by chance."""


def digests(input_ids: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> dict[str, int]:
    """Return a digest of the valid tokens of each row [B, T], to how many they are."""
    rows = (row[real] for row, real in zip(input_ids, valid, strict=True) if real.any())
    return {hashlib.sha256(row.tobytes()).hexdigest(): int(row.size) for row in rows}


def replicated(model: Any) -> bool:
    """Whether every rank is a data-parallel replica by how ``model`` is wrapped, so that each has rows of its own."""
    import torch.distributed as dist

    group = getattr(model, "process_group", None)
    if type(model).__name__ != "DistributedDataParallel" or group is None:
        return False
    return int(dist.get_world_size(group)) == dist.get_world_size()


def repeated_rows(ranks: Sequence[dict[str, int]], sure: bool) -> list[Finding]:
    """Return what is to be said where all rows of one rank's step are those of another's.

    Args:
        ranks: `digests` of every rank's step, all micro-batches.
        sure: each rank ought to have rows of its own; else ranks may share a batch by design (tensor, context, pipeline).
    """
    for second, rows in enumerate(ranks):
        for first in range(second):
            if rows and rows.keys() == ranks[first].keys() and sum(rows.values()) >= FEWEST:
                hedge = "" if sure else " Right only where these ranks share a batch: tensor, context or pipeline parallel."
                said = (
                    f"ranks {first} and {second} train on the same {len(rows)} rows ({sum(rows.values())} tokens): they do the "
                    f"same work twice, and the step sees half of what it counts.{hedge}"
                )
                return [
                    Finding(
                        "rows_repeated",
                        "error" if sure else "warning",
                        said,
                        "Deal the data by rank: DistributedSampler, split_dataset_by_node, cloison.loader(rank=, world_size=).",
                        {"ranks": [first, second], "rows": len(rows)},
                    )
                ]
    return []
