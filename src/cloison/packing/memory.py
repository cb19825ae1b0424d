"""Packing and unpacking in memory: the short form of the job, and the reference that the long one is tested against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.planning import plan as make_plan
from cloison.samples import Sample
from cloison.segments import IGNORE, Segments
from cloison.spec import PackSpec

__all__ = ["FIRST_LABELS", "join_pieces", "pack_samples", "unpack"]

FIRST_LABELS = "first_labels"
"""The column, present where samples were split, of the label that a continuation's first token had in its whole sample.

A block cannot train it (nothing in the segment predicts it), and without it `unpack` could not give the sample back.
"""


def pack_samples(samples: Iterable[Sample | Sequence[int] | npt.NDArray[Any]], *, capacity: int, **fields: Any) -> list[Block]:
    """Return the blocks of ``samples``, planned with a PackSpec of ``capacity`` and ``fields``.

    Args:
        samples: Samples, or bare sequences of token ids (then every token but the first is a target).
        capacity: tokens a block holds at most.
        fields: other fields of `PackSpec` (policy, overflow, seed, order, ...). Samples without a target are kept unless
            ``on_empty`` is among them; a bare sample has no shape, so ``overflow="split"`` needs no further word here.

    Returns:
        The blocks in the plan's order. Columns of the samples that are arrays of [tokens] in every sample stay per token; any
        other is one value a segment. Where samples were split, the segment column ``first_labels`` holds what `unpack` needs.

    Raises:
        OverlongError: samples longer than the capacity, and no overflow policy.
        InputError: samples that do not carry the same columns; a sample with nothing to train and ``on_empty="raise"``.

    >>> [block.input_ids.tolist() for block in pack_samples([[1, 2, 3], [4, 5], [6]], capacity=5, order="input")]
    [[1, 2, 3, 4, 5], [6]]
    """
    spec = PackSpec(capacity, **fields)
    kept = [_sample(index, sample) for index, sample in enumerate(samples)]
    lengths = np.array([len(sample) for sample in kept], np.int64)
    if "on_empty" in fields:
        lengths = _without_untrained(kept, lengths, spec)
    plan = make_plan(lengths, spec.capacity, **spec.plan_options())
    per_token, per_sample = _column_kinds(kept)
    split = bool((plan.starts > 0).any())
    return [_block(kept, plan[b], spec.capacity, per_token, per_sample, split) for b in range(len(plan))]


def unpack(blocks: Iterable[Block]) -> list[Sample]:
    """Return the samples of ``blocks`` in the order of their ids: ``unpack(pack_samples(x)) == x``, empty samples aside.

    Pieces of a split sample are joined by their starts. What truncation cut off is not there to come back.

    Raises:
        BoundaryError: a sample that appears twice, or a piece of which is missing.
    """
    pieces: dict[int, list[tuple[int, Sample]]] = {}
    token_columns: set[str] = set()
    for block in blocks:
        token_columns |= set(block.token_columns)
        for sample_id, start, sample in zip(block.sample_ids.tolist(), block.starts.tolist(), block.samples(), strict=True):
            pieces.setdefault(sample_id, []).append((start, sample))
    return [join_pieces(sample_id, pieces[sample_id], token_columns) for sample_id in sorted(pieces)]


def _sample(index: int, value: Any) -> Sample:
    if isinstance(value, Sample):
        return value
    if isinstance(value, (str, Mapping)):
        found = f"({', '.join(map(str, list(value)[:6]))}) " if isinstance(value, Mapping) else ""
        tokens = isinstance(value, Mapping) and "input_ids" in value
        raise InputError(
            "pack_samples takes token ids, or Samples.",
            f"Item {index} {found}is a {type(value).__name__}.",
            "Pass cloison.Sample(input_ids, labels)." if tokens else "Pass cloison.encode(record, tokenizer) of each record.",
        )
    return Sample(value)


def _without_untrained(samples: list[Sample], lengths: npt.NDArray[np.int64], spec: PackSpec) -> npt.NDArray[np.int64]:
    limit = spec.capacity // spec.align * spec.align
    limit = min(limit, spec.max_sample_tokens or limit)
    head = limit if spec.overflow == "truncate" else None
    empty = [i for i, sample in enumerate(samples) if len(sample) and not (sample.labels[:head] != IGNORE).any()]
    if empty and spec.on_empty == "raise":
        raise InputError(
            "every sample must have a target.",
            f"Sample {empty[0]} has none ({len(empty)} of {len(samples)} samples).",
            'Pass on_empty="drop", or look at their labels.',
        )
    out = lengths.copy()
    out[empty] = 0
    return out


def _column_kinds(samples: list[Sample]) -> tuple[list[str], list[str]]:
    """Return the names of the columns that go with tokens, and of those that go with samples."""
    if not samples:
        return [], []
    names = list(samples[0].columns)
    for index, sample in enumerate(samples):
        if set(sample.columns) != set(names):
            raise InputError(
                "all samples must carry the same columns.",
                f"Sample 0 has {names}, sample {index} has {list(sample.columns)}.",
                "Add the missing ones, or leave them out everywhere.",
            )
    per_token = [name for name in names if all(_goes_with_tokens(sample.columns[name], len(sample)) for sample in samples)]
    return per_token, [name for name in names if name not in per_token]


def _goes_with_tokens(value: Any, tokens: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim >= 1 and len(value) == tokens


def _block(
    samples: list[Sample],
    planned: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]],
    capacity: int,
    per_token: list[str],
    per_sample: list[str],
    split: bool,
) -> Block:
    ids, starts, lengths = planned
    chosen = [samples[i] for i in ids.tolist()]
    places = [slice(start, start + length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
    pairs = list(zip(chosen, places, strict=True))
    segments = Segments.from_lengths([lengths], capacity)
    labels = np.concatenate([sample.labels[place] for sample, place in pairs])
    first = segments.first_tokens()
    segment_columns: dict[str, Any] = {name: [sample.columns[name] for sample in chosen] for name in per_sample}
    if split:
        segment_columns[FIRST_LABELS] = labels[first]
    labels[first] = IGNORE
    weights = None
    if any(sample.loss_weights is not None for sample in samples):
        weights = np.concatenate(
            [
                np.ones(place.stop - place.start, np.float32) if sample.loss_weights is None else sample.loss_weights[place]
                for sample, place in pairs
            ]
        )
    return Block(
        np.concatenate([sample.input_ids[place] for sample, place in pairs]),
        labels,
        segments,
        ids.astype(np.int64),
        starts,
        weights,
        {name: np.concatenate([sample.columns[name][place] for sample, place in pairs]) for name in per_token},
        segment_columns,
    )


def join_pieces(sample_id: int, pieces: list[tuple[int, Sample]], token_columns: set[str]) -> Sample:
    """Return the sample of ``pieces``, (start, fragment) each, joined in the order of their starts.

    Raises:
        BoundaryError: they do not follow each other from 0.
    """
    pieces.sort(key=lambda piece: piece[0])
    expected = 0
    for start, piece in pieces:
        if start != expected:
            raise BoundaryError(
                f"the pieces of sample {sample_id} must follow each other.",
                f"One begins at token {start} where {expected} is next.",
                "A sample is there twice, or a block is missing.",
            )
        expected += len(piece)
    columns = [dict(piece.columns) for _, piece in pieces]
    first_labels = [column.pop(FIRST_LABELS, IGNORE) for column in columns]
    if len(pieces) == 1:
        only = pieces[0][1]
        return Sample(only.input_ids, only.labels, only.loss_weights, columns[0])
    parts = [np.array(piece.labels) for _, piece in pieces]
    for part, label in zip(parts, first_labels, strict=True):
        part[0] = label
    weights = [piece.loss_weights for _, piece in pieces]
    merged: Mapping[str, Any] = {
        name: np.concatenate([column[name] for column in columns]) if name in token_columns else value
        for name, value in columns[0].items()
    }
    return Sample(
        np.concatenate([piece.input_ids for _, piece in pieces]),
        np.concatenate(parts),
        None if weights[0] is None else np.concatenate([w for w in weights if w is not None]),
        merged,
    )
