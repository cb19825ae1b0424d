"""PackedBatch: what an adapter was asked to run, its boundaries read once and checked against all that states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.errors import BoundaryError, InputError
from cloison.segments import IGNORE, Segments

if TYPE_CHECKING:
    import torch

__all__ = ["PackedBatch", "read_batch"]

_OFFSETS = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")
_IGNORED = ("max_length_q", "max_length_k", "max_seqlen", "use_cache", "sample_ids")


@dataclass(frozen=True)
class PackedBatch:
    """One packed batch.

    Attributes:
        input_ids: int64 [B, T], packed rows; what lies behind a row's last segment is padding.
        segments: the boundaries of the B rows, T wide.
        labels: int64 [B, T], same index as ``input_ids``, -100 where not a target; or None.
        loss_weights: float32 [B, T] with the index of ``labels``, or None for 1 everywhere.
        options: what the caller passes on to the model (``output_hidden_states`` and such).
    """

    input_ids: torch.Tensor
    segments: Segments
    labels: torch.Tensor | None = None
    loss_weights: torch.Tensor | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def read_batch(keywords: Mapping[str, Any], *, shifts: bool = True) -> PackedBatch:
    """Return the batch that a model's keywords describe.

    The boundaries come from ``seq_lengths`` (a row of lengths, or one row of lengths for each row of ids, filled up with 0),
    from ``cu_seqlens`` / ``cu_seq_lens_q`` / ``cu_seq_lens_k`` (over the flattened rows) or from ``segment_ids`` [B, T] (0 is
    padding). Whatever else states boundaries (``position_ids``, a 2-D ``attention_mask``, another of these) must say the same.
    ``shifts``: whether a label is predicted by the token before it, so that the first of a segment can have none.

    Raises:
        InputError: no boundaries, ids that are not [B, T], or a tensor that is not of tokens (``pixel_values`` and such).
        BoundaryError: lengths that do not cover the tokens, two keywords that disagree, or a target across a boundary.
    """
    rest = {name: value for name, value in keywords.items() if name not in _IGNORED and value is not None}
    input_ids = rest.pop("input_ids", None)
    if input_ids is None or input_ids.dim() != 2:
        raise InputError(
            "an adapter runs input_ids of shape [B, T].",
            "None are given." if input_ids is None else f"The shape is {list(input_ids.shape)}.",
            "Pass what adapter.collate(blocks) returns.",
        )
    if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.numel() == 0:
        raise InputError(
            "input_ids are token ids, at least one.",
            f"They are {list(input_ids.shape)} of {str(input_ids.dtype).removeprefix('torch.')}.",
            "Pass what adapter.collate(blocks) returns.",
        )
    rows, width = input_ids.shape
    stated = _stated(rest, rows, width)
    position_ids, attention_mask = rest.pop("position_ids", None), rest.pop("attention_mask", None)
    if not stated:
        raise InputError(
            "an adapter needs the boundaries of the segments.",
            "The batch has neither seq_lengths, cu_seqlens nor segment_ids; positions and masks alone are guesses.",
            "Pass what adapter.collate(blocks) returns, or add seq_lengths.",
        )
    (name, segments), *others = stated.items()
    for other, same in others:
        if same != segments:
            raise BoundaryError(
                f"{name} and {other} must state the same boundaries.",
                f"{name} says {_few(segments)}, {other} says {_few(same)}.",
                "Pass one of them, or mend the other.",
            )
    _check_positions(position_ids, segments, name)
    _check_mask(attention_mask, segments, name)
    explained = position_ids is not None or attention_mask is not None or name != "seq_lengths"
    if segments.num_tokens < rows * width and not explained:
        raise BoundaryError(
            "seq_lengths must cover the tokens of the batch.",
            f"They sum to {segments.num_tokens}, and input_ids hold {rows} x {width}.",
            "Pass the lengths of these rows; for rows with padding also their position_ids or 2-D attention_mask.",
        )
    labels = rest.pop("labels", None)
    _check_labels(labels, input_ids, segments, shifts)
    weights = rest.pop("loss_weights", None)
    _check_index(rest, rows, width)
    return PackedBatch(input_ids, segments, labels, weights, MappingProxyType(rest))


def _stated(rest: dict[str, Any], rows: int, width: int) -> dict[str, Segments]:
    """Return the Segments of every keyword that states boundaries, and take those keywords out of ``rest``."""
    stated: dict[str, Segments] = {}
    if "seq_lengths" in rest:
        lengths = _lists(rest.pop("seq_lengths"))
        if not lengths or not isinstance(lengths[0], list):
            lengths = [lengths]
        if len(lengths) != rows:
            raise BoundaryError(
                f"seq_lengths must have a row of lengths for each of the {rows} rows of input_ids.",
                f"It has {len(lengths)}.",
                "Pass one list of lengths a row.",
            )
        if max((sum(row) for row in lengths), default=0) > width:
            raise BoundaryError(
                "seq_lengths must cover the tokens of the batch.",
                f"A row's lengths sum to {max(sum(row) for row in lengths)}, and its row has {width} tokens.",
                "Pass the lengths of these rows.",
            )
        stated["seq_lengths"] = Segments.from_lengths(lengths, capacity=width)
    for name in _OFFSETS:
        if name in rest:
            stated[name] = _from_offsets(np.asarray(_lists(rest.pop(name))), rows, width, name)
    if "segment_ids" in rest:
        ids = np.asarray(_lists(rest.pop("segment_ids")))
        stated["segment_ids"] = Segments.from_segment_ids(ids.reshape(rows, width))
    return stated


def _from_offsets(offsets: npt.NDArray[Any], rows: int, width: int, name: str) -> Segments:
    segments = Segments.from_cu_seqlens(offsets, row_length=width)
    if segments.num_tokens != rows * width:
        raise BoundaryError(
            f"{name} must end at the tokens of the batch.",
            f"It ends at {segments.num_tokens}, and input_ids hold {rows} x {width}.",
            "Pass the offsets of this batch (covering ones where rows have padding), or seq_lengths.",
        )
    return segments


def _check_positions(position_ids: Any, segments: Segments, name: str) -> None:
    if position_ids is None:
        return
    plane = position_ids[0] if position_ids.dim() == 3 else position_ids
    found = plane.detach().cpu().numpy().reshape(-1, segments.width)
    wanted = segments.position_ids()
    if found.shape != wanted.shape or not np.array_equal(found - found[:, :1], wanted):
        raise BoundaryError(
            f"position_ids must restart where {name} says that segments begin.",
            f"{name} says {_few(segments)}, position_ids begin {found[0, :12].tolist()}.",
            "Drop position_ids (the adapter makes its own), or mend the boundaries.",
        )


def _check_mask(attention_mask: Any, segments: Segments, name: str) -> None:
    if attention_mask is None:
        return
    if getattr(attention_mask, "ndim", 0) != 2:
        raise BoundaryError(
            "an adapter makes its own masks.",
            "The batch has an attention_mask that is not [B, T].",
            "Drop it; a 2-D mask of the valid tokens is allowed.",
        )
    found = attention_mask.detach().cpu().numpy() != 0
    if not np.array_equal(found, segments.segment_ids() > 0):
        raise BoundaryError(
            f"attention_mask must be 1 where {name} says that there are tokens.",
            f"It counts {int(found.sum())} tokens, {name} counts {segments.num_tokens}.",
            "Drop the mask, or mend the boundaries.",
        )


def _check_labels(labels: Any, input_ids: Any, segments: Segments, shifts: bool) -> None:
    if labels is None:
        return
    if labels.shape != input_ids.shape:
        raise BoundaryError(
            "labels must have the shape of input_ids.",
            f"They have {list(labels.shape)}, and input_ids {list(input_ids.shape)}.",
            "Do not shift or cut labels: the same index as input_ids.",
        )
    flat = labels.detach().cpu().numpy()
    restart = (segments.position_ids() == 0) & shifts
    outside = segments.segment_ids() == 0
    wrong = (restart | outside) & (flat != IGNORE)
    if wrong.any():
        row, place = (int(axis[0]) for axis in np.nonzero(wrong))
        raise BoundaryError(
            "the first token of a segment, and padding, are no targets.",
            f"labels[{row}, {place}] is {int(flat[row, place])} ({int(wrong.sum())} such).",
            "Set them to -100: nothing inside the sample predicts them.",
        )


def _check_index(rest: Mapping[str, Any], rows: int, width: int) -> None:
    """Raise an InputError where a tensor comes along that is not of tokens: images and sounds, encoders' states."""
    others = [name for name, v in rest.items() if getattr(v, "ndim", 0) and tuple(v.shape[:2]) != (rows, width)]
    if others:
        raise InputError(
            f"an adapter runs tokens: tensors beside input_ids have their index, [{rows}, {width}].",
            f"{', '.join(f'{name} is {list(rest[name].shape)}' for name in others)}: the proof is of text alone.",
            "Leave it out where samples are text; run samples with images or sounds unpacked, on adapter.model.",
        )


def _lists(values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InputError("boundaries are numbers.", f"They are {values!r}.", "Pass what adapter.collate(blocks) returns.")
    if hasattr(values, "tolist"):
        values = values.tolist()
    return [list(entry) if isinstance(entry, tuple) else entry for entry in values]


def _few(segments: Segments) -> str:
    shown = segments.seq_lengths[:8].tolist()
    return f"{shown}{'...' if segments.num_segments > 8 else ''}"
