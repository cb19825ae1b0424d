"""What kind of mismatch: no leak, and yet not what the sample is alone. Found out by further experiments, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError
from cloison.proof.blocks import alone, block_of, bounds, lengths_of
from cloison.proof.equality import Equality
from cloison.proof.limits import limits
from cloison.proof.run import Subject
from cloison.proof.setup import Setup

__all__ = ["Mismatch", "classify"]


@dataclass(frozen=True)
class Mismatch:
    """The kind of a mismatch.

    Attributes:
        kind: "stale_state", "padding", "window", "wrong_start", "mask", "longest_position", "position_offset", "row_length" or
            "unexplained".
        said: what the experiment showed, in a sentence.
        fix: what to do about it.
    """

    kind: str
    said: str
    fix: str


def classify(setup: Setup, equal: Equality) -> Mismatch:
    """Return the kind of the mismatch that ``equal`` measured on ``setup``.

    Cost: two forwards a segment, and a handful of packed ones. Nothing here looks at the model's code.
    """
    subject, blocks, errors, allowed = setup.subject, setup.blocks, equal.token_errors, equal.allowed
    if errors.max() <= allowed:  # the twin agrees, the model's own dtype does not
        allowed = max(c.allowed for c in equal.comparisons if c.quantity == equal.comparisons[0].quantity)
    probe = _Probe(subject, blocks, max(allowed, equal.comparisons[0].allowed), equal.reference, setup.wrap)
    worst = [float(errors[place].max()) for place in bounds(blocks)]
    unequal = [segment for segment, error in enumerate(worst) if error > allowed]
    for experiment in (_stale, _padding, _alone_through_the_signal, _neighbours):
        found = experiment(probe, unequal)
        if found is not None:
            return found
    return Mismatch(
        "unexplained",
        f"{len(unequal)} of {len(worst)} segments differ, and neither place, neighbours' lengths, padding nor earlier calls "
        "explain it.",
        "Run cloison.adapt(model), which looks for a way that is exact.",
    )


@dataclass(frozen=True)
class _Probe:
    subject: Subject
    blocks: Sequence[Block]
    allowed: float
    reference: Any
    run: Callable[[Callable[..., Any]], Callable[..., Any]]

    def error(self, logits: Any, expected: Any) -> npt.NDArray[np.float64]:
        """Return [tokens]: the differences, in standard deviations of the reference."""
        gap = (logits.double() - expected.double().to(logits.device)).abs().amax(-1)
        return np.asarray(gap.nan_to_num(nan=float("inf")).cpu().numpy() / float(self.reference.double().std()))

    def expected(self, segment: int) -> Any:
        return self.reference[bounds(self.blocks)[segment]]

    def packed(self, order: Sequence[int]) -> dict[int, float]:
        """Return the error of every segment when the segments of ``order`` are packed in one block in that order."""
        singles = alone(self.blocks)
        block = block_of(lengths_of([singles[s] for s in order]), np.concatenate([singles[s].input_ids for s in order]))
        logits = self.run(self.subject.run)([block]).logits
        return {
            s: float(self.error(logits[place], self.expected(s)).max()) for s, place in zip(order, bounds([block]), strict=True)
        }


def _stale(probe: _Probe, unequal: list[int]) -> Mismatch | None:
    singles = alone(probe.blocks)
    again = [
        float(probe.error(probe.run(probe.subject.run_alone)(singles[s]).logits, probe.expected(s)).max()) for s in unequal
    ]
    if max(again) <= probe.allowed:
        return None
    return Mismatch(
        "stale_state",
        f"the same sample alone gives other outputs ({max(again):.2g} sigma) after a packed forward: "
        "the model keeps state of earlier calls.",
        "Reset what the model keeps between calls (a memory, a running mean, a cached scaling), or use a form without it.",
    )


def _padding(probe: _Probe, unequal: list[int]) -> Mismatch | None:
    import torch

    batch = dict(probe.subject.collate(probe.blocks))
    outputs = probe.run(probe.subject.run_batch)(batch, probe.blocks)
    ids = batch.get("input_ids")
    if outputs.places is None or ids is None or ids.numel() == outputs.places.size:
        return None
    padding = np.setdiff1d(np.arange(ids.numel()), outputs.places)
    other = ids.clone().reshape(-1)
    drawn = probe.blocks[0].input_ids[np.arange(padding.size) % probe.blocks[0].num_tokens]
    other[torch.from_numpy(padding)] = torch.from_numpy(drawn.astype(np.int64)).to(other)
    changed = probe.run(probe.subject.run_batch)({**batch, "input_ids": other.reshape(ids.shape)}, probe.blocks)
    if torch.equal(changed.logits, outputs.logits):
        return None
    return Mismatch(
        "padding",
        f"the outputs of samples move when the ids in the {padding.size} padding positions change.",
        "Do not pad (one flat row), or mask the padding out of everything that mixes tokens.",
    )


def _alone_through_the_signal(probe: _Probe, unequal: list[int]) -> Mismatch | None:
    """A sample packed with no neighbour at all: if it differs already then, it is the signal's mask or positions."""
    solo: dict[int, npt.NDArray[np.float64]] = {}
    singles = alone(probe.blocks)
    for segment in unequal:
        logits = probe.run(probe.subject.run)([singles[segment]]).logits
        solo[segment] = probe.error(logits, probe.expected(segment))
    differ = {segment: np.flatnonzero(error > probe.allowed) for segment, error in solo.items()}
    differ = {segment: where for segment, where in differ.items() if where.size}
    if not differ:
        return None
    first = min(int(where[0]) for where in differ.values())
    lengths = lengths_of(probe.blocks)
    config = getattr(probe.subject.module, "config", None)
    windows = {value for name, value in limits(config).items() if not name.startswith(("original", "index", "conv"))}
    if first > 0 and all(lengths[s] > first for s in differ):
        named = f", and {first} is the model's window" if first in windows else ""
        return Mismatch(
            "window",
            f"samples of up to {first} tokens are right, longer ones differ from their token {first} on{named}: "
            "the mask that is passed replaces the model's own window or chunk.",
            "Build the window into the mask: cloison.forms.hf.mask4d(segments, window=...), or "
            "masks_by_layer_type(segments, config) where layers differ.",
        )
    batch_of = {segment: dict(probe.subject.collate([singles[segment]])) for segment in differ}
    start = _start_that_mends(probe, batch_of)
    if start is not None:
        given, wanted = start
        return Mismatch(
            "wrong_start",
            f"positions start at {given} in each segment, and alone the model starts at {wanted}.",
            f"Let positions start at {wanted}: cloison.collate(blocks, position_start={wanted}).",
        )
    if any(batch.get("attention_mask") is not None for batch in batch_of.values()) and _mended_without(
        probe, batch_of, "attention_mask"
    ):
        return Mismatch(
            "mask",
            "a sample that is packed with no neighbour differs under the mask that is passed, and is right without it.",
            "Drop the mask where the model reads positions, or run cloison.adapt(model).",
        )
    return Mismatch(
        "signal",
        f"{len(differ)} of {len(lengths)} samples differ even when packed with no neighbour: what the batch tells the model "
        "changes the sample itself.",
        "Run cloison.adapt(model), which looks for a way that is exact.",
    )


