"""stream: the rule of `look_ahead` on samples that come one by one, with a state that can be saved at any block."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cloison.errors import InputError, OverlongError
from cloison.planning.look_ahead import PAIRS

__all__ = ["Stream", "stream"]


class Stream:
    """An iterator of blocks over samples of unknown number; make it with `stream`.

    It holds up to ``look_ahead`` pending samples. A block is a list of (index, sample), index being the sample's place in the
    source. `state_dict` is plain data as far as the samples are.
    """

    def __init__(
        self,
        samples: Iterable[Any],
        capacity: int,
        *,
        look_ahead: int = 1024,
        max_segments: int | None = None,
        align: int = 1,
        overflow: str = "raise",
        length: Callable[[Any], int] = len,
    ) -> None:
        for name, value in (
            ("capacity", capacity),
            ("look_ahead", look_ahead),
            ("align", align),
            ("max_segments", max_segments),
        ):
            if value is None and name == "max_segments":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is an integer of at least 1.", f"It is {value!r}.", "Pass 1 or more.")
        if overflow not in ("raise", "drop"):
            raise InputError("overflow of a stream is 'raise' or 'drop'.", f"It is {overflow!r}.", "Cut samples before.")
        if capacity < align:
            raise InputError("a block holds a unit of align.", f"capacity is {capacity}, align {align}.", "Raise capacity.")
        self._units, self._align, self._ahead, self._limit = capacity // align, align, look_ahead, max_segments
        self._capacity, self._overflow, self._length = capacity, overflow, length
        self._source = iter(samples)
        self._cursor = 0  # samples read from the source
        self._blocks = 0
        self._view: deque[tuple[int, int]] = (
            deque()
        )  # (index, units) in order from the oldest pending sample on, placed ones too
        self._held: dict[int, tuple[int, Any]] = {}  # index to (class, sample), pending ones only
        self._by_class: list[
            tuple[int, int]
        ] = []  # (class, -index), rising: the oldest of the longest that fits is found by bisection
        self._window = max(look_ahead // 8, 1) * self._units
        self._span = 0  # units in view: of all samples from the oldest pending one on
        self._empty = 0
        self._dropped = 0

    def __iter__(self) -> Iterator[list[tuple[int, Any]]]:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        block: list[tuple[int, Any]] = []
        room, in_order = self._units, True
        while self._limit is None or len(block) < self._limit:
            self._refill()
            if not self._held or not room:
                break
            oldest = self._view[0][0]
            if in_order and self._held[oldest][0] <= room:
                chosen = oldest
            else:
                in_order = False
                at = bisect_right(self._by_class, (room, 1)) - 1
                if at < 0:
                    break
                if self._by_class[at][0] < room and len(block) + 1 != self._limit:
                    at = self._longer_of_best_pair(at, room)
                chosen = -self._by_class[at][1]
            units, sample = self._held.pop(chosen)
            del self._by_class[bisect_right(self._by_class, (units, -chosen)) - 1]
            block.append((chosen, sample))
            room -= units
        if not block:
            raise StopIteration
        self._blocks += 1
        return block

    def _longer_of_best_pair(self, at: int, room: int) -> int:
        """Return the place, by class, of the longer of the two that fill ``room`` best; ``at`` is the longest that fits."""
        best, found, first = 0, at, at
        for _ in range(PAIRS):
            if first < 0 or 2 * self._by_class[first][0] <= best:
                break
            units = self._by_class[first][0]
            other = min(bisect_right(self._by_class, (room - units, 1)), first) - 1
            both = units + (self._by_class[other][0] if other >= 0 else 0)
            if both > best:
                best, found = both, first
                if best == room:
                    break
            first = bisect_left(self._by_class, (units, -self._cursor - 1)) - 1
        return found

    def _refill(self) -> None:
        """Read on until ``look_ahead`` samples from the oldest pending one are in view, or units enough."""
        while True:
            while self._view and self._view[0][0] not in self._held:
                self._span -= self._view.popleft()[1]
            if self._view and (self._cursor - self._view[0][0] >= self._ahead or self._span >= self._window):
                return
            try:
                sample = next(self._source)
            except StopIteration:
                return
            index, self._cursor = self._cursor, self._cursor + 1
            tokens = self._length(sample)
            units = -(-tokens // self._align)
            if tokens <= 0:
                self._empty += 1
            elif units > self._units:
                if self._overflow == "raise":
                    raise OverlongError(
                        f"every sample fits a block: capacity is {self._capacity:,}.",
                        f"Sample {index:,} of the stream has {tokens:,} tokens.",
                        'Pass overflow="drop", cut it before, or raise capacity.',
                    )
                self._dropped += 1
            else:
                self._admit(index, units)
                self._hold(index, units, sample)

    def _admit(self, index: int, units: int) -> None:
        self._view.append((index, units))
        self._span += units

    def _hold(self, index: int, units: int, sample: Any) -> None:
        self._held[index] = (units, sample)
        insort(self._by_class, (units, -index))

    # ------------------------------------------------------------------ state

    def state_dict(self, *, samples: bool = True) -> dict[str, Any]:
        """Return the state between two blocks.

        ``cursor`` counts samples read from the source (not blocks); ``pending`` are those read and not yet placed, as
        [index, sample]; ``placed`` those in view that are in a block already, as [index, units]. ``samples=False`` leaves the
        samples themselves out, for a source that can be read again at any place.
        """
        return {
            "cursor": self._cursor,
            "blocks": self._blocks,
            "empty": self._empty,
            "dropped": self._dropped,
            "pending": [[i, self._held[i][1] if samples else None] for i, _ in self._view if i in self._held],
            "placed": [[i, units] for i, units in self._view if i not in self._held],
        }

    def load_state_dict(self, state: Mapping[str, Any], source: Callable[[int], Iterable[Any]] | None = None) -> None:
        """Go on from ``state``: the next block is the one that would have come.

        Args:
            source: a function of a place that gives the samples from there on; it is called with the cursor, and once for each
                pending sample that was saved without its tokens. None: the stream's own iterator must stand at the cursor.

        Raises:
            InputError: pending samples without tokens, and no ``source`` to read them from; or a state that is none.
        """
        try:
            cursor, pending = int(state["cursor"]), [(int(i), sample) for i, sample in state["pending"]]
            view = {int(i): int(units) for i, units in state["placed"]}
            blocks, empty, dropped = (int(state[name]) for name in ("blocks", "empty", "dropped"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the state of a stream is what state_dict gave.", f"{error!r}.", "Pass that.") from error
        if source is None and any(sample is None for _, sample in pending):
            raise InputError(
                "pending samples are restored with their tokens.",
                f"The state of {len(pending)} pending samples was saved without.",
                "Pass source=, or save with samples=True.",
            )
        self._cursor, self._blocks, self._empty, self._dropped = cursor, blocks, empty, dropped
        self._view, self._span, self._held, self._by_class = deque(), 0, {}, []
        for index, sample in pending:
            if sample is None and source is not None:
                sample = next(iter(source(index)))
            view[index] = -(-self._length(sample) // self._align)
            self._hold(index, view[index], sample)
        for index in sorted(view):
            self._admit(index, view[index])
        if source is not None:
            self._source = iter(source(cursor))


def stream(
    samples: Iterable[Any],
    capacity: int,
    *,
    look_ahead: int = 1024,
    max_segments: int | None = None,
    align: int = 1,
    overflow: str = "raise",
    length: Callable[[Any], int] = len,
) -> Stream:
    """Return an iterator of blocks, each a list of (index, sample), over an iterator of samples of any length.

    The blocks are those of ``plan(order="input", policy="look_ahead")``, without its fresh starts, and no length is needed in
    advance. Nothing is lost or repeated over `Stream.state_dict` and `Stream.load_state_dict`.

    Args:
        samples: anything with ``len``, or whatever ``length`` measures. Samples of no tokens are passed over.
        overflow: "raise" or "drop" what is longer than ``capacity``.

    Cost: O(look_ahead) samples held; about 2 microseconds a sample and O(log look_ahead) comparisons.

    >>> blocks = stream(["abc", "defg", "hi", "jklmn"], capacity=7, look_ahead=4)
    >>> [[sample for _, sample in block] for block in blocks]
    [['abc', 'defg'], ['hi', 'jklmn']]
    """
    return Stream(
        samples,
        capacity,
        look_ahead=look_ahead,
        max_segments=max_segments,
        align=align,
        overflow=overflow,
        length=length,
    )
