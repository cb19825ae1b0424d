"""Transformer Engine and Megatron: packed sequences in the "thd" layout, and their split over context-parallel ranks.

The kernels take two sets of offsets: the real lengths, and the lengths rounded up so that each segment divides by 2 * cp (and
by 8 or 16 for FP8). Rounding down loses tokens; passing only one of the two attends to padding. Targets are shifted inside
each segment *before* anything is split, because afterwards a rank's last token has lost its successor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.forms.joining import join
from cloison.forms.tensors import tensor
from cloison.segments import IGNORE, Segments

if TYPE_CHECKING:
    import torch

__all__ = ["batch", "contiguous_indices", "packed_seq_params", "padded", "split", "zigzag_indices"]


def padded(segments: Segments, *, align: int = 1, cp: int = 1, total: int | None = None) -> Segments:
    """Return the one row of padded lengths: each rounded up to a multiple of ``align`` and of 2 * cp (where cp > 1).

    Args:
        segments: any number of rows; they are taken one after the other.
        total: a fixed number of tokens for static shapes; the last segment's padding takes the rest.

    Raises:
        InputError: align or cp below 1, or a total that the multiple does not divide.
        BoundaryError: more padded tokens than ``total``.
    """
    if align < 1 or cp < 1:
        raise InputError("align and cp must be at least 1.", f"They are {align} and {cp}.", "Pass 1 for none.")
    multiple = math.lcm(align, 2 * cp if cp > 1 else 1)
    lengths = Segments.from_lengths([segments.seq_lengths]).align(multiple).seq_lengths.astype(np.int64)
    if total is not None:
        rest = total - int(lengths.sum())
        if total % multiple:
            raise InputError(f"total must be a multiple of {multiple}.", f"It is {total}.", "Round it up.")
        if rest < 0:
            raise BoundaryError(
                f"the padded segments must fit {total} tokens.",
                f"They have {total - rest}.",
                f"Plan with align={multiple}, or raise total.",
            )
        lengths[-1:] += rest
    return Segments.from_lengths([lengths])


def packed_seq_params(
    segments: Segments,
    *,
    align: int = 1,
    cp: int = 1,
    total: int | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Return the fields of Megatron's ``PackedSeqParams``, for tensors padded as `batch` pads them.

    Returns:
        ``qkv_format`` "thd"; ``cu_seqlens_q`` and ``cu_seqlens_kv`` int32 [segments + 1] of real lengths, and the same with
        ``_padded``; ``max_seqlen_q`` and ``max_seqlen_kv``, the longest *padded* length as a Python integer;
        ``total_tokens``, padding included.
    """
    wide = padded(segments, align=align, cp=cp, total=total)
    real_offsets = tensor(segments.cu_seqlens(), np.int32, device)
    wide_offsets = tensor(wide.cu_seqlens(), np.int32, device)
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": real_offsets,
        "cu_seqlens_kv": real_offsets,
        "cu_seqlens_q_padded": wide_offsets,
        "cu_seqlens_kv_padded": wide_offsets,
        "max_seqlen_q": wide.max_seqlen,
        "max_seqlen_kv": wide.max_seqlen,
        "total_tokens": wide.num_tokens,
    }


