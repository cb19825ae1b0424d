"""check_batch: the static contract of one live batch, as it reaches the model. No model is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloison.checking.hits import Hit, Place
from cloison.checking.inspection import Inspection, Piece
from cloison.checking.known import Known, known_of
from cloison.checking.ragged import Ragged, numeric
from cloison.checking.report import CheckReport
from cloison.checking.rows import Rows
from cloison.errors import BoundaryError, InputError
from cloison.segments import IGNORE, Segments

__all__ = ["check_batch"]

_OPEN = -1e4
"""An additive mask hides what lies below this; half precision's lowest value is -65504."""

_CELLS = ("labels", "loss_weights", "segment_ids", "sequence_id", "seq_idx", "completion_mask", "assistant_masks")


def check_batch(
    batch: Mapping[str, Any],
    *,
    seq_lengths: Sequence[Any] | None = None,
    labels: Literal["same", "shifted"] | None = None,
    tokenizer: Any = None,
    capacity: int | None = None,
    vocab_size: int | None = None,
    eos_token_id: int | None = None,
    terminators: Sequence[int] = (),
) -> CheckReport:
    """Return what is wrong, or worth knowing, with one batch: boundaries, 2-D and 4-D masks, targets, positions, ids.

    Args:
        batch: what ``model(**batch)`` gets: ``input_ids`` [B, T] (torch, numpy, lists) or ``inputs_embeds`` [B, T, d], any
            of ``labels`` or ``shift_labels``, ``position_ids`` ([B, T], [3, B, T], [4, B, T]), ``attention_mask`` (2-D, 4-D, or
            a dict of 4-D), ``cu_seq_lens_q``, ``max_length_q``, ``seq_idx``, ``segment_ids``, ``sequence_id``. A Megatron batch
            (``tokens``, ``labels`` already shifted, ``loss_mask``) is known by its ``tokens``.
        seq_lengths: the true lengths, rows of them, where the caller knows them; what the batch says is compared with these.
        labels: "shifted" where ``labels`` are shifted already and the model does not shift.
        tokenizer, capacity, vocab_size, eos_token_id, terminators: as for `check`.

    Raises:
        InputError: neither ``input_ids`` nor ``inputs_embeds``, or arrays whose shapes do not belong together.

    Cost: a few passes over the batch on the host; a 4-D mask is looked at row by row, T x T at a time.

    >>> batch = {"input_ids": [[5, 6, 7, 8]], "labels": [[5, 6, 7, 8]], "position_ids": [[0, 1, 0, 1]],
    ...          "attention_mask": [[1, 1, 1, 1]], "use_cache": False}
    >>> check_batch(batch).kinds("error")
    ['mask_hides_boundaries', 'boundary_target']
    """
    known = known_of(tokenizer, Known(capacity, vocab_size, eos_token_id, None, tuple(terminators)))
    untold: list[str] = []
    if batch.get("inputs_embeds") is not None and batch.get("input_ids") is None and batch.get("tokens") is None:
        batch, known = {**batch, "input_ids": _stand_in(batch)}, Known(known.capacity)
        untold.append("labels against the tokens of their places: the batch has inputs_embeds and no ids")
    cells, shape = _cells(batch)
    extra: list[Hit] = []
    offsets = np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
    columns = {name: Ragged(values.reshape(-1), offsets) for name, values in cells.items()}
    if seq_lengths is not None:
        columns["seq_lengths"] = _lengths(Segments.from_lengths(seq_lengths), shape[0])
    for name in ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q"):
        if batch.get(name) is not None:
            stated = _from_cu(numeric(batch[name]), name, shape, cells, extra)
            if stated is not None and "seq_lengths" not in columns:
                columns["seq_lengths"] = stated
            elif stated is not None:
                extra += _compared(columns["seq_lengths"], stated, name)
            break
    shifted = labels == "shifted" or "targets" in columns
    inspection = Inspection(known, "shifted" if shifted else "batch", None)
    rows = inspection.add(Piece(columns))
    extra += _lengths_said(batch, rows)
    for mask in _wide_masks(batch):
        extra += _wide(mask, rows, shape)
    several = bool((np.diff(rows.segments.row_offsets) > 1).any())
    by_positions = (
        "position_ids" in cells and "tokens" not in batch and not _wide_masks(batch) and "attention_mask" not in cells
    )
    if several and by_positions and batch.get("use_cache") is not False:
        extra.append(Hit("cache_on", 1, 1))
    return inspection.finish("batch", extra, untold)


