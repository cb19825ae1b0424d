"""Positions: what reaches the model, and whether this model cares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError, InputError
from cloison.proof.blocks import alone, block_of, bounds, lengths_of
from cloison.proof.limits import position_table
from cloison.proof.run import Subject, ids_of

__all__ = ["Positions", "positions"]

_SHIFT = 3
"""By how many places a sample's positions are moved, to see whether the model cares."""


@dataclass(frozen=True)
class Positions:
    """What the experiment on positions says.

    Attributes:
        passed: "restarting", "flat", "none", "several axes" or "irregular": what the batch carries.
        starts: the first position of each segment, as passed (the index in the row where none are).
        reads: whether the outputs of a sample change when its positions are stretched.
        shifts: how far they move when all its positions are shifted by a constant, in standard deviations.
        start_alone: where the model starts for a sample alone, or None where no start gives the same.
        right: whether the positions that reach the model are those of the sample alone, or differ in what it does not read.
        said: the same in a sentence.
    """

    passed: str
    starts: tuple[int, ...]
    reads: bool
    shifts: float
    start_alone: int | None
    right: bool
    said: str


def positions(
    subject: Subject,
    blocks: Sequence[Block],
    *,
    noise: float,
    run: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Positions:
    """Return what positions reach the model and what it makes of them.

    Args:
        noise: what rounding may move the outputs by, in standard deviations.

    Cost: at most eight forwards of one sample.
    """
    batch = subject.collate(blocks)
    passed, starts = _passed(batch, blocks, subject)
    longest = max(alone(blocks), key=lambda block: block.num_tokens)
    room = (position_table(getattr(subject.module, "config", None)) or 24 + _SHIFT) - _SHIFT
    length = max(1, min(longest.num_tokens, 24, room))
    sample = block_of([length], longest.input_ids[:length])
    base = run(subject.run_alone)(sample).logits
    if not bool(base.isfinite().all()):
        raise InputError("positions are tried on outputs that are numbers.", "These are not finite.", "Mend the outputs first.")
    single = dict(subject.single(sample))
    scale = float(base.double().std()) or 1.0

    def moved(values: npt.NDArray[np.int64]) -> float | None:
        import torch

        given = {**single, "position_ids": torch.from_numpy(values[None])}
        try:
            outputs = run(_alone_with(subject, sample))(given)
        except (TypeError, RuntimeError, IndexError, ValueError, CloisonError):
            return None
        return float((outputs.logits.double() - base.double()).abs().max()) / scale

    count = np.arange(sample.num_tokens)
    stretched = moved(2 * count)
    if stretched is None:
        stretched = moved(count[::-1].copy())
    plain = moved(count)
    if plain is None or stretched is None:
        return Positions(passed, starts, False, 0.0, None, True, f"{_said(passed, starts)}; the model takes no position_ids")
    start = next((s for s in _starts(subject) if (size := moved(count + s)) is not None and size <= noise), None)
    reads = (moved(np.minimum(count, 1)) or 0.0) > noise or stretched > noise
    shifted = moved(count + (start or 0) + _SHIFT)
    reads = reads or (shifted is not None and shifted > noise)
    lengths = lengths_of(blocks)
    indifferent = not reads or (shifted is not None and shifted <= noise)
    wanted = start or 0
    wrong = [s for s, (first, length) in enumerate(zip(starts, lengths, strict=True)) if first != wanted and length > 0]
    right = passed != "irregular" and (not wrong or indifferent)
    cares = (
        "the model does not read them"
        if not reads
        else f"it has none left to shift a sample of {length} by {_SHIFT}"
        if shifted is None
        else "a constant shift changes nothing, since the model reads distances"
        if shifted <= noise
        else f"a shift of {_SHIFT} moves the outputs by {shifted:.2g} sigma"
    )
    tail = "" if right else f"; alone a sample starts at {wanted}, here {len(wrong)} of {len(lengths)} segments do not"
    return Positions(passed, starts, reads, shifted or 0.0, start, right, f"{_said(passed, starts)}; {cares}{tail}")


def _said(passed: str, starts: tuple[int, ...]) -> str:
    return {
        "restarting": f"positions restart in each segment, at {starts[0] if starts else 0}",
        "flat": "positions run through the row",
        "none": "no positions are passed, so the model counts from the start of the row",
        "several axes": "positions of several axes are passed",
        "irregular": "positions inside a segment do not count up by one",
    }[passed]


def _starts(subject: Subject) -> list[int]:
    padding = getattr(getattr(subject.module, "config", None), "pad_token_id", None)
    return list(dict.fromkeys([0, 1, 2, *([padding + 1] if isinstance(padding, int) else [])]))


def _alone_with(subject: Subject, sample: Block) -> Callable[[Any], Any]:
    from dataclasses import replace

    def call(batch: Any) -> Any:
        return replace(subject, call=subject.call_single).run_batch(batch, [sample])

    return call


def _passed(batch: Any, blocks: Sequence[Block], subject: Subject) -> tuple[str, tuple[int, ...]]:
    from cloison.proof.run import places

    at = places(batch, blocks)
    ids = ids_of(batch)
    width = int(ids.shape[-1]) if ids is not None else sum(lengths_of(blocks))
    at = np.arange(sum(lengths_of(blocks))) if at is None else at
    given = batch.get("position_ids") if hasattr(batch, "get") else None
    if given is None:
        return "none", tuple(int(at[place.start] % width) for place in bounds(blocks))
    values = given.detach().cpu().numpy()
    several = values.ndim == 3
    if several:
        values = values[0]
    flat = np.broadcast_to(values, ids.shape if ids is not None else values.shape).reshape(-1)[at]
    starts = tuple(int(flat[place.start]) for place in bounds(blocks))
    steps = [np.diff(flat[place]) for place in bounds(blocks)]
    if any((step != 1).any() for step in steps):
        return ("several axes" if several else "irregular"), starts
    if several:
        return "several axes", starts
    return ("restarting" if len(set(starts)) == 1 else "flat"), starts
