"""Several blocks as one: the flat form is a single long block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.segments import Segments

__all__ = ["join", "listed", "segments_of"]


def listed(blocks: Iterable[Block] | Block) -> list[Block]:
    """Return ``blocks`` as a list of at least one Block; one Block alone is taken as a list of one.

    Raises:
        InputError: there is none, or something that is no Block.
    """
    found = [blocks] if isinstance(blocks, Block) else list(blocks)
    if not found:
        raise InputError("a batch needs at least one block.", "There is none.", "Pass a filler block on idle ranks.")
    for index, block in enumerate(found):
        if not isinstance(block, Block):
            raise InputError(
                "a batch is made of Blocks.",
                f"Item {index} is a {type(block).__name__}.",
                "Train on cloison.open(DIR), whose items are Blocks, not on its rows as another library loads them."
                if isinstance(block, Mapping)
                else "Pass packed[b], or make blocks of samples with cloison.pack_samples.",
            )
    return found


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
