"""FlexAttention: the ``BlockMask`` of packed rows, built from the boundaries in O(T + (T / block)^2) with no mask evaluated.

``torch.nn.attention.flex_attention.create_block_mask`` evaluates a mask function at every one of T * T places. Here the blocks
that are empty, partial and full follow from the intervals of `key_intervals`: in every row of blocks, and in every column,
the blocks that are not empty are one run, and so are those that are full. The eight tensors are written in the order that
torch 2.13 writes them (present blocks rising, then absent ones rising), and are equal to it entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.forms.intervals import key_intervals
from cloison.forms.tensors import tensor
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["block_map", "block_mask", "mask_mod"]

Runs = npt.NDArray[np.int64]
"""int64 [B, rows of blocks]: one end of a run of blocks."""


def block_mask(
    segments: Segments,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    prefix_lengths: Sequence[int] | None = None,
    block_size: int | tuple[int, int] = 128,
    device: str | torch.device | None = None,
) -> BlockMask:
    """Return the BlockMask [B, 1, T, T] of ``segments``, as `create_block_mask` over the dense mask would.

    All shapes depend on B, T and ``block_size`` alone, never on the number of segments: compiled ``flex_attention`` takes a
    new mask each step without compiling again, as long as the rows keep their width (give the Segments a capacity).

    Args:
        causal, window, chunk, prefix_lengths: as in `Segments.dense_mask`. The padding tail is a segment that sees itself.
        block_size: tokens a block, or (queries, keys); at least 1.
        device: of the tensors; None: the CPU.

    Cost: a few milliseconds at 131,072 tokens. The tensors take 16 * B * (T / block)^2 bytes.
    """
    from torch.nn.attention.flex_attention import BlockMask

    q_size, kv_size = _sizes(block_size)
    bounds = key_intervals(segments, causal=causal, window=window, chunk=chunk, prefix_lengths=prefix_lengths)
    (some, full), (some_t, full_t) = _runs(*bounds, q_size, kv_size)
    num_q, num_kv = some[0].shape[1], some_t[0].shape[1]
    ordered = {
        ("kv_num_blocks", "kv_indices"): _ordered(some, full, num_kv),
        ("full_kv_num_blocks", "full_kv_indices"): _ordered(full, None, num_kv),
        ("q_num_blocks", "q_indices"): _ordered(some_t, full_t, num_q),
        ("full_q_num_blocks", "full_q_indices"): _ordered(full_t, None, num_q),
    }
    tensors: dict[str, Any] = {
        name: tensor(array[:, None], np.int32, device)
        for names, pair in ordered.items()
        for name, array in zip(names, pair, strict=True)
    }
    last = None if causal and prefix_lengths is None else tensor(bounds[1], np.int32, device)
    return BlockMask(
        (segments.width, segments.width),
        BLOCK_SIZE=(q_size, kv_size),
        mask_mod=_interval_mod(tensor(bounds[0], np.int32, device), last),
        **tensors,
    )


def mask_mod(segments: Segments, *, device: str | torch.device | None = None, **options: Any) -> Callable[..., torch.Tensor]:
    """Return the mask function ``(b, h, q_idx, kv_idx) -> bool`` of `block_mask` alone; ``options`` are those of its mask.

    It compares the key with the two ends of the query's interval, so that a kernel loads nothing per key.
    """
    first, last = key_intervals(segments, **options)
    return _interval_mod(tensor(first, np.int32, device), tensor(last, np.int32, device))


def block_map(segments: Segments, *, block_size: int | tuple[int, int] = 128, **options: Any) -> npt.NDArray[np.int8]:
    """Return int8 [B, query blocks, key blocks]: 0 where no token may attend, 1 where some may, 2 where all may.

    >>> block_map(Segments.from_lengths([[2, 2, 4]]), block_size=2)[0].tolist()
    [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 2, 1]]
    """
    (some, full), (some_t, _) = _runs(*key_intervals(segments, **options), *_sizes(block_size))
    column = np.arange(some_t[0].shape[1])
    within = [(lo[..., None] <= column) & (column < hi[..., None]) for lo, hi in (some, full)]
    return within[0].astype(np.int8) + within[1].astype(np.int8)


def _sizes(block_size: int | tuple[int, int]) -> tuple[int, int]:
    sizes = (block_size, block_size) if isinstance(block_size, int) else (int(block_size[0]), int(block_size[1]))
    if min(sizes) < 1:
        raise InputError("block_size must be at least 1 token.", f"It is {block_size}.", "flex kernels want 128.")
    return sizes


def _runs(
    first: npt.NDArray[np.int32], last: npt.NDArray[np.int32], q_size: int, kv_size: int
) -> tuple[tuple[tuple[Runs, Runs], tuple[Runs, Runs]], tuple[tuple[Runs, Runs], tuple[Runs, Runs]]]:
    """Return the runs [start, stop) of non-empty and of full blocks, along each row of blocks and along each column."""
    width = first.shape[1]
    num_q, num_kv = -(-width // q_size), -(-width // kv_size)
    head = np.arange(num_q) * q_size
    tail = np.minimum(head + q_size, width) - 1
    # Both ends rise with the query: a block of queries reaches from the first query's first key to the last one's last, and
    # what all of its queries see is from the last query's first key to the first one's last.
    some = (first[:, head].astype(np.int64) // kv_size, last[:, tail].astype(np.int64) // kv_size + 1)
    full_lo = -(-first[:, tail].astype(np.int64) // kv_size)
    full_hi = (last[:, head].astype(np.int64) + 1) // kv_size
    if width % q_size:
        full_lo[:, -1] = num_kv  # torch pads the mask with False: a block of queries that passes T is never full
    full = (full_lo, full_hi)
    some_t = (_at_most(some[1], num_kv), _at_most(some[0], num_kv))
    full_t = (_at_most(full[1], num_kv), _at_most(full[0], num_kv))
    return (some, _proper(*full)), (some_t, _proper(*full_t))


def _at_most(rising: Runs, columns: int) -> Runs:
    """Return int64 [B, columns]: how many entries of the row are at most j."""
    batch = rising.shape[0]
    keys = np.minimum(rising, columns) + np.arange(batch)[:, None] * (columns + 1)
    counts = np.bincount(keys.reshape(-1), minlength=batch * (columns + 1)).reshape(batch, columns + 1)
    return np.cumsum(counts, axis=1)[:, :columns]


def _proper(lo: Runs, hi: Runs) -> tuple[Runs, Runs]:
    """Return the runs with the empty ones as [0, 0)."""
    empty = lo >= hi
    return np.where(empty, 0, lo), np.where(empty, 0, hi)


def _ordered(
    run: tuple[Runs, Runs], hole: tuple[Runs, Runs] | None, columns: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return counts int32 [B, R] and indices int32 [B, R, columns]: the run less the hole, rising, then all others, rising.

    Each row of indices is five stretches of consecutive numbers, so it is the running sum of ones with four jumps.
    """
    lo, hi = run
    if hole is None:
        cut_lo = cut_hi = lo
    else:
        none = hole[0] >= hole[1]
        cut_lo, cut_hi = np.where(none, lo, hole[0]), np.where(none, lo, hole[1])
    counts = (cut_lo - lo) + (hi - cut_hi)
    starts = (lo, cut_hi, np.zeros_like(lo), cut_lo, hi)
    lengths = (cut_lo - lo, hi - cut_hi, lo, cut_hi - cut_lo)
    steps = np.ones((*lo.shape, columns + 1), np.int32)
    batch, rows = np.arange(lo.shape[0])[:, None], np.arange(lo.shape[1])
    place, ahead = np.zeros_like(lo), np.zeros_like(lo)
    steps[batch, rows, 0] = 0
    for index, start in enumerate(starts):
        # A stretch of length 0 adds its jump where the next one adds its own: they sum to the right one.
        steps[batch, rows, place] += (start - ahead).astype(np.int32)
        if index < len(lengths):
            place = place + lengths[index]
            ahead = start + lengths[index]
    indices = np.cumsum(steps[..., :columns], axis=-1, dtype=np.int32)
    return counts.astype(np.int32), indices


def _interval_mod(first: torch.Tensor, last: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    if last is None:

        def causal_interval(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return (kv_idx >= first[b, q_idx]) & (kv_idx <= q_idx)

        return causal_interval

    def interval(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx >= first[b, q_idx]) & (kv_idx <= last[b, q_idx])

    return interval
