"""Plan: which segments go into which block, in which order, with its proof, its account and how mixed it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.ledger import Ledger
from cloison.planning.items import Items
from cloison.planning.patterns import Patterns
from cloison.showing import repr_html

if TYPE_CHECKING:
    from cloison.planning.composition import Composition
    from cloison.planning.epochs import Epoch, Places

__all__ = ["Plan", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The arguments of `plan` beside the lengths, as they were given (see there)."""

    capacity: int
    policy: str = "look_ahead"
    overflow: str = "raise"
    seed: int = 0
    order: str = "shuffled"
    max_segments: int | None = None
    align: int = 1
    look_ahead: int = 1024
    max_sample_tokens: int | None = None
    time_limit: float | None = None

    @property
    def shuffled(self) -> bool:
        """Whether the planning order is a shuffle."""
        return self.order == "shuffled"


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Blocks as one flat list of segments: block b is ``[offsets[b]:offsets[b + 1]]`` of the three arrays beside it.

    `starts`, `seq_lengths` and `composition` are derived when first asked for, so that a plan of 1e9 samples holds little more
    than its ids. All arrays are read-only; plans are equal when capacity and arrays are.

    Attributes:
        items: what was planned (refers to the lengths that the caller gave).
        settings: the arguments of `plan`; ``capacity``, ``policy``, ``seed``, ``order``, ``align`` and ``max_segments`` are
            there on the plan too.
        offsets: int64 [blocks + 1].
        sample_ids: uint32 [segments] (int64 where ids do not fit), the sample of each segment.
        lower_bound: no plan of these items has fewer blocks. ``bound_name`` says which argument proves it.
        patterns: kinds of blocks, where the policy works on counts; else None.
        seconds: how long planning took. Not part of the value.
    """

    items: Items
    settings: Settings
    offsets: npt.NDArray[np.int64]
    sample_ids: npt.NDArray[Any]
    lower_bound: int
    bound_name: str
    patterns: Patterns | None = None
    given_starts: npt.NDArray[np.int32] | None = None
    given_lengths: npt.NDArray[np.int32] | None = None
    seconds: float = 0.0

    _repr_html_ = repr_html

    def __post_init__(self) -> None:
        for array in (self.offsets, self.sample_ids, self.given_starts, self.given_lengths):
            if array is not None:
                array.setflags(write=False)

    @property
    def capacity(self) -> int:
        """Tokens a block holds at most."""
        return self.items.capacity

    @property
    def align(self) -> int:
        """A segment counts as its length rounded up to this multiple."""
        return self.items.align

    @property
    def policy(self) -> str:
        """The policy that was asked for."""
        return self.settings.policy

    @property
    def seed(self) -> int:
        """The seed of all shuffles."""
        return self.settings.seed

    @property
    def order(self) -> str:
        """ "shuffled" or "input"."""
        return self.settings.order

    @property
    def max_segments(self) -> int | None:
        """Segments a block holds at most."""
        return self.settings.max_segments

    @property
    def ledger(self) -> Ledger:
        """What came in, what is in blocks, and what became of the rest."""
        return self.items.ledger

    # ------------------------------------------------------------------ arrays

    @cached_property
    def starts(self) -> npt.NDArray[np.int32]:
        """int32 [segments], where in its sample each segment begins: 0 unless the sample was split."""
        if self.given_starts is not None:
            return self.given_starts
        zeros = np.zeros(self.num_segments, np.int32)
        zeros.setflags(write=False)
        return zeros

    @cached_property
    def seq_lengths(self) -> npt.NDArray[np.int32]:
        """int32 [segments], real lengths in tokens, in the order of the blocks."""
        lengths = self.lengths_of(0, self.num_segments)
        lengths.setflags(write=False)
        return lengths

    def lengths_of(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the real lengths of segments start..stop-1, gathered from the source where they are not kept."""
        if self.given_lengths is not None:
            return self.given_lengths[start:stop]
        if "seq_lengths" in self.__dict__:
            return self.seq_lengths[start:stop]
        return self.items.real_lengths(self.sample_ids[start:stop])

    def segments_at(self, at: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return (sample_ids, starts, seq_lengths) of the segments at places ``at`` int64 [n] of the flat list."""
        ids = self.sample_ids[at]
        starts = np.zeros(at.size, np.int32) if self.given_starts is None else self.given_starts[at]
        return ids, starts, self.items.real_lengths(ids) if self.given_lengths is None else self.given_lengths[at]

    def __len__(self) -> int:
        """Blocks."""
        return self.num_blocks

    def __getitem__(self, block: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return (sample_ids, starts, seq_lengths) of one block, each [segments of the block]."""
        index = range(self.num_blocks)[block]
        a, b = int(self.offsets[index]), int(self.offsets[index + 1])
        starts = np.zeros(b - a, np.int32) if self.given_starts is None else self.given_starts[a:b]
        return self.sample_ids[a:b], starts, self.lengths_of(a, b)

    def __iter__(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        return (self[block] for block in range(self.num_blocks))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Plan)
            and self.capacity == other.capacity
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.sample_ids, other.sample_ids)
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.seq_lengths, other.seq_lengths)
        )

    __hash__ = None  # type: ignore[assignment]

    # ------------------------------------------------------------------ numbers

    @property
    def num_blocks(self) -> int:
        """Blocks."""
        return int(self.offsets.size - 1)

    @property
    def num_segments(self) -> int:
        """Segments in all blocks."""
        return int(self.sample_ids.size)

    @property
    def num_tokens(self) -> int:
        """Valid tokens in all blocks (real ones, before rounding up to ``align``)."""
        return self.ledger.tokens_kept

    @property
    def utilization(self) -> float:
        """Valid tokens / (blocks x capacity); 1 for a plan without blocks."""
        return self.num_tokens / (self.num_blocks * self.capacity) if self.num_blocks else 1.0

    @property
    def padded_utilization(self) -> float:
        """What one sample a row would have given, every row as wide as the longest: valid tokens / (segments x longest)."""
        longest = int(np.flatnonzero(self.items.counts).max(initial=0)) * self.align
        return self.num_tokens / (self.num_segments * longest) if self.num_segments else 1.0

    @property
    def gap(self) -> float:
        """(blocks - lower bound) / lower bound: 0 is proven optimal."""
        return (self.num_blocks - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0

    # ------------------------------------------------------------------ what is made of a plan
    # These methods reach up, to functions that take a Plan: the only imports of this package that do, and so not at its top.

    @cached_property
    def composition(self) -> Composition:
        """How far the blocks are from a random assignment, in steps of 64 blocks; see `composition.compose` for other steps."""
        from cloison.planning.composition import compose

        return compose(self)

    def epoch(self, number: int, *, pairing: str = "auto") -> Epoch:
        """Return epoch ``number``: each sample once, in new pairings and a new order; any block of it by index.

        Epoch 0 is the plan itself. The same on every machine, without communication.

        Args:
            pairing: "dealt": the plan's blocks as sets of lengths, samples of each length dealt anew; "planned": planned
                again with a seed of the epoch's own; "auto": dealt where pairs recur little more than by chance.

        >>> from cloison import plan
        >>> epochs = plan([3] * 6, capacity=6)
        >>> len(epochs.epoch(1)), sorted(i for ids, _, _ in epochs.epoch(1) for i in ids.tolist())
        (3, [0, 1, 2, 3, 4, 5])
        """
        from cloison.planning.epochs import epoch_of

        return epoch_of(self, number, pairing)

    @cached_property
    def places(self) -> Places:
        """The segments sorted by length, as `epoch` needs them."""
        from cloison.planning.epochs import places_of

        return places_of(self)

    @cached_property
    def epoch_pairing(self) -> str:
        """What "auto" means in `epoch`: decided on epoch 1, for all."""
        from cloison.planning.epochs import pairing_of

        return pairing_of(self)

    def __repr__(self) -> str:
        return (
            f"Plan({self.num_segments:,} segments in {self.num_blocks:,} blocks of {self.capacity:,}, policy={self.policy!r}, "
            f"utilization={self.utilization:.4f}, gap={self.gap:.4%})"
        )
