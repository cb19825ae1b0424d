"""Hugging Face causal models: batches for ``model(**batch)``, additive masks, and the positions of special families.

Two facts of transformers (5.24, measured) shape every batch here. A model finds the segments of a packed row by itself only
where it gets ``position_ids`` and neither a mask nor a cache: so ``use_cache=False`` is always said, and an all-ones
``attention_mask`` is never sent, since it switches the detection off in silence. And a 4-D mask replaces whatever window the
model has: `mask4d` builds it in. Whether a given model heeds any of this is for `cloison.verify` to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.forms.flex import block_mask
from cloison.forms.joining import join, listed, segments_of
from cloison.forms.linear import seq_idx
from cloison.forms.tensors import tensor
from cloison.segments import IGNORE, Segments

if TYPE_CHECKING:
    import torch

__all__ = ["KERNELS", "collate", "flat", "kernel_arguments", "mask4d", "masks_by_layer_type", "mrope_positions", "rows"]

KERNELS: Mapping[str, tuple[str, ...]] = {
    "flash": ("cu_seq_lens",),
    "linear": ("cu_seq_lens",),
    "mamba": ("seq_idx",),
    "seq_idx": ("seq_idx",),
    "flex": ("block_mask",),
    "mask": ("dense_mask",),
}
"""What each ``kernel`` adds: FlashAttention and linear attention read ``cu_seq_lens_q/k`` and ``max_length_q/k``, mamba and
short-convolution kernels read ``seq_idx``, "flex" is a ``BlockMask`` as ``attention_mask`` for flex attention, and "mask" the
dense 4-D additive mask for attention that knows nothing else. These two replace a sliding window that the model has."""

LossWeights = Literal["raise", "keep", "drop"]


def flat(
    blocks: Iterable[Block] | Block,
    kernel: str | Sequence[str] | None = None,
    *,
    pad_to_multiple_of: int = 1,
    pad_id: int = 0,
    position_start: int = 0,
    static: int | None = None,
    mask_dtype: torch.dtype | None = None,
    loss_weights: LossWeights = "raise",
    columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one row [1, T] with the segments of all ``blocks``, ready for ``model(**batch)``. Public as `cloison.collate`.

    Args:
        blocks: one Block or several; on real data a few, so that T stays near a fixed number of tokens.
        kernel: None, or what further arguments to add, one name or several: see `KERNELS`. Not all models take them
            (20 of 186 types of transformers 5.24 raise), so nothing is added unasked.
        pad_to_multiple_of: T is rounded up to this multiple. The padding is one more segment: positions from the start again,
            ``labels`` -100, ``pad_id`` as ids.
        position_start: the first position of every segment, ``padding_idx + 1`` in the RoBERTa family.
        static: a fixed number of segments for compiled kernels: ``cu_seq_lens_q/k`` always have ``static + 2`` entries (the
            last one repeats) and ``max_length_q/k`` is T.
        mask_dtype: of the mask of kernel="mask": the model's; None: float32.
        loss_weights: what to do where a block has weights, which no model of transformers reads: "raise", "keep" (a key
            ``loss_weights`` float32 [1, T], to be taken out before the model is called, see `cloison.losses`), or "drop".
        columns: names of token columns to add, [1, T] each.

    Returns:
        ``input_ids``, ``labels`` (same index, -100 where not a target), ``position_ids``: int64 [1, T]; ``use_cache`` False.
        "flash" and "linear" add ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (int32 [segments + 1]) and ``max_length_q`` and
        ``max_length_k`` (Python integers); "mamba" and "seq_idx" add ``seq_idx`` (int32 [1, T], from 0); "mask" adds
        ``attention_mask`` ([1, 1, T, T], 0 or the smallest float) and "flex" one (a BlockMask). No other mask is ever sent.

    Raises:
        InputError: an unknown kernel, no blocks, weights that nobody asked for, a column that a block lacks.
        BoundaryError: more segments than ``static``.

    >>> from cloison.packing.memory import pack_samples
    >>> batch = flat(pack_samples([[5, 6, 7], [8, 9]], capacity=8, order="input"), kernel="flash")
    >>> batch["position_ids"].tolist(), batch["cu_seq_lens_q"].tolist(), batch["max_length_q"]
    ([[0, 1, 2, 0, 1]], [0, 3, 5], 3)
    """
    if pad_to_multiple_of < 1:
        raise InputError("pad_to_multiple_of must be at least 1.", f"It is {pad_to_multiple_of}.", "Pass 1 for no padding.")
    block = join(blocks)
    width = -(-block.num_tokens // pad_to_multiple_of) * pad_to_multiple_of
    return _batch([block], width, kernel, pad_id, position_start, static, mask_dtype, loss_weights, columns)


collate = flat


def rows(
    blocks: Iterable[Block] | Block,
    capacity: int | None = None,
    kernel: str | Sequence[str] | None = None,
    *,
    pad_id: int = 0,
    position_start: int = 0,
    static: int | None = None,
    mask_dtype: torch.dtype | None = None,
    loss_weights: LossWeights = "raise",
    columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Return rows [B, T], a block each, right-padded to ``capacity``: fixed shapes for compiled models.

    Args:
        capacity: T; None: the capacity that the blocks were packed with.
        kernel and all others: as in `flat`. ``cu_seq_lens`` run over the flattened
            [B * T] with each row's padding as a segment; ``seq_idx`` restarts in each row.

    Returns:
        The keys of `flat`, [B, T]. A row's padding is one more segment: positions from the start again, ``labels`` -100.

    Raises:
        As `flat`; and BoundaryError where a block holds more than ``capacity`` tokens.
    """
    parts = listed(blocks)
    if capacity is None:
        capacity = max(part.segments.width for part in parts)
    return _batch(parts, capacity, kernel, pad_id, position_start, static, mask_dtype, loss_weights, columns)


def kernel_arguments(
    segments: Segments,
    kernel: str | Sequence[str] | None,
    static: int | None = None,
    mask_dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return what ``kernel`` (see `KERNELS`) adds to a batch over ``segments``; an empty dict for None.

    Raises:
        InputError: an unknown kernel, or two that both set ``attention_mask``.
    """
    names = [kernel] if isinstance(kernel, str) else list(kernel or ())
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        raise InputError(
            f"kernel must be one of {', '.join(map(repr, KERNELS))}, several of them, or None.",
            f"It is {unknown[0]!r}.",
            'Pass kernel="mask" for attention that knows only dense masks.',
        )
    wanted = {key for name in names for key in KERNELS[name]}
    out: dict[str, Any] = {}
    if "cu_seq_lens" in wanted:
        offsets = segments.cu_seqlens(covering=True, static=static)
        longest = segments.width if static is not None else int(np.diff(offsets).max(initial=0))
        out["cu_seq_lens_q"] = tensor(offsets, np.int32)
        out["cu_seq_lens_k"] = out["cu_seq_lens_q"]
        out["max_length_q"] = out["max_length_k"] = longest
    if "seq_idx" in wanted:
        out["seq_idx"] = seq_idx(segments)
    if {"dense_mask", "block_mask"} <= wanted:
        raise InputError("a model takes one attention_mask.", "kernel names both flex and mask.", "Pick one of them.")
    if "dense_mask" in wanted:
        out["attention_mask"] = mask4d(segments, mask_dtype)
    if "block_mask" in wanted:
        out["attention_mask"] = block_mask(segments)
    return out


def mask4d(
    segments: Segments,
    dtype: torch.dtype | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    prefix_lengths: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return the dense mask as additive floats [B, 1, T, T]: 0 where query i may attend to key j, else the dtype's minimum.

    Additive and in the model's dtype, because eager and flex attention *add* what they get: a boolean mask leaks there.
    No row is empty (padding sees padding), so no softmax turns to NaN.

    Args:
        dtype: of the model; None: float32.
        causal, window, chunk, prefix_lengths: as in `Segments.dense_mask`, measured inside each segment. ``window`` means
            what ``config.sliding_window`` does: the last ``window`` tokens, the query's own included.

    Cost: B * T * T numbers. It exists for models that read nothing else.
    """
    allowed = tensor(segments.dense_mask(causal=causal, window=window, chunk=chunk, prefix_lengths=prefix_lengths), np.bool_)
    import torch

    dtype = torch.float32 if dtype is None else dtype
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)


def masks_by_layer_type(segments: Segments, config: Any, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return one `mask4d` for each layer type of ``config`` (a transformers text config), for models that take a dict.

    Raises:
        InputError: the config names no layer types, one that is not known here, or lacks the size of a window.
    """
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    sizes = {
        "full_attention": (),
        "sliding_attention": ("window", "sliding_window"),
        "chunked_attention": ("chunk", "attention_chunk_size"),
    }
    unknown = [kind for kind in kinds if kind not in sizes]
    if not kinds or unknown:
        raise InputError(
            f"layer_types of the config must be among {', '.join(map(repr, sizes))}.",
            f"They are {kinds}.",
            "Use mask4d where a model has one kind of attention; others need their own mask.",
        )
    out = {}
    for kind in kinds:
        options: dict[str, Any] = {}
        if sizes[kind]:
            option, field = sizes[kind]
            options[option] = getattr(config, field, None)
            if options[option] is None:
                raise InputError(f"{kind} needs {field} in the config.", "It is not set.", f"Set config.{field}.")
        out[kind] = mask4d(segments, dtype, **options)
    return out


def mrope_positions(segments: Segments, grid: npt.ArrayLike | None = None) -> torch.Tensor:
    """Return int64 [4, B, T] for M-RoPE models (qwen2_vl, qwen2_5_vl, glm4v): the text plane first, then time, height, width.

    Only this shape isolates there: [B, T] and [3, B, T] leak, since those models find segments in the text plane alone.

    Args:
        grid: [3, tokens], the positions of each sample *computed before packing* (they restart with every sample), valid
            tokens only, one row after the other. None: text only, all planes alike.
    """
    text = segments.position_ids()
    planes = np.stack([text] * 4)
    if grid is not None:
        values = np.asarray(grid)
        if values.shape != (3, segments.num_tokens):
            raise BoundaryError(
                f"grid positions must be [3, {segments.num_tokens}], as the segments have tokens.",
                f"The shape is {list(values.shape)}.",
                "Compute them for each sample alone and concatenate.",
            )
        planes[1:, segments.segment_ids() > 0] = values
    return tensor(planes, np.int64)


def _batch(
    blocks: list[Block],
    width: int,
    kernel: str | Sequence[str] | None,
    pad_id: int,
    position_start: int,
    static: int | None,
    mask_dtype: torch.dtype | None,
    loss_weights: LossWeights,
    columns: Sequence[str],
) -> dict[str, Any]:
    segments = segments_of(blocks, width)
    added = kernel_arguments(segments, kernel, static, mask_dtype)
    batch: dict[str, Any] = {
        "input_ids": tensor(_padded([block.input_ids for block in blocks], width, pad_id), np.int64),
        "labels": tensor(_padded([block.labels for block in blocks], width, IGNORE), np.int64),
        "position_ids": tensor(segments.position_ids(position_start), np.int64),
        "use_cache": False,
        **added,
    }
    if any(block.loss_weights is not None for block in blocks) and loss_weights != "drop":
        if loss_weights == "raise":
            raise InputError(
                "a block has loss_weights, and no model of transformers reads them.",
                "They would be ignored in silence.",
                'Pass loss_weights="keep" and multiply in the loss (cloison.losses), or "drop".',
            )
        weights = [
            np.ones(block.num_tokens, np.float32) if block.loss_weights is None else block.loss_weights for block in blocks
        ]
        batch["loss_weights"] = tensor(_padded(weights, width, 0), np.float32)
    for name in columns:
        if name in batch or any(name not in block.token_columns for block in blocks):
            raise InputError(
                f"columns must name token columns of every block, and no key of the batch; {name!r} does not.",
                f"The first block has {sorted(blocks[0].token_columns)}.",
                "Carry the column along when packing, one entry a token.",
            )
        values = [np.asarray(block.token_columns[name]) for block in blocks]
        batch[name] = tensor(_padded(values, width, 0), values[0].dtype)
    return batch


def _padded(arrays: Sequence[npt.NDArray[Any]], width: int, fill: float) -> npt.NDArray[Any]:
    if len(arrays) == 1 and arrays[0].shape[0] == width:
        return arrays[0][None]
    out = np.full((len(arrays), width, *arrays[0].shape[1:]), fill, arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
