"""Synthetic blocks of awkward lengths, and blocks with the tokens of chosen segments changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.limits import affordable_tokens, limits, position_table
from cloison.segments import IGNORE, Segments

__all__ = ["alone", "block_of", "bounds", "changed", "lengths_of", "synthetic", "vocabulary"]

LONGEST_TOKENS = 512
"""The longest synthetic segment where nothing says what is affordable; `limits` lets the caller say what is not straddled."""

USUAL_TOKENS = 139
"""A synthetic segment for models that are cheap to run: longer than windows and tiles of 128, which need not be named."""

_SHORT = ((7, 1, 11, 2), (5, 29, 3, 13))


def vocabulary(config: Any, size: int | None = None) -> npt.NDArray[np.int64]:
    """Return the ids to draw from: those of ``config`` without its special tokens (padding, ends, images, ...)."""
    plain = config.to_dict() if hasattr(config, "to_dict") else {}
    nested = plain.get("text_config") if isinstance(plain.get("text_config"), dict) else {}
    found = size or (nested or {}).get("vocab_size") or plain.get("vocab_size") or 64
    special: set[int] = {0, 1, 2, 3}
    for fields in (plain, nested or {}):
        for name, value in fields.items():
            if name.endswith(("token_id", "token_index", "token_ids")) and value is not None:
                special |= {int(entry) for entry in np.atleast_1d(value) if isinstance(entry, (int, np.integer))}
    ids = np.array([i for i in range(min(int(found), 50_000)) if i not in special], np.int64)
    if ids.size < 4:
        raise InputError(
            "a vocabulary to experiment with has at least 4 ordinary ids.", f"There are {ids.size}.", "Pass blocks."
        )
    return ids


def synthetic(
    config: Any = None, *, vocab_size: int | None = None, seed: int = 0, module: Any = None, short: bool = False
) -> list[Block]:
    """Return two blocks of eight segments in all, of lengths that catch what round ones do not.

    Lengths of 1 and 2, primes, one longer than every window, chunk, convolution and scaling limit of ``config`` (up to 512
    tokens), many short ones beside it. The second block is fuller than the first, so that forms with rows have padding.

    Args:
        module: the model; then two segments are longer than the largest limit that `affordable_tokens` allows for, whatever
            its size, and one is of `USUAL_TOKENS` at least.
        short: the least: none of this.
    """
    first, second = map(list, _SHORT)
    if not short:
        first[2], second[1] = _long(limits(config, module), 0 if module is None else affordable_tokens(module))
    most = position_table(config) or sum(first) + sum(second)
    rows = [[min(length, most) for length in row] for row in (first, second)]
    rng = np.random.default_rng(seed)
    ids = vocabulary(config, vocab_size)
    return [block_of(row, rng.choice(ids, sum(row)), first=4 * index) for index, row in enumerate(rows)]


def _long(reaches: Mapping[str, int], afford: int) -> tuple[int, int]:
    """Return how long the third and the sixth of the eight segments are, for mechanisms that begin at ``reaches`` tokens."""
    middle, longest = _SHORT[0][2], _SHORT[1][1]
    rest = sum(map(sum, _SHORT)) - middle - longest
    edges = [value for value in reaches.values() if value < LONGEST_TOKENS]
    longest = min(LONGEST_TOKENS, max([longest, *(2 * edge + 3 for edge in edges)]))
    if rest + middle + USUAL_TOKENS <= afford:
        longest = max(longest, USUAL_TOKENS)
    for edge in sorted(reaches.values(), reverse=True):
        for second, third in ((2 * edge + 3, edge + 5), (2 * edge + 3, middle), (edge + 13, middle)):
            if rest + second + third <= afford:
                return max(middle, third), max(longest, second)
    return middle, longest


def block_of(lengths: Sequence[int], input_ids: npt.ArrayLike, first: int = 0) -> Block:
    """Return a Block of ``lengths`` in which every token but the first of a segment is a target."""
    segments = Segments.from_lengths([list(lengths)])
    labels = np.array(input_ids, np.int64)
    labels[segments.first_tokens()] = IGNORE
    ids = np.asarray(input_ids, np.int32)
    return Block(ids, labels.astype(np.int32), segments, np.arange(first, first + len(lengths), dtype=np.int64))


def lengths_of(blocks: Sequence[Block]) -> list[int]:
    """Return the lengths of all segments, block after block."""
    return [int(length) for block in blocks for length in block.segments.seq_lengths]


def bounds(blocks: Sequence[Block]) -> list[slice]:
    """Return the place of every segment among the tokens of all blocks, in packed row order."""
    ends = np.cumsum(lengths_of(blocks))
    return [slice(int(end - length), int(end)) for end, length in zip(ends, lengths_of(blocks), strict=True)]


def alone(blocks: Sequence[Block]) -> list[Block]:
    """Return every segment as a block of its own."""
    out = []
    for block in blocks:
        first = block.segments.first_tokens()
        for index, (start, length) in enumerate(zip(first, block.segments.seq_lengths, strict=True)):
            place = slice(int(start), int(start + length))
            weights = None if block.loss_weights is None else block.loss_weights[place]
            ids = block.sample_ids[index : index + 1]
            segments = Segments.from_lengths([[int(length)]])
            out.append(Block(block.input_ids[place], block.labels[place], segments, ids, None, weights))  # type: ignore[arg-type]
    return out


def changed(
    blocks: Sequence[Block],
    chosen: Collection[int],
    ids: npt.NDArray[np.int64],
    seed: int,
    *,
    after: Sequence[int] | None = None,
) -> list[Block]:
    """Return ``blocks`` with every token of the ``chosen`` segments another one of ``ids``; all shapes and lengths stay.

    The tokens that a segment gets depend on ``seed`` and the segment alone, so that a segment changes in the same way whatever
    else changes. ``after`` [segments] leaves that many first tokens of each segment as they are. Labels follow their tokens.
    """
    out, number = [], 0
    for block in blocks:
        tokens, labels = np.array(block.input_ids, np.int64), np.array(block.labels, np.int64)
        for start, length in zip(block.segments.first_tokens().tolist(), block.segments.seq_lengths.tolist(), strict=True):
            if number in chosen:
                place = slice(start + (after[number] if after is not None else 0), start + length)
                tokens[place] = _others(tokens[place], ids, np.random.default_rng([seed, number]))
            number += 1
        follow = block.labels != IGNORE
        same = follow & (block.labels == block.input_ids)
        labels[same] = tokens[same]
        out.append(replace(block, input_ids=tokens.astype(np.int32), labels=labels.astype(np.int32)))
    return out


def _others(tokens: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return as many tokens, each drawn from ``ids`` and unlike the one it replaces."""
    places = np.minimum(np.searchsorted(ids, tokens), ids.size - 1)
    inside = ids[places] == tokens
    moved = (places + rng.integers(1, ids.size, tokens.size)) % ids.size
    free = rng.integers(0, ids.size, tokens.size)
    return np.asarray(np.where(inside, ids[moved], ids[free]), np.int64)
