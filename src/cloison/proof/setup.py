"""Setup: what every experiment of one verification shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError
from cloison.proof.blocks import bounds, changed
from cloison.proof.coupling import has_experts, per_token_replayed, recording, replaying
from cloison.proof.isolation import Ahead, Influence, codes, moves, scale_of
from cloison.proof.keep import Kept, seeded
from cloison.proof.run import Outputs, Subject, ids_of
from cloison.proof.tracing import Place, compare, trace

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAILURES", "Setup", "coupling", "look_ahead_coupling", "where"]

FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    NotImplementedError,
    AssertionError,
    ImportError,
    CloisonError,
)
"""What a model's own code may raise on a signal: an error of that signal, and the rest goes on."""


@dataclass(frozen=True)
class Setup:
    """What is under test and on what.

    Attributes:
        subject: see `Subject`.
        blocks: all of them go into one batch.
        ids: int64, sorted: what changed tokens are drawn from.
        seed: set before every forward, and of everything drawn.
        notes: what was noticed on the way.
    """

    subject: Subject
    blocks: Sequence[Block]
    ids: npt.NDArray[np.int64]
    seed: int
    notes: Kept

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, seeded."""
        return seeded(call, self.seed, self.notes)

    def run(self, blocks: Sequence[Block]) -> Outputs:
        """Return the outputs of packed ``blocks``."""
        outputs: Outputs = self.wrap(self.subject.run)(blocks)
        return outputs

    def logits(self, blocks: Sequence[Block]) -> Tensor:
        """Return the logits of packed ``blocks``, [tokens, features]."""
        return self.run(blocks).logits

    def with_changed(self, chosen: Sequence[int]) -> list[Block]:
        """Return the blocks with the tokens of the ``chosen`` segments changed."""
        return changed(self.blocks, set(chosen), self.ids, self.seed)


def where(setup: Setup, moved: Influence) -> Place | None:
    """Return the Place where the worst source first reaches those it reaches; None where modules cannot be watched.

    Cost: two forwards with a hook on every module.
    """
    source = moved.worst[0]
    reached = [destination for destination in np.flatnonzero(moved.cells[source]).tolist() if destination != source]
    if moved.noise > 0.0:
        return None
    return _entry(setup, setup.with_changed([source]), _tokens_of(setup, reached))


def coupling(setup: Setup, moved: Influence, place: Place | None, rounding: float | None) -> str:
    """Return by which control the moves are coupling and no leak, or "" where they are a leak.

    Args:
        rounding: what rounding may move outputs by, in standard deviations, where equality measured it and held.

    Cost: 1 + 4 * log2 segments forwards for each control that applies.
    """
    count = len(bounds(setup.blocks))
    sets = [(chosen, [segment for segment in range(count) if segment not in chosen]) for chosen in codes(count)]
    runs = [(setup.with_changed(chosen), _tokens_of(setup, outside)) for chosen, outside in sets]
    said = _explained(setup, place, runs)
    return said or (_within(moved.worst[2], rounding) if has_experts(setup.subject.module) else "")


def look_ahead_coupling(setup: Setup, ahead: Ahead, rounding: float | None) -> str:
    """Return by which control it is coupling that earlier tokens move with later ones of their segment, or ""."""
    places = bounds(setup.blocks)
    first = np.concatenate([np.arange(p.start, p.start + count) for p, count in zip(places, ahead.kept, strict=True)])
    later = changed(setup.blocks, {ahead.segment}, setup.ids, setup.seed, after=ahead.kept)
    said = _explained(setup, _entry(setup, later, first), [(later, first)])
    return said or _within(ahead.size, rounding)


def _within(size: float, rounding: float | None) -> str:
    if rounding is None or size > rounding:
        return ""
    return f"the largest move, {size:.1e} sigma, is within rounding ({rounding:.1e}), as work of another shape gives it"


def _explained(setup: Setup, place: Place | None, runs: list[tuple[list[Block], npt.NDArray[np.int64]]]) -> str:
    """Return the control under which nothing moves in any of ``runs``, each changed blocks and the tokens to be still."""
    module = setup.subject.module
    if module is None:
        return ""
    if has_experts(module):
        with recording(module) as routing:
            setup.run(setup.blocks)
        if routing and _still(setup, runs, lambda _: replaying(module, routing)):
            return "nothing moves when the routing of the unchanged run is replayed: expert groups or capacity"
    if place is not None and place.nature in ("rounding", "batch statistics"):
        with per_token_replayed(module, None, np.zeros(0, np.int64)) as outputs:
            at = setup.run(setup.blocks).places
        if at is not None and _still(setup, runs, lambda tokens: per_token_replayed(module, outputs, at[tokens])):
            kind = "batch statistics" if place.nature == "batch statistics" else "a scale or a kernel that sees all tokens"
            return f"nothing moves when each token keeps its own output of layers like {place}: {kind}"
    return ""


def _still(
    setup: Setup,
    runs: list[tuple[list[Block], npt.NDArray[np.int64]]],
    control: Callable[[npt.NDArray[np.int64]], Any],
) -> bool:
    for blocks, tokens in runs:
        with control(tokens):
            base = setup.logits(setup.blocks)
        with control(tokens):
            other = setup.logits(blocks)
        if moves(base[tokens], other[tokens], [slice(0, tokens.size)], scale_of(base)).any():
            return False
    return True


def _entry(setup: Setup, blocks: Sequence[Block], tokens: npt.NDArray[np.int64]) -> Place | None:
    """Return where ``tokens`` first differ between the unchanged run and that of ``blocks``."""
    module = setup.subject.module
    batch = setup.subject.collate(setup.blocks)
    ids, embeds = ids_of(batch), batch.get("inputs_embeds")
    sizes = ids.shape if ids is not None else embeds.shape[:-1] if embeds is not None else None
    if module is None or sizes is None:
        return None
    shape = (int(sizes[0]), int(sizes[-1])) if len(sizes) > 1 else (1, int(sizes[-1]))
    base, outputs = trace(module, lambda: setup.run(setup.blocks), shape)
    other, _ = trace(module, lambda: setup.run(blocks), shape)
    at = outputs.places
    if at is None and sizes.numel() == sum(block.num_tokens for block in setup.blocks):
        at = np.arange(sizes.numel())  # outputs came in packed order, and so did what went in
    return None if at is None else compare(module, base, other, at[tokens])


def _tokens_of(setup: Setup, segments: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the tokens of ``segments``, in packed order."""
    places = bounds(setup.blocks)
    return np.concatenate([np.arange(places[segment].start, places[segment].stop) for segment in segments])