def _stand_in(batch: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Return ids [B, T] for a batch of embeddings alone: those that the labels name, and elsewhere a count."""
    embeds = batch["inputs_embeds"]
    if getattr(embeds, "ndim", 0) != 3:
        raise InputError("inputs_embeds must be [B, T, width].", f"It has {np.ndim(embeds)} axes.", "Pass one batch.")
    shape = (int(embeds.shape[0]), int(embeds.shape[1]))
    ids = np.broadcast_to(np.arange(shape[1]), shape).copy()
    for name, shift in (("labels", 0), ("shift_labels", 1)):
        if batch.get(name) is not None:
            asked = _shaped(batch[name], name, shape)[:, : shape[1] - shift]
            ids[:, shift:] = np.where(asked == IGNORE, ids[:, shift:], asked)
    return ids


def _cells(batch: Mapping[str, Any]) -> tuple[dict[str, npt.NDArray[Any]], tuple[int, int]]:
    """Return the columns of [B, T] by the names that `Inspection` reads, and (B, T)."""
    name = next((name for name in ("input_ids", "tokens") if batch.get(name) is not None), None)
    if name is None:
        listed = ", ".join(map(str, batch)) or "nothing"
        raise InputError("a batch needs input_ids.", f"It has {listed}.", "Pass the batch as the collator returns it.")
    ids = np.atleast_2d(numeric(batch[name]))
    if ids.ndim != 2 or ids.dtype.kind not in "iufb":
        raise InputError(
            f"{name} must be integers of [B, T].", f"Its dtype is {ids.dtype}, its shape {list(ids.shape)}.", "Pass one batch."
        )
    shape = (int(ids.shape[0]), int(ids.shape[1]))
    cells: dict[str, npt.NDArray[Any]] = {"input_ids": ids}
    for column in _CELLS:
        if batch.get(column) is not None:
            cells["sequence_id" if column == "seq_idx" else column] = _shaped(batch[column], column, shape)
    if batch.get("shift_labels") is not None:
        # The loss takes these where they are given; labels only switch it on.
        cells.pop("labels", None)
        cells["targets"] = _shaped(batch["shift_labels"], "shift_labels", shape)
    elif name == "tokens" and "labels" in cells:
        mask = batch.get("loss_mask")
        shifted = cells.pop("labels")
        cells["targets"] = shifted if mask is None else np.where(_shaped(mask, "loss_mask", shape) != 0, shifted, IGNORE)
    positions = batch.get("position_ids")
    if positions is not None:
        array = numeric(positions)
        if array.ndim == 3 and array.shape[0] in (3, 4):
            # Grids repeat and skip; only where the first axis falls is a boundary. Four planes: the text's is the first.
            array = array[0] if array.shape[0] == 4 else _restarted(array)
        cells["position_ids"] = _shaped(array, "position_ids", shape)
    mask = batch.get("attention_mask")
    if mask is not None and not isinstance(mask, Mapping):
        array = numeric(mask)
        if array.ndim == 2 and array.size == shape[0] * shape[1]:
            cells["attention_mask"] = _shaped(array, "attention_mask", shape).astype(np.int64)
    return cells, shape


def _shaped(values: Any, name: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    array = np.atleast_2d(numeric(values))
    if array.ndim == 2 and array.shape[0] == 1 and array.shape[1] == shape[1]:
        return np.broadcast_to(array, shape)
    if array.shape != shape:
        raise InputError(
            f"{name} must have the shape of input_ids, {list(shape)}.",
            f"It is {list(array.shape)}.",
            "Cut and pad every token-aligned array together with input_ids.",
        )
    return array


def _restarted(grid: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return plain positions [B, T] that restart where those of a grid [3, B, T] do."""
    return np.asarray(Segments.from_position_ids(grid).position_ids())


def _lengths(segments: Segments, rows: int) -> Ragged:
    if segments.num_rows != rows:
        raise InputError(
            f"seq_lengths must have the {rows} rows of the batch.",
            f"There are {segments.num_rows}.",
            "Pass a list for each row.",
        )
    return Ragged(segments.seq_lengths.astype(np.int64), segments.row_offsets)


def _from_cu(
    cu_seqlens: npt.NDArray[Any], name: str, shape: tuple[int, int], cells: Mapping[str, npt.NDArray[Any]], extra: list[Hit]
) -> Ragged | None:
    """Return the lengths that cumulative offsets state, without a padding tail, or None and a hit where they fit no batch.

    Offsets run over the flattened [B * T]; where they end before it, the rest must be padding (of one row).
    """
    total = shape[0] * shape[1]
    try:
        segments = Segments.from_cu_seqlens(cu_seqlens.reshape(-1), row_length=shape[1] if shape[0] > 1 else None)
        reason = "" if 0 < segments.num_tokens <= total else f"they end at {segments.num_tokens:,} of {total:,} tokens"
    except BoundaryError as error:
        segments, reason = None, str(error)
    if segments is None or reason:
        extra.append(Hit("lengths_disagree", shape[0], shape[0], details={"source": name, "reason": reason, "variant": name}))
        return None
    rows = [list(row) for row in segments.rows()]
    rows += [[] for _ in range(shape[0] - len(rows))]
    asked = cells.get("labels", cells.get("targets"))
    for index, row in enumerate(rows):
        if len(row) < 2 or sum(row) < shape[1] or asked is None:
            continue
        tail = slice(shape[1] - row[-1], shape[1])
        ids = cells["input_ids"][index, tail]
        masked = "attention_mask" in cells and not cells["attention_mask"][index, tail].any()
        if masked or (ids.min() == ids.max() and (asked[index, tail] == IGNORE).all()):
            row.pop()
    return _lengths(Segments.from_lengths(rows), shape[0])


def _compared(known: Ragged, stated: Ragged, name: str) -> Iterator[Hit]:
    same = np.array_equal(known.offsets, stated.offsets) and np.array_equal(known.values, stated.values)
    details = {"other": name, "source": "seq_lengths", "variant": name}
    yield Hit("boundaries_disagree", int(not same), known.num_rows, details=details)


def _lengths_said(batch: Mapping[str, Any], rows: Rows) -> Iterator[Hit]:
    longest = rows.segments.max_seqlen
    for name in ("max_length_q", "max_length_k", "max_seqlen", "max_seqlen_q", "max_seqlen_kv"):
        if batch.get(name) is not None and rows.source != "none":
            said = int(numeric(batch[name]).max())
            details = {"name": name, "said": said, "held": longest, "variant": name}
            yield Hit("max_length_wrong", int(said < longest), 1, details=details)


def _wide_masks(batch: Mapping[str, Any]) -> list[Any]:
    mask = batch.get("attention_mask")
    found = list(mask.values()) if isinstance(mask, Mapping) else [mask]
    return [one for one in found if one is not None and getattr(one, "ndim", np.ndim(one)) == 4]


def _wide(mask: Any, rows: Rows, shape: tuple[int, int]) -> Iterator[Hit]:
    """Compare a 4-D mask [B or 1, heads or 1, T, T] with the segments: pairs that cross, and pairs that are missing."""
    if len(mask.shape) != 4 or tuple(mask.shape[2:]) != (shape[1], shape[1]) or mask.shape[0] not in (1, shape[0]):
        raise InputError(
            f"a 4-D mask must be [B, 1, T, T] of the batch {list(shape)}.",
            f"It is {list(mask.shape)}.",
            "Build it from the lengths of this batch.",
        )
    crossing = narrow = 0
    first: Place | None = None
    ids = np.zeros(rows.input_ids.size, np.int64)
    number = np.arange(1, rows.segments.num_segments + 1)
    valid = np.ones(ids.size, bool) if rows.padding is None else ~rows.padding
    ids[valid] = np.repeat(number, rows.segments.seq_lengths)
    is_bool = False
    for index in range(shape[0]):
        part = numeric(mask[index if mask.shape[0] > 1 else 0])
        is_bool = part.dtype == bool
        seen = part if is_bool else part > _OPEN
        opened, closed = seen.any(0), seen.all(0)
        own = ids[index * shape[1] : (index + 1) * shape[1]]
        real = own > 0
        same = own[:, None] == own[None, :]
        # A segment sees no neighbour and no padding; what padding sees is nobody's concern.
        bad = opened & ~same & real[:, None]
        if bad.any() and first is None:
            first = rows.cell_place(index * shape[1] + int(np.flatnonzero(bad.any(1))[0]))
        crossing += int(np.count_nonzero(bad))
        narrow += int(np.count_nonzero(np.tril(same & ~closed & real[:, None])))
    yield Hit("mask_crosses", crossing, crossing, first or Place())
    yield Hit("mask_too_narrow", narrow, narrow)
    yield Hit("mask_is_bool", int(is_bool), 1)
