"""The loader: batches of packed blocks for one rank, exact to resume, with reading and collating ahead of training."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import ChangedError, InputError
from cloison.loading.balance import block_costs
from cloison.loading.order import Order
from cloison.loading.reading import PackedReader, Source, filler, source_of
from cloison.loading.schedule import Course, Deal, Last
from cloison.planning.balancing import Cost, slowest_over_mean

__all__ = ["Loader", "loader"]

Collate = Callable[[list[Block]], Any]

_STATE = ("fingerprint", "seed", "shuffle", "epoch", "history", "micro_batch")


def loader(
    packed: Any,
    collate: Collate | None = None,
    *,
    blocks_per_step: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    micro_batches: int = 1,
    shuffle: bool = True,
    last: Last = "fill",
    balance_window: int | None = None,
    cost: Cost | None = None,
    prefetch: int = 2,
) -> Loader:
    """Return a `Loader` of ``packed`` for one rank. Each iteration over it is one epoch; the next begins by itself.

    What a rank gets is a pure function of the data, ``seed``, the epoch, the step, the rank and the arguments here: ranks
    agree without a word, all have the same number of batches, and each block comes once an epoch.

    Args:
        packed: a packed data set (`cloison.open`), the same with new pairings each epoch (`cloison.pair_anew`), or a list of
            blocks.
        collate: makes a batch of a list of blocks; None: `cloison.collate`; for an adapted model
            ``adapter.collate``.
        blocks_per_step: blocks that each rank gets in a step.
        rank, world_size: of the process group; no group need exist.
        seed: of the order.
        micro_batches: batches that a step is given in; divides ``blocks_per_step``.
        shuffle: False: blocks in their order.
        last: "fill": the last step of an epoch is filled up with blocks of one token and no target, so that nothing is lost;
            "drop": the blocks that do not fill a step are left out (``loader.dropped_blocks`` says how many).
        balance_window: deal blocks by ``cost`` within so many steps, see `cloison.loading.balance`; 0: in turn. None: 1 where
            several ranks get several blocks each, which leaves every step the blocks that it has (64 ranks of 8 blocks of
            131,072 tokens: the slowest rank over the mean falls from 1.27 to 1.15), else 0. Larger windows balance better
            (1.013 at 8), and bring blocks of like cost into the same steps.
        cost: of a block, as `cloison.planning.Cost` (``calibrate`` fits it to measured steps; for a model,
            ``Cost(6 * parameters, 6 * layers * width)`` are training FLOPs). None: the shape of a 7B model.
        prefetch: batches that are read and collated ahead, in one thread; 0: none, all in the caller's.

    Raises:
        InputError: arguments that cannot be right (a world size of 0, a rank outside it, no blocks).

    >>> from cloison.packing.memory import pack_samples
    >>> blocks = pack_samples([[1, 2, 3]] * 5, capacity=3)
    >>> ranks = [loader(blocks, list, blocks_per_step=1, rank=rank, world_size=2) for rank in (0, 1)]
    >>> [len(rank) for rank in ranks]
    [3, 3]
    """
    if collate is None:
        from cloison.forms.hf import collate as flat

        collate = flat
    chosen = Cost() if cost is None else cost
    deal = Deal(world_size, blocks_per_step, last, balance_window or 0, chosen.per_token, chosen.per_square, chosen.fixed)
    if balance_window is None and world_size > 1 and blocks_per_step > 1:
        deal = replace(deal, window=1)
    made = Loader(source_of(packed), collate, deal, rank, seed, micro_batches, shuffle, prefetch)
    made.warn_of_fillers()
    return made


class Loader:
    """Batches for one rank; made by `loader`.

    Attributes:
        epoch: the epoch that the next batch belongs to.
        deal: how blocks are dealt.
    """

    def __init__(
        self,
        source: Source,
        collate: Collate,
        deal: Deal,
        rank: int,
        seed: int,
        micro_batches: int,
        shuffle: bool,
        prefetch: int,
    ) -> None:
        if not _integer(rank) or not 0 <= rank < deal.world_size:
            raise InputError(f"rank must be 0 .. {deal.world_size - 1}.", f"It is {rank!r}.", "Check the launcher.")
        if not _integer(micro_batches) or micro_batches < 1 or deal.blocks_per_step % micro_batches:
            raise InputError(
                f"micro_batches must divide blocks_per_step = {deal.blocks_per_step}.",
                f"It is {micro_batches!r}.",
                "Change one.",
            )
        if not _integer(seed) or seed < 0:
            raise InputError("seed must be an integer of 0 or more.", f"It is {seed!r}.", "Pass the same one on every rank.")
        if not _integer(prefetch) or prefetch < 0:
            raise InputError("prefetch must be 0 or more batches.", f"It is {prefetch!r}.", "Pass 0 for none.")
        if len(source) == 0:
            raise InputError("a loader needs at least one block.", "The data set has none.", "Pack something first.")
        if deal.last == "drop" and len(source) < deal.step_blocks:
            raise InputError(
                f"a step of {deal.world_size} ranks x {deal.blocks_per_step} blocks takes {deal.step_blocks} blocks.",
                f"The data set has {len(source)}, so that no step would be left of an epoch.",
                'Pass last="fill", or fewer blocks a step.',
            )
        self.deal, self.rank, self.seed = deal, rank, seed
        self.epoch = 0
        self._base, self._collate = source, collate
        self._micro_batches, self._shuffle, self._prefetch = micro_batches, shuffle, prefetch
        self._history: list[tuple[Deal, int]] = []
        self._done = 0
        self._enter()

    def __repr__(self) -> str:
        deal, blocks = self.deal, len(self._source)
        return (
            f"Loader({blocks:,} blocks, rank {self.rank} of {deal.world_size}, {deal.blocks_per_step} blocks a step, "
            f"epoch {self.epoch}: {len(self) - self.remaining:,} of {len(self):,} batches done)"
        )

    # ------------------------------------------------------------------ sizes

    def warn_of_fillers(self) -> None:
        """Warn (on rank 0) where one step takes more blocks than the data set has: most of what is computed is filler."""
        step, blocks = self.deal.step_blocks, len(self._source)
        if step > blocks and self.rank == 0:
            warnings.warn(
                f"a step of {self.deal.world_size} ranks x {self.deal.blocks_per_step} blocks takes {step:,} blocks, and there "
                f"are {blocks:,}: every epoch is one step with {step - blocks:,} fillers, which train nothing. "
                "Pass fewer blocks_per_step.",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Batches of the present epoch, those that are done included: the same on every rank, before anything is read."""
        past = sum(steps for _, steps in self._history)
        return (past + self._course.steps) * self._micro_batches

    @property
    def remaining(self) -> int:
        """Batches that are left in the present epoch."""
        return self._course.steps * self._micro_batches - self._done

    @property
    def done(self) -> int:
        """Batches of the present course that are done; `__getitem__` counts from its beginning."""
        return self._done

    def skip(self, batches: int) -> None:
        """Count ``batches`` more as done, without reading them: for those that something else has fetched."""
        if not 0 <= batches <= self.remaining:
            raise InputError(f"0 .. {self.remaining} batches are left.", f"It is {batches}.", "Call set_epoch at its end.")
        self._done += batches

    @property
    def dropped_blocks(self) -> int:
        """Blocks that the present epoch leaves out (0 unless last="drop")."""
        return self._course.dropped

    @property
    def balance_factor(self) -> float:
        """The slowest rank's work over the mean, summed over the steps of this epoch under ``deal``; 1 is perfect."""
        costs = np.append(self.block_costs(), 0.0)
        dealt = [costs[self.dealt(step)] for step in range(self._course.steps)]
        return slowest_over_mean(np.array(dealt).reshape(len(dealt), self.deal.world_size, self.deal.blocks_per_step))

    def block_costs(self) -> npt.NDArray[np.float64]:
        """Return float64 [blocks of the present epoch], what each costs by the cost that was given."""
        return self._costs(np.arange(len(self._source)))

    def dealt(self, step: int) -> npt.NDArray[np.int64]:
        """Return the blocks of all ranks at ``step`` of the present course, int64 [ranks, blocks_per_step], -1 for a filler."""
        return self._course.dealt(step)

    # ------------------------------------------------------------------ batches

    def block_ids(self, batch: int) -> npt.NDArray[np.int64]:
        """Return the indices of the blocks of batch ``batch`` of the present course, -1 for a filler: random access."""
        step, part = divmod(batch, self._micro_batches)
        size = self.deal.blocks_per_step // self._micro_batches
        return self._course.blocks(step, self.rank)[part * size : (part + 1) * size]

    def blocks(self, batch: int) -> list[Block]:
        """Return the blocks of batch ``batch``."""
        ids = self.block_ids(batch).tolist()
        if isinstance(self._source, PackedReader):
            self._source.fetch(b for b in ids if b >= 0)
        return [self._source[b] if b >= 0 else filler(self._source[0]) for b in ids]

    def __getitem__(self, batch: int) -> Any:
        """Return batch ``batch`` (0 is the first of the present course), collated, without moving on."""
        if not 0 <= batch < self._course.steps * self._micro_batches:
            raise IndexError(f"batch {batch} of {self._course.steps * self._micro_batches}")
        return self._collate(self.blocks(batch))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of this epoch, then move to the next epoch."""
        if not self.remaining:
            self.set_epoch(self.epoch + 1)
        course = self._course
        for number, batch in enumerate(self._ahead(self._done, course.steps * self._micro_batches), self._done):
            if self._course is not course or self._done != number:
                raise InputError(
                    "one iteration at a time moves a loader.",
                    "It was moved (skip, set_epoch, load_state_dict, or another iteration) while this one was under way.",
                    "Begin a new iteration: it goes on where the loader is.",
                )
            self._done += 1
            yield batch
        if self._course is course:
            self.set_epoch(self.epoch + 1)

    def _ahead(self, start: int, stop: int) -> Iterator[Any]:
        if self._prefetch == 0:
            yield from (self[index] for index in range(start, stop))
            return
        # One thread: the decoded row groups have one user, and Arrow and numpy let go of the interpreter while they work.
        with ThreadPoolExecutor(1, "cloison-loader") as pool:
            waiting: deque[Future[Any]] = deque()
            try:
                for index in range(start, stop):
                    waiting.append(pool.submit(self.__getitem__, index))
                    if len(waiting) > self._prefetch:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    # ------------------------------------------------------------------ state

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``; the present one keeps its place.

        Trainers call this before every epoch, also when they resume in the middle of one.
        """
        if not _integer(epoch) or epoch < 0:
            raise InputError("epoch must be 0 or more.", f"It is {epoch!r}.", "Count from 0.")
        if epoch != self.epoch:
            self.epoch, self._history, self._done = epoch, [], 0
            self._enter()

    def state_dict(self) -> dict[str, Any]:
        """Return where this loader is, as small plain data (JSON): equal on all ranks that have had as many batches."""
        step, part = divmod(self._done, self._micro_batches)
        history = [*self._history, (self.deal, step)] if self._done else self._history
        return {
            "version": 1,
            "fingerprint": self._base.fingerprint,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "epoch": self.epoch,
            "history": [[deal.to_dict(), steps] for deal, steps in history],
            "micro_batch": [part, self._micro_batches] if part else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken, also on another number of ranks, blocks a step, workers or micro-batches.

        Raises:
            ChangedError: the state is of another data set.
            InputError: another seed or order, another version, or a step that was begun in other micro-batches.
        """
        if not isinstance(state, dict) or state.get("version") != 1:
            found = f"version {state.get('version')!r}" if isinstance(state, dict) else f"a {type(state).__name__}"
            raise InputError("a loader's state has version 1.", f"This is {found}.", "Pass what state_dict() gave.")
        lacking = [name for name in _STATE if name not in state]
        if lacking:
            raise InputError("a loader's state is whole.", f"{lacking[0]} is missing.", "Pass what state_dict() gave.")
        if state["fingerprint"] != self._base.fingerprint:
            raise ChangedError(
                f"the state must be of this data set, {self._base.fingerprint[:16]}...",
                f"It is of {str(state['fingerprint'])[:16]}...",
                "Open the data set that the run began with, or begin anew.",
            )
        for name, mine in (("seed", self.seed), ("shuffle", self._shuffle)):
            if state[name] != mine:
                raise InputError(
                    f"{name} must be what the run began with.", f"It is {mine!r}; the state has {state[name]!r}.", "Pass that."
                )
        history = [(Deal.from_dict(deal), int(steps)) for deal, steps in state["history"]]
        begun = state["micro_batch"]
        same = bool(history) and history[-1][0] == self.deal
        if begun is not None and (begun[1] != self._micro_batches or not same):
            raise InputError(
                "a step that was begun must be ended in the same micro-batches and deal.",
                f"Micro-batch {begun[0]} of {begun[1]} was done.",
                "Take the state at the end of a step, or resume with the same arguments first.",
            )
        steps = history.pop()[1] if same else 0
        self.epoch, self._history = int(state["epoch"]), history
        self._done = steps * self._micro_batches + (begun[0] if begun else 0)
        self._enter()

    # ------------------------------------------------------------------ inside

    def _enter(self) -> None:
        self._source = self._base.epoch(self.epoch)
        source = self._source
        self._block_costs: npt.NDArray[np.float64] | None = None
        order = Order(len(source), self.seed, self.epoch, source.group, source.bucket_groups, self._shuffle, source.file_groups)
        self._course = Course(order, self.deal, self._history, self._costs)

    def _costs(self, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        if self._block_costs is None:
            cost = Cost(self.deal.per_token, self.deal.per_square, self.deal.fixed)
            self._block_costs = block_costs(cost, self._source.segments())
        return self._block_costs[blocks]


def _integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
