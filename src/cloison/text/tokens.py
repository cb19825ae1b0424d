"""Tokens: records that come tokenised, with what masks their targets, as ids and spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import RecordError
from cloison.segments import IGNORE
from cloison.text.shapes import Example
from cloison.text.targets import ROLES, SAMPLE, SPAN

__all__ = ["read_tokens", "runs"]


def runs(mask: npt.NDArray[np.bool_], lengths: npt.NDArray[Any], role: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the runs of True in many masks, one after the other, as spans, and how many each mask has.

    Args:
        mask: bool [tokens of all].
        lengths: int [samples], summing to the tokens.
        role: a name in `cloison.text.targets.ROLES`.

    Returns:
        spans: `SPAN` [runs], each relative to the start of its own sample, by sample and start.
        counts: int64 [samples].

    >>> spans, counts = runs(np.array([1, 1, 0, 1], bool), np.array([1, 3]), "given")
    >>> spans[["start", "stop"]].tolist(), counts.tolist()
    ([(0, 1), (0, 1), (2, 3)], [1, 2])
    """
    sizes = np.asarray(lengths, np.int64)
    first = np.cumsum(sizes) - sizes
    begins = mask.copy()
    begins[1:] &= ~mask[:-1]
    ends = mask.copy()
    ends[:-1] &= ~mask[1:]
    edges = first[sizes > 0]
    begins[edges] = mask[edges]
    ends[edges[1:] - 1] = mask[edges[1:] - 1]
    starts, stops = np.flatnonzero(begins), np.flatnonzero(ends) + 1
    owner = np.repeat(np.arange(sizes.size), sizes)[starts] if starts.size else np.zeros(0, np.int64)
    spans = np.zeros(starts.size, SPAN)
    spans["start"], spans["stop"] = starts - first[owner], stops - first[owner]
    spans["role"], spans["weight"] = ROLES.index(role), 1
    return spans, np.bincount(owner, minlength=sizes.size).astype(np.int64)


def read_tokens(example: Example, size: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return ids int32 [tokens] and spans of a tokenised record. A missing mask means that every token is a target.

    Raises:
        RecordError: ids that are no integers, negative, or not below ``size``; a mask of another length or with values other
            than 0 and 1; labels that are neither -100 nor the id (shifted labels among them).
    """
    ids = _integers(example.tokens["input_ids"], "input_ids")
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if bad.size:
        raise RecordError(
            f"input_ids must be 0 .. {size - 1}, the vocabulary.",
            f"input_ids[{bad[0]}] is {ids[bad[0]]} ({bad.size} such in the record).",
            "Tokenise with this tokenizer, and mask by labels, not by ids.",
        )
    mask = np.ones(ids.size, bool)
    role = "given"
    for name in ("completion_mask", "assistant_masks"):
        if name in example.tokens:
            values = _integers(example.tokens[name], name)
            _same_length(values, ids, name)
            if values.size and (values.min() < 0 or values.max() > 1):
                raise RecordError(f"{name} must be 0 or 1.", f"It reaches {values.min()} .. {values.max()}.", "Mend it.")
            mask &= values == 1
            role = "given-assistant" if name == "assistant_masks" else role
    if "labels" in example.tokens:
        values = _integers(example.tokens["labels"], "labels")
        _same_length(values, ids, "labels")
        wrong = np.flatnonzero((values != IGNORE) & (values != ids))
        if wrong.size:
            shifted = ids.size > 1 and bool(((values[:-1] == IGNORE) | (values[:-1] == ids[1:])).all())
            raise RecordError(
                "labels must have the index of input_ids: each is the token there, or -100.",
                f"labels[{wrong[0]}] is {values[wrong[0]]} and the token is {ids[wrong[0]]} ({wrong.size} such)"
                + ("; they look shifted by one." if shifted else "."),
                "Give labels that are not shifted: the model shifts them.",
            )
        mask &= values != IGNORE
    spans, _ = runs(mask, np.array([ids.size]), role)
    if example.weight != 1:
        whole = np.array([(0, ids.size, SAMPLE, False, -1, example.weight)], SPAN)
        spans = np.concatenate([spans, whole])
    array = ids.astype(np.int32)
    for one in (array, spans):
        one.setflags(write=False)
    return array, spans


def _integers(value: Any, name: str) -> npt.NDArray[np.int64]:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.zeros((0, 0))
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise RecordError(
            f"{name} must be a flat list of integers.", f"It has dtype {array.dtype} and {array.ndim} axes.", "Mend the column."
        )
    return array.astype(np.int64)


def _same_length(values: npt.NDArray[Any], ids: npt.NDArray[Any], name: str) -> None:
    if values.size != ids.size:
        raise RecordError(
            f"{name} must have one entry a token.", f"It has {values.size} for {ids.size} tokens.", "Mend the column."
        )
