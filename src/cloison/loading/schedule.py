"""Which rank gets which blocks at which step: computed by every rank alone, and exact through a change of the number of ranks.

An epoch is a sequence of blocks (`order.Order`). A `Deal` cuts it into steps of ``world_size * blocks_per_step`` blocks. What
happened before is a short history: so many steps under this deal, so many under that one. A `Course` replays it: what was
consumed is known exactly, what is left keeps its order, and the present deal goes on with it. So a run that is resumed on
another number of ranks takes every block that is left, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.loading import balance
from cloison.loading.order import Order
from cloison.planning.balancing import Cost
from cloison.planning.bijection import derive

__all__ = ["Course", "Deal", "Last"]

Last = Literal["fill", "drop"]
_DEALING = 1
"""Keeps the keys of dealing apart from those of the order."""

Costs = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Deal:
    """How blocks are dealt to steps and ranks. Plain data.

    Attributes:
        world_size: ranks.
        blocks_per_step: blocks that each rank gets in a step.
        last: what becomes of blocks that do not fill a step: "fill" gives the ranks that go without a filler block without
            targets; "drop" leaves the blocks out of this epoch.
        window: steps within which blocks are dealt by cost; 0: dealt in turn, whatever they cost.
        per_token, per_square, fixed: what a block costs, see `cloison.planning.Cost`.
    """

    world_size: int
    blocks_per_step: int
    last: Last = "fill"
    window: int = 0
    per_token: float = Cost.per_token
    per_square: float = Cost.per_square
    fixed: float = Cost.fixed

    def __post_init__(self) -> None:
        for name, least in (("world_size", 1), ("blocks_per_step", 1), ("window", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be an integer of at least {least}.", f"It is {value!r}.", "Check the launcher.")
        if self.last not in get_args(Last):
            raise InputError('last must be "fill" or "drop".', f"It is {self.last!r}.", "Pick one of them.")

    @property
    def step_blocks(self) -> int:
        """Blocks of a step over all ranks."""
        return self.world_size * self.blocks_per_step

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Deal:
        """Return the deal of `to_dict`."""
        return cls(**{field.name: plain[field.name] for field in fields(cls)})


class Course:
    """One epoch under a deal, after a history. Steps are counted from the present deal's first.

    Attributes:
        deal: the present deal.
        left: blocks that were left when it began.
        steps: how many steps it has.
        dropped: blocks that it leaves out (last="drop").
    """

    def __init__(self, order: Order, deal: Deal, history: Sequence[tuple[Deal, int]] = (), costs: Costs | None = None) -> None:
        self.deal = deal
        self._order = order
        self._costs = costs
        self._front: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._next = 0
        self._window: tuple[int, npt.NDArray[np.int64]] | None = None
        for past, steps in history:
            self.deal = past
            self._consume(steps)
        self.deal = deal
        self._window = None
        self.left = self._left()
        whole, rest = divmod(self.left, deal.step_blocks)
        self.steps = whole + (1 if rest and deal.last == "fill" else 0)
        self.dropped = rest if deal.last == "drop" else 0

    def blocks(self, step: int, rank: int) -> npt.NDArray[np.int64]:
        """Return the blocks of ``rank`` at ``step``, int64 [blocks_per_step], -1 for a filler.

        Raises:
            InputError: a rank outside the world, or a step past the last.
        """
        deal = self.deal
        if not 0 <= rank < deal.world_size:
            raise InputError(f"rank must be 0 .. {deal.world_size - 1}.", f"It is {rank}.", "Check the launcher.")
        if not 0 <= step < self.steps:
            raise InputError(f"step must be 0 .. {self.steps - 1}.", f"It is {step}.", "The epoch ends there.")
        if deal.window:
            mine: npt.NDArray[np.int64] = self._dealt(step)[rank]
            return mine
        places = step * deal.step_blocks + rank + deal.world_size * np.arange(deal.blocks_per_step)
        return self._pick(places)

    def dealt(self, step: int) -> npt.NDArray[np.int64]:
        """Return the blocks of all ranks at ``step``, int64 [world_size, blocks_per_step]."""
        if self.deal.window:
            return self._dealt(step)
        return np.stack([self.blocks(step, rank) for rank in range(self.deal.world_size)])

    def _dealt(self, step: int) -> npt.NDArray[np.int64]:
        deal = self.deal
        number = step // deal.window
        if self._window is None or self._window[0] != number:
            left = self._left()
            size = deal.window * deal.step_blocks
            end = left if deal.last == "fill" else left // deal.step_blocks * deal.step_blocks
            found = self._sequence(number * size, min((number + 1) * size, end))
            steps = -(-found.size // deal.step_blocks)
            costs = np.ones(found.size) if self._costs is None else self._costs(found)
            key = derive(self._order.seed, self._order.epoch, number, _DEALING)
            index = balance.deal(costs, steps, deal.world_size, deal.blocks_per_step, key)
            self._window = (number, np.where(index >= 0, np.append(found, -1)[index], -1))
        chosen: npt.NDArray[np.int64] = self._window[1][step - number * deal.window]
        return chosen

    # ------------------------------------------------------------------ the sequence of blocks that are left

    def _left(self) -> int:
        return int(self._front.size) + self._order.num_blocks - self._next

    def _sequence(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        shift = self._next - self._front.size
        rest = self._order.blocks(max(start, self._front.size) + shift, max(stop, self._front.size) + shift)
        return np.concatenate([self._front[start:stop], rest])

    def _pick(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        real = places < self._left()
        out = np.full(places.size, -1, np.int64)
        if real.any():
            first = int(places[0])
            out[real] = self._sequence(first, int(places[real][-1]) + 1)[places[real] - first]
        return out

    def _consume(self, steps: int) -> None:
        """Take the first ``steps`` steps of the present deal out of the sequence."""
        deal, left = self.deal, self._left()
        whole = steps // deal.window * deal.window if deal.window else steps
        taken = min(whole * deal.step_blocks, left)
        gone = np.zeros(0, np.int64)
        window = np.zeros(0, np.int64)
        if steps > whole:
            self._window = None
            gone = np.concatenate([self._dealt(step).reshape(-1) for step in range(whole, steps)])
            stop = min(taken + deal.window * deal.step_blocks, left)
            window = self._sequence(taken, stop)
        self._skip(taken + window.size)
        kept = window[~np.isin(window, gone)]
        self._front = np.concatenate([kept, self._front])

    def _skip(self, places: int) -> None:
        from_front = min(places, self._front.size)
        self._front = self._front[from_front:]
        self._next += places - from_front
