"""The loss of a packed batch: next-token cross entropy that never crosses a boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloison.exact.batches import PackedBatch
from cloison.segments import IGNORE

if TYPE_CHECKING:
    import torch

__all__ = ["packed_loss"]


def packed_loss(logits: torch.Tensor, batch: PackedBatch, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the mean over targets of the cross entropy in float32, or the sum over ``num_items_in_batch`` where given.

    ``labels[i]`` is asked of the logits at ``i - 1``: the first label of each segment is -100 (`read_batch` saw to it), so
    no target crosses a boundary. With ``loss_weights`` each target counts by its weight, in the sum alone. Without a target
    the loss is 0 with a zero gradient. Only the logits that have a target are read.
    """
    import torch

    assert batch.labels is not None
    labels = batch.labels[:, 1:].reshape(-1)
    chosen = (labels != IGNORE).nonzero().squeeze(-1)
    rows = logits[:, :-1].reshape(-1, logits.shape[-1])[chosen]
    if chosen.numel() == 0:
        return rows.float().sum()
    losses = torch.nn.functional.cross_entropy(rows.float(), labels[chosen].to(rows.device), reduction="none")
    if batch.loss_weights is not None:
        losses = losses * batch.loss_weights[:, 1:].reshape(-1)[chosen].to(losses)
    return losses.sum() / (chosen.numel() if num_items_in_batch is None else num_items_in_batch)