def _start_that_mends(probe: _Probe, batches: Mapping[int, dict[str, Any]]) -> tuple[int, int] | None:
    singles = alone(probe.blocks)
    starts = {0, 1, 2, 3}
    padding = getattr(getattr(probe.subject.module, "config", None), "pad_token_id", None)
    if isinstance(padding, int):
        starts.add(padding + 1)
    for start in sorted(starts):
        good = True
        given = 0
        for segment, batch in batches.items():
            positions = batch.get("position_ids")
            if positions is None or positions.shape[-1] != singles[segment].num_tokens:
                return None
            given = int(positions.reshape(-1)[0])
            moved = {**batch, "position_ids": positions - given + start}
            try:
                logits = probe.run(probe.subject.run_batch)(moved, [singles[segment]]).logits
            except (RuntimeError, IndexError, ValueError, CloisonError):
                good = False
                break
            if probe.error(logits, probe.expected(segment)).max() > probe.allowed:
                good = False
                break
        if good and start != given:
            return given, start
    return None


def _mended_without(probe: _Probe, batches: Mapping[int, dict[str, Any]], key: str) -> bool:
    singles = alone(probe.blocks)
    for segment, batch in batches.items():
        rest = {name: value for name, value in batch.items() if name != key}
        logits = probe.run(probe.subject.run_batch)(rest, [singles[segment]]).logits
        if probe.error(logits, probe.expected(segment)).max() > probe.allowed:
            return False
    return True


