"""Losses that mean what they say under packing: sums over targets, and denominators that belong to the whole step.

A mean taken inside a micro-batch depends on what happens to share it: a mean of means weighs a token by its neighbours. So
everything here is a *sum over targets* divided by a denominator of the *global* step, all micro-batches and ranks together:

- `token_mean`: every target weighs the same; the denominator is the targets of the step (or the sum of their weights);
- `sample_mean`: every sample weighs the same, however long it is and whatever it is packed with; a target of a sample with n
  targets weighs 1 / (samples * n), n counted over all fragments of the sample. As per-token weights it serves any trainer
  that multiplies: `sample_mean_weights`;
- `loss_sum`: no mean at all.

Who multiplies by what:

- **Accumulation**: pass the denominator of the whole step to every micro-batch and add the gradients up. Do not divide by the
  number of micro-batches.
- **Ranks**: DDP and FSDP *average* gradients over ranks, so each rank's loss must be multiplied by their number: pass
  ``ranks=world_size``. Where gradients are summed, pass 1. `step_denominator` adds the local counts of all ranks.
- **transformers.Trainer** does both by itself for a loss that takes ``num_items_in_batch``: it counts the targets of the step
  over ranks (``average_tokens_across_devices``, on by default) and multiplies by the number of ranks. Its own loss is right
  then, save that a step without a target is 0/0; `compute_loss_func` is not. Never also pass ``ranks`` there.

Ignored positions are selected away before any arithmetic, never multiplied by 0: NaN times 0 is NaN. Indices: ``labels`` have
the index of ``input_ids`` (the logits of token i - 1 predict label i), and so have losses and weights here; with
``shifted=True`` the second argument is ``targets`` (the logits of token i predict target i).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.segments import IGNORE, Segments

if TYPE_CHECKING:
    import torch

    from cloison.cross_entropy import UnmadeLogits

    Logits = torch.Tensor | UnmadeLogits

__all__ = [
    "compute_loss_func",
    "loss_sum",
    "sample_mean",
    "sample_mean_weights",
    "segment_losses",
    "step_denominator",
    "targets_per_sample",
    "token_losses",
    "token_mean",
]


def token_losses(logits: Logits, labels: torch.Tensor, *, shifted: bool = False) -> torch.Tensor:
    """Return the cross entropy of each target in float32 [B, T], at the index of ``labels``, and 0 where there is none.

    What the logits hold where nothing is asked (NaN, infinity) reaches neither the values nor any gradient.

    Args:
        logits: [B, T, vocabulary] of any float dtype; or a `cloison.cross_entropy.UnmadeLogits`, of which no logits are kept.
        labels: int64 [B, T], -100 where not a target. Labels across a boundary are -100 already (a segment's first token).
        shifted: ``labels`` are targets: the logits of a token predict the entry at the same index.

    Raises:
        InputError: shapes that do not belong together, or a label outside the vocabulary.

    Cost: no copy of the logits; their gradient is written once. Rows without a target are not read at all.
    """
    import torch

    losses, chosen = _chosen_losses(logits, labels, shifted)
    return torch.zeros(labels.shape, dtype=torch.float32, device=logits.device).masked_scatter(chosen, losses)


def loss_sum(
    logits: Logits, labels: torch.Tensor, weights: torch.Tensor | None = None, *, shifted: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of weight * loss over the targets, and the sum of their weights (their number, without weights).

    Both float32 scalars. Without any target the sum is 0 and so is its gradient. For an evaluation add both up over all
    batches and divide once: the same value for any way of packing.

    Args:
        logits, labels, shifted: as in `token_losses`.
        weights: [B, T] at the index of ``labels``; what they hold where there is no target does not matter.
    """
    import torch

    losses, chosen = _chosen_losses(logits, labels, shifted)
    if weights is None:
        return losses.sum(), torch.tensor(float(losses.numel()), device=logits.device)
    if weights.shape != labels.shape:
        raise InputError(
            f"weights must have the shape of labels, {list(labels.shape)}.", f"It is {list(weights.shape)}.", "Pad them alike."
        )
    kept = weights.to(logits.device)[chosen].float()
    return (losses * kept).sum(), kept.sum()


def token_mean(
    logits: Logits,
    labels: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    denominator: torch.Tensor | float | None = None,
    ranks: int = 1,
    shifted: bool = False,
) -> torch.Tensor:
    """Return this micro-batch's share of the mean loss over all targets of the global step; the shares add up to it.

    Args:
        logits, labels, weights, shifted: as in `loss_sum`.
        denominator: the targets (or the sum of weights) of the whole step, over micro-batches and ranks: `step_denominator`
            of their local sums. None: this batch is the whole step.
        ranks: over how many ranks the gradients will be *averaged* (the world size under DDP and FSDP); 1 where they are
            summed or there is one.

    Returns:
        A float32 scalar; 0 with a gradient of 0 where there is no target, also when the denominator is 0.
    """
    total, count = loss_sum(logits, labels, weights, shifted=shifted)
    return _divided(total, count if denominator is None else denominator, ranks)


def sample_mean(
    logits: Logits,
    labels: torch.Tensor,
    segments: Segments,
    *,
    targets_of_samples: npt.ArrayLike | None = None,
    num_samples: torch.Tensor | float | None = None,
    ranks: int = 1,
) -> torch.Tensor:
    """Return this micro-batch's share of the mean over samples of each sample's mean loss.

    Args:
        logits, labels: as in `token_losses`; labels of the index of ``input_ids``.
        segments: the boundaries of the rows [B, T].
        targets_of_samples: [segments], the targets of the *source sample* of each segment, over all its fragments
            (`targets_per_sample`). None: no sample is split, and the segment's own targets count.
        num_samples: samples of the whole step, a fragment counting the share of its sample's targets that it holds. None:
            this batch is the whole step.
        ranks: as in `token_mean`.
    """
    import torch

    sums, counts = segment_losses(logits, labels, segments)
    whole = counts if targets_of_samples is None else torch.as_tensor(np.array(targets_of_samples), device=logits.device)
    if whole.shape != counts.shape or bool((whole < counts).any()):
        raise InputError(
            f"targets_of_samples must have {counts.numel()} entries, each at least the targets of its segment.",
            f"Its shape is {list(whole.shape)}.",
            "Pass the targets of each segment's source sample, over all fragments.",
        )
    per_sample = whole.clamp(min=1).float()
    shares = (counts / per_sample).sum()
    return _divided((sums / per_sample).sum(), shares if num_samples is None else num_samples, ranks)


def segment_losses(
    logits: Logits, labels: torch.Tensor, segments: Segments, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss float32 [segments] and the number of targets int64 [segments] of each segment.

    The negated sums are the log-probabilities of the segments' targets, as preference losses and evaluations want them: equal
    for a packed row and for the sample alone.

    Args:
        logits, labels: [B, T, vocabulary] and [B, T], of the rows of ``segments``.
        weights: [B, T], factors of the losses.

    Raises:
        BoundaryError: the batch has another shape than the segments.
    """
    import torch

    if tuple(labels.shape) != (segments.num_rows, segments.width):
        raise BoundaryError(
            f"labels must be [{segments.num_rows}, {segments.width}], as the segments are.",
            f"The shape is {list(labels.shape)}.",
            "Pass the segments of this batch (with its capacity).",
        )
    ids = segments.segment_ids().astype(np.int64)
    # Row-wise ids 1, 2, ... to one numbering over all rows; the padding goes to a slot of its own that is cut off again.
    places = np.where(ids > 0, ids - 1 + segments.row_offsets[:-1, None], segments.num_segments)
    index = torch.from_numpy(places.reshape(-1)).to(logits.device)
    losses, chosen = _chosen_losses(logits, labels, shifted=False)
    if weights is not None:
        losses = losses * weights.to(logits.device)[chosen].float()
    slots = index.view(chosen.shape)[chosen]
    sums = torch.zeros(segments.num_segments + 1, dtype=torch.float32, device=logits.device).index_add(0, slots, losses)
    counts = torch.bincount(slots, minlength=segments.num_segments + 1)
    return sums[:-1], counts[:-1]


def step_denominator(local: torch.Tensor | float, group: Any = None) -> float:
    """Return the sum of ``local`` over the ranks of ``group``, once a step, before the first backward pass.

    ``local`` is what this rank's micro-batches of the step hold: targets, weights, or samples. Where torch.distributed is not
    initialised it is returned as it is. Every rank must call it, a rank without data with 0.
    """
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return float(local)
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    value = torch.tensor(float(local), dtype=torch.float64, device=device)
    distributed.all_reduce(value, group=group)
    return float(value)


def compute_loss_func(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | float | None = None
) -> torch.Tensor:
    """Return the token mean for ``transformers.Trainer(compute_loss_func=cloison.losses.compute_loss_func)``.

    The Trainer counts ``num_items_in_batch`` over the step and over ranks, and multiplies by the number of ranks; this
    divides by it. Unlike the Trainer's own loss it is 0, not NaN, where a step or an evaluation batch has no target.
    """
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
    return token_mean(logits, labels, denominator=num_items_in_batch)


def targets_per_sample(blocks: Iterable[Block]) -> dict[int, int]:
    """Return how many targets each source sample has over all of ``blocks`` (the whole data set), fragments together."""
    counts: dict[int, int] = {}
    for block in blocks:
        for sample_id, count in zip(block.sample_ids.tolist(), _segment_targets(block).tolist(), strict=True):
            counts[sample_id] = counts.get(sample_id, 0) + count
    return counts


def sample_mean_weights(
    blocks: Iterable[Block], targets: Mapping[int, int] | None = None, num_samples: float | None = None
) -> list[npt.NDArray[np.float32]]:
    """Return per-token weights of ``blocks``, float32 [tokens] each, at the index of ``labels``: the sum of weight * loss over
    all blocks of the step is the sample mean. The weights of a step sum to 1.

    Args:
        blocks: of one step, or of one rank's part of it.
        targets: targets of each source sample over all its fragments (`targets_per_sample` of the whole data set). None: as
            in these blocks, which is right where no sample is split.
        num_samples: samples of the whole step over all ranks, a fragment counting its share; None: those of ``blocks``.

    Weights that the blocks bring along multiply the losses inside their sample; the denominators stay counts of targets.

    Raises:
        InputError: a fragment, and no ``targets``: its sample's targets are not all here.
    """
    parts = list(blocks)
    if targets is None:
        fragments = sum(int((block.starts > 0).sum()) for block in parts)
        if fragments:
            raise InputError(
                "the mean over samples needs the targets of whole samples.",
                f"{fragments} segments are fragments of split samples.",
                "Pass targets=targets_per_sample(all blocks of the data set).",
            )
        targets = targets_per_sample(parts)
    per_segment = [np.array([targets[sample] for sample in block.sample_ids.tolist()], np.float64) for block in parts]
    held = [_segment_targets(block) for block in parts]
    shares = sum(float((have / np.maximum(of, 1)).sum()) for have, of in zip(held, per_segment, strict=True))
    total = shares if num_samples is None else num_samples
    out = []
    for block, of in zip(parts, per_segment, strict=True):
        each = np.repeat(1 / (np.maximum(of, 1) * (total or 1)), block.segments.seq_lengths)
        own = 1.0 if block.loss_weights is None else block.loss_weights
        out.append(np.where(block.labels != IGNORE, each * own, 0).astype(np.float32))
    return out


def _segment_targets(block: Block) -> npt.NDArray[np.int64]:
    """Return int64 [segments]: the targets of each segment."""
    ends = np.concatenate([[0], np.cumsum(block.labels != IGNORE)])
    first = block.segments.first_tokens()
    counts: npt.NDArray[np.int64] = ends[first + block.segments.seq_lengths] - ends[first]
    return counts


def _chosen_losses(logits: Logits, labels: torch.Tensor, shifted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of the targets [n], and where they are: bool [B, T] at the index of ``labels``."""
    import torch

    from cloison.cross_entropy import chosen_cross_entropy

    if logits.ndim != 3 or labels.ndim != 2 or logits.shape[:2] != labels.shape:
        raise InputError(
            "logits must be [B, T, vocabulary] and labels [B, T].",
            f"The shapes are {list(logits.shape)} and {list(labels.shape)}.",
            "Pass both of one batch, without cutting the last logit off.",
        )
    wanted = labels.to(logits.device)
    chosen = wanted != IGNORE
    if not shifted:
        chosen[:, 0] = False
    predictors = chosen if shifted else torch.nn.functional.pad(chosen[:, 1:], (0, 1))
    targets = wanted[chosen]
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < logits.shape[-1]:
        raise InputError(
            f"labels must be 0 .. {logits.shape[-1] - 1}, or -100.",
            f"They reach {int(targets.min())} .. {int(targets.max())}.",
            "Check the tokenizer against the model's vocabulary.",
        )
    rows = predictors.reshape(-1).nonzero()[:, 0]
    if not isinstance(logits, torch.Tensor):
        return logits.cross_entropy(rows, targets), chosen
    return chosen_cross_entropy(logits.reshape(-1, logits.shape[-1]), rows, targets), chosen


def _divided(total: torch.Tensor, denominator: torch.Tensor | float, ranks: int) -> torch.Tensor:
    import torch

    if ranks < 1:
        raise InputError("ranks must be at least 1.", f"It is {ranks}.", "Pass the world size, or 1.")
    below = torch.as_tensor(denominator, dtype=torch.float32, device=total.device)
    return total * ranks / torch.where(below == 0, torch.ones_like(below), below)
