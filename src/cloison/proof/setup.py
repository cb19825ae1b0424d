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
from cloison.proof.isolation import Influence, codes, moves, scale_of
from cloison.proof.keep import Kept, seeded
from cloison.proof.run import Outputs, Subject
from cloison.proof.tracing import Place, compare, trace

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAILURES", "Setup", "coupling", "where"]

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
    module = setup.subject.module
    if module is None or moved.noise > 0.0:
        return None
    source = moved.worst[0]
    base, first = _traced(setup, setup.blocks)
    other, _ = _traced(setup, setup.with_changed([source]))
    reached = [destination for destination in np.flatnonzero(moved.cells[source]).tolist() if destination != source]
    at = _positions(setup, first, reached)
    return None if base is None or other is None or at is None else compare(module, base, other, at)


def coupling(setup: Setup, moved: Influence, place: Place | None, rounding: float | None) -> str:
    """Return by which control the moves are coupling and no leak, or "" where they are a leak.

    Args:
        rounding: what rounding may move outputs by, in standard deviations, where equality measured it and held.

    Cost: 1 + 2 * log2 segments forwards for each control that applies.
    """
    module = setup.subject.module
    if module is None:
        return ""
    if has_experts(module):
        with recording(module) as routing:
            setup.run(setup.blocks)
        if routing and _still(setup, lambda _: replaying(module, routing)):
            return "nothing moves when the routing of the unchanged run is replayed: expert groups or capacity"
    if place is not None and place.nature in ("rounding", "batch statistics"):
        with per_token_replayed(module, None, np.zeros(0, np.int64)) as outputs:
            first = setup.run(setup.blocks)

        def replayed(outside: list[int]) -> Any:
            at = _positions(setup, first, outside)
            return per_token_replayed(module, outputs, np.zeros(0, np.int64) if at is None else at)

        if _still(setup, replayed):
            kind = (
                "batch statistics" if place.nature == "batch statistics" else "a scale or a kernel that depends on all tokens"
            )
            return f"nothing moves when each token keeps its own output of layers like {place}: {kind}"
    if rounding is not None and moved.worst[2] <= rounding and has_experts(module):
        return f"the largest move, {moved.worst[2]:.1e} sigma, is within rounding ({rounding:.1e})"
    return ""


def _still(setup: Setup, control: Callable[[list[int]], Any]) -> bool:
    """Whether nothing moves when every forward runs inside ``control(bystanders)``."""
    places = bounds(setup.blocks)
    for chosen in codes(len(places)):
        outside = [segment for segment in range(len(places)) if segment not in chosen]
        with control(outside):
            base = setup.logits(setup.blocks)
        with control(outside):
            other = setup.logits(setup.with_changed(chosen))
        if moves(base, other, places, scale_of(base))[outside].any():
            return False
    return True


def _traced(setup: Setup, blocks: Sequence[Block]) -> tuple[Any, Outputs | None]:
    module = setup.subject.module
    ids = setup.subject.collate(blocks).get("input_ids")
    if module is None or ids is None:
        return None, None
    shape = (int(ids.shape[0]), int(ids.shape[-1])) if ids.dim() > 1 else (1, int(ids.shape[-1]))
    return trace(module, lambda: setup.run(blocks), shape)


def _positions(setup: Setup, outputs: Outputs | None, segments: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """Return the places of the tokens of ``segments`` in the flattened batch."""
    if outputs is None or outputs.places is None or not segments:
        return None
    return np.concatenate([outputs.places[bounds(setup.blocks)[segment]] for segment in segments])