def _neighbours(probe: _Probe, unequal: list[int]) -> Mismatch | None:
    """Each sample is right when packed with no neighbour: is it its place in the row, or how long the others are?"""
    lengths = lengths_of(probe.blocks)
    longest = int(np.argmax(lengths))
    places = [segment for segment in unequal if segment != longest]
    # Below every limit first: a longer one may be scaled by what an earlier call left, and look like another kind.
    lowest = min(limits(getattr(probe.subject.module, "config", None)).values(), default=max(lengths))
    for segment in sorted(places, key=lambda s: (lengths[s] > lowest, -lengths[s]))[:3]:
        first = probe.packed([segment, longest])[segment] > probe.allowed
        pieces = _pieces(probe, segment, lengths[longest])
        if first and pieces is not None:
            if pieces > probe.allowed:
                return Mismatch(
                    "row_length",
                    f"segment {segment}, first in its row, differs when {lengths[longest]} tokens follow it in pieces of any "
                    "length: the model looks at the length of the row.",
                    "Run cloison.adapt(model): samples have to be run in rows of their own.",
                )
            return Mismatch(
                "longest_position",
                f"segment {segment} of {lengths[segment]} tokens differs beside one of {lengths[longest]} and not beside as "
                "many tokens in short ones: positions are scaled by the longest of the batch.",
                "Keep the lengths in a block on one side of the scaling limit, or use a scaling that does not depend on them.",
            )
        last = [other for other in range(len(lengths)) if other not in (segment, longest)][:3]
        if not first and last and probe.packed([*last, segment])[segment] > probe.allowed:
            return _offset(segment)
    if longest in unequal:
        others = [other for other in range(len(lengths)) if other != longest][:3]
        if probe.packed([*others, longest])[longest] > probe.allowed >= probe.packed([longest, *others])[longest]:
            return _offset(longest)
    return None


def _offset(segment: int) -> Mismatch:
    return Mismatch(
        "position_offset",
        f"segment {segment} is right at the start of a row and differs behind other samples: "
        "its positions do not start anew, or the model counts from the start of the row.",
        "Pass position_ids that start anew in each segment (cloison.collate(blocks)), or run cloison.adapt(model).",
    )


def _pieces(probe: _Probe, segment: int, tokens: int) -> float | None:
    """Return the error of ``segment``, first in a row, before ``tokens`` tokens in pieces no longer than itself."""
    own = alone(probe.blocks)[segment]
    length = own.num_tokens
    lengths = [length] + [min(length, tokens - start) for start in range(0, tokens, length)]
    filler = np.resize(np.concatenate([block.input_ids for block in probe.blocks]), sum(lengths) - length)
    block = block_of(lengths, np.concatenate([own.input_ids, filler]))
    try:
        logits = probe.run(probe.subject.run)([block]).logits
    except (RuntimeError, IndexError, ValueError, CloisonError):
        return None
    return float(probe.error(logits[:length], probe.expected(segment)).max())