def batch(
    blocks: Iterable[Block] | Block, *, align: int = 1, cp: int = 1, total: int | None = None, pad_id: int = 0
) -> dict[str, Any]:
    """Return one row [1, T] in Megatron's names, every segment padded to its multiple, and its ``packed_seq_params``.

    Returns:
        ``tokens``; ``labels``, which in Megatron are the targets: already shifted inside each segment, 0 where there is none;
        ``loss_mask`` float32, 1 (or the loss weight) on targets and 0 elsewhere; ``position_ids``, 0.. in each padded
        segment; ``padding_mask``, True on padding; int64 unless said. ``packed_seq_params``: see `packed_seq_params`.
    """
    block = join(blocks)
    real = Segments.from_lengths([block.segments.seq_lengths])
    wide = padded(real, align=align, cp=cp, total=total)
    place = np.arange(real.num_tokens) + np.repeat(wide.first_tokens() - real.first_tokens(), real.seq_lengths)
    targets = real.targets(block.labels)
    weights = np.ones(block.num_tokens, np.float32) if block.loss_weights is None else block.loss_weights
    shifted = np.where(targets != IGNORE, real.targets(weights, fill=0), 0)

    def spread(values: npt.NDArray[Any], fill: float, dtype: npt.DTypeLike) -> torch.Tensor:
        out = np.full(wide.num_tokens, fill, dtype)
        out[place] = values
        return tensor(out[None], dtype)

    return {
        "tokens": spread(block.input_ids, pad_id, np.int64),
        "labels": spread(np.where(targets != IGNORE, targets, 0), 0, np.int64),
        "loss_mask": spread(shifted, 0, np.float32),
        "position_ids": tensor(wide.position_ids(), np.int64),
        "padding_mask": spread(np.zeros(real.num_tokens, np.bool_), True, np.bool_),
        "packed_seq_params": packed_seq_params(real, align=align, cp=cp, total=total),
    }


def zigzag_indices(segments: Segments, cp: int, rank: int) -> npt.NDArray[np.int64]:
    """Return int64 [tokens / cp]: the tokens of context-parallel ``rank``, for `padded` segments.

    Each segment is cut into 2 * cp equal chunks, and a rank takes chunk ``rank`` and chunk ``2 * cp - 1 - rank``: the causal
    triangle costs every rank the same. The order of ``thd_get_partitioned_indices`` of Transformer Engine.

    Raises:
        InputError: a rank outside cp, or a length that 2 * cp does not divide.
    """
    _check_rank(cp, rank)
    uneven = segments.seq_lengths % (2 * cp)
    if uneven.any():
        where = int(np.flatnonzero(uneven)[0])
        raise InputError(
            f"every length must be a multiple of 2 * cp = {2 * cp}.",
            f"Length {where} is {segments.seq_lengths[where]}.",
            "Pass padded(segments, cp=cp).",
        )
    pieces = []
    for first, length in zip(segments.first_tokens().tolist(), segments.seq_lengths.tolist(), strict=True):
        size = length // (2 * cp)
        for chunk in (rank, 2 * cp - 1 - rank):
            pieces.append(np.arange(first + chunk * size, first + (chunk + 1) * size))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def contiguous_indices(num_tokens: int, ranks: int, rank: int) -> npt.NDArray[np.int64]:
    """Return int64 [num_tokens / ranks]: the tokens of ``rank`` where each takes one stretch (Ulysses, ring attention).

    Raises:
        InputError: a rank outside ``ranks``, or a number of tokens that they do not divide.
    """
    _check_rank(ranks, rank)
    if num_tokens % ranks:
        raise InputError(f"tokens must be a multiple of {ranks} ranks.", f"There are {num_tokens}.", "Pad the row.")
    size = num_tokens // ranks
    return np.arange(rank * size, (rank + 1) * size)


def split(batch: Mapping[str, Any], indices: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the batch with the columns ``indices`` of every [1, T] tensor, and all else as it is.

    Give it a batch whose targets are shifted already (`batch`, or ``shift_labels``): a shift after the split is wrong at
    every cut.

    Raises:
        InputError: the batch has ``labels`` beside ``input_ids`` and no ``shift_labels``: they would be shifted after.
    """
    if "input_ids" in batch and "labels" in batch and "shift_labels" not in batch:
        raise InputError(
            "targets must be shifted before a batch is split.",
            "This one has labels that the model shifts itself.",
            "Use cloison.forms.thd.batch, or add shift_labels.",
        )
    width = int(next(iter(value for value in batch.values() if getattr(value, "ndim", 0) == 2)).shape[1])
    chosen = tensor(indices, np.int64)
    return {
        name: value[:, chosen] if getattr(value, "ndim", 0) == 2 and value.shape[1] == width else value
        for name, value in batch.items()
    }


def _check_rank(ranks: int, rank: int) -> None:
    if ranks < 1 or not 0 <= rank < ranks:
        raise InputError("rank must be one of 0 .. ranks - 1.", f"It is {rank} of {ranks}.", "Check the process group.")
