"""Several blocks as one: the flat form is a single long block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.segments import Segments

__all__ = ["join", "listed", "segments_of"]


def listed(blocks: Iterable[Block] | Block) -> list[Block]:
    """Return ``blocks`` as a list of at least one Block; one Block alone is taken as a list of one.

    A row of a packed data set as another library loads it, a mapping with ``input_ids``, ``labels`` and ``seq_lengths``, is a
    Block as well.

    Raises:
        InputError: there is none, or something that is neither.
    """
    found = [blocks] if isinstance(blocks, Block) else list(blocks)
    if not found:
        raise InputError("a batch needs at least one block.", "There is none.", "Pass a filler block on idle ranks.")
    for index, block in enumerate(found):
        if isinstance(block, Mapping) and all(block.get(name) is not None for name in _ROW):
            found[index] = _of_row(block)
        elif not isinstance(block, Block):
            raise InputError(
                "a batch is made of Blocks.",
                f"Item {index} is a {type(block).__name__}{_without(block)}.",
                "Train on cloison.open(DIR), whose items are Blocks, or on its rows with these columns: trainers drop those "
                "that a model does not take by name unless remove_unused_columns=False."
                if isinstance(block, Mapping)
                else "Pass packed[b], or make blocks of samples with cloison.pack_samples.",
            )
    return found


_ROW = ("input_ids", "labels", "seq_lengths")


def _of_row(row: Mapping[str, Any]) -> Block:
    lengths = np.asarray(row["seq_lengths"], np.int64).reshape(-1)
    ids = row.get("sample_ids")
    known = np.arange(lengths.size) if ids is None else np.asarray(ids)
    starts, weights = row.get("starts"), row.get("loss_weights")
    made: Any = {"starts": starts if starts is None else np.asarray(starts), "loss_weights": weights}
    return Block(np.asarray(row["input_ids"]), np.asarray(row["labels"]), Segments.from_lengths([lengths]), known, **made)


def _without(value: Any) -> str:
    missing = [name for name in _ROW if value.get(name) is None] if isinstance(value, Mapping) else []
    return f" without {', '.join(missing)}" if missing else ""


def segments_of(blocks: Iterable[Block] | Block, capacity: int | None = None) -> Segments:
    """Return the boundaries of ``blocks``, a row each, ``capacity`` wide (None: as wide as the fullest).

    Raises:
        BoundaryError: a block holds more tokens than ``capacity``.
    """
    return Segments.from_lengths([block.segments.seq_lengths for block in listed(blocks)], capacity)


def join(blocks: Iterable[Block] | Block) -> Block:
    """Return one Block with the segments of all ``blocks``, one block after the other.

    A block without ``loss_weights`` beside others that have them counts as weight 1. Columns are kept where every block has
    them.
    """
    parts = listed(blocks)
    if len(parts) == 1:
        return parts[0]
    weights = None
    if any(part.loss_weights is not None for part in parts):
        weights = np.concatenate(
            [np.ones(part.num_tokens, np.float32) if part.loss_weights is None else part.loss_weights for part in parts]
        )
    token = [name for name in parts[0].token_columns if all(name in part.token_columns for part in parts)]
    segment = [name for name in parts[0].segment_columns if all(name in part.segment_columns for part in parts)]
    return Block(
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([part.labels for part in parts]),
        Segments.from_lengths([np.concatenate([part.segments.seq_lengths for part in parts])]),
        np.concatenate([part.sample_ids for part in parts]),
        np.concatenate([part.starts for part in parts]),
        weights,
        {name: np.concatenate([np.asarray(part.token_columns[name]) for part in parts]) for name in token},
        {name: [value for part in parts for value in part.segment_columns[name]] for name in segment},
    )
