"""stream: the rule of `look_ahead` on samples that come one by one, with a state that can be saved at any block."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cloison.errors import InputError, OverlongError
from cloison.planning.look_ahead import PAIRS, window_units

__all__ = ["Stream", "cut_slice", "stream"]

_OVERFLOWS = ("raise", "truncate", "drop", "split")
_COUNTS = ("cursor", "blocks", "empty", "dropped", "truncated", "split")


class _Held(NamedTuple):
    """A pending item: its units, the place of its sample in the source, where in it it begins, and itself."""

    units: int
    place: int
    start: int
    sample: Any


def cut_slice(sample: Any, start: int, stop: int) -> Any:
    """Return tokens start..stop-1 of ``sample`` by a slice: what `stream` cuts lists, arrays and strings with."""
    return sample[start:stop]


class Stream:
    """An iterator of blocks over samples of unknown number; make it with `stream`.

    It holds up to ``look_ahead`` pending samples. A block is a list of (index, sample), index being the sample's place in the
    source. `state_dict` is plain data as far as the samples are.

    Attributes:
        starts: where in its sample each segment of the latest block begins: 0 unless the sample was split.
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
        cut: Callable[[Any, int, int], Any] = cut_slice,
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
        if overflow not in _OVERFLOWS:
            raise InputError(f"overflow is one of {', '.join(map(repr, _OVERFLOWS))}.", f"It is {overflow!r}.", "Pick one.")
        if capacity < align:
            raise InputError("a block holds a unit of align.", f"capacity is {capacity}, align {align}.", "Raise capacity.")
        self._units, self._align, self._ahead, self._limit = capacity // align, align, look_ahead, max_segments
        self._capacity, self._overflow, self._length, self._cut = capacity, overflow, length, cut
        self._source = iter(samples)
        self._counts = dict.fromkeys(_COUNTS, 0)
        # Items are samples and pieces of split ones, numbered as they come; empty and dropped samples have a number too.
        self._entered = 0
        self._rest: tuple[int, int, Any] | None = None  # (index, start, sample) whose pieces from start on have not entered
        self._view: deque[tuple[int, int]] = deque()  # (item, units) from the oldest pending item on, placed ones too
        self._held: dict[int, _Held] = {}  # pending ones only
        self._by_class: list[
            tuple[int, int]
        ] = []  # (units, -item), rising: bisection finds the oldest of the longest that fits
        self._window = window_units(look_ahead, self._units)
        self._span = 0  # units in view: of all items from the oldest pending one on
        self.starts: list[int] = []

    def __iter__(self) -> Iterator[list[tuple[int, Any]]]:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        block: list[_Held] = []
        room, in_order = self._units, True
        while self._limit is None or len(block) < self._limit:
            self._refill()
            if not self._held or not room:
                break
            oldest = self._view[0][0]
            if in_order and self._held[oldest].units <= room:
                chosen = oldest
            else:
                in_order = False
                at = bisect_right(self._by_class, (room, 1)) - 1
                if at < 0:
                    break
                if self._by_class[at][0] < room and len(block) + 1 != self._limit:
                    at = self._longer_of_best_pair(at, room)
                chosen = -self._by_class[at][1]
            item = self._held.pop(chosen)
            del self._by_class[bisect_right(self._by_class, (item.units, -chosen)) - 1]
            block.append(item)
            room -= item.units
        if not block:
            raise StopIteration
        self._counts["blocks"] += 1
        self.starts = [item.start for item in block]
        return [(item.place, item.sample) for item in block]

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
            first = bisect_left(self._by_class, (units, -self._entered - 1)) - 1
        return found

    def _refill(self) -> None:
        """Read on until ``look_ahead`` items from the oldest pending one are in view, or units enough."""
        while True:
            while self._view and self._view[0][0] not in self._held:
                self._span -= self._view.popleft()[1]
            if self._view and (self._entered - self._view[0][0] >= self._ahead or self._span >= self._window):
                return
            if self._rest is not None:
                index, start, sample = self._rest
                tokens, stop = self._length(sample), start + self._units * self._align
                self._rest = (index, stop, sample) if stop < tokens else None
                self._enter(index, start, self._cut(sample, start, min(stop, tokens)), min(stop, tokens) - start)
                continue
            try:
                sample = next(self._source)
            except StopIteration:
                return
            index = self._counts["cursor"]
            self._counts["cursor"] += 1
            tokens = self._length(sample)
            if tokens <= 0:
                self._entered += 1
                self._counts["empty"] += 1
            elif -(-tokens // self._align) <= self._units:
                self._enter(index, 0, sample, tokens)
            else:
                self._overlong(index, sample, tokens)

    def _overlong(self, index: int, sample: Any, tokens: int) -> None:
        limit = self._units * self._align
        if self._overflow == "raise":
            raise OverlongError(
                f"every sample must fit a block: capacity is {self._capacity:,}.",
                f"Sample {index:,} of the stream has {tokens:,} tokens.",
                'Pass overflow="split", "truncate" or "drop", or raise capacity.',
            )
        if self._overflow == "split":
            self._counts["split"] += 1
            self._rest = (index, 0, sample)
        elif self._overflow == "truncate":
            self._counts["truncated"] += 1
            self._enter(index, 0, self._cut(sample, 0, limit), limit)
        else:
            self._entered += 1
            self._counts["dropped"] += 1

    def _enter(self, index: int, start: int, sample: Any, tokens: int) -> None:
        units = -(-tokens // self._align)
        self._admit(self._entered, units)
        self._hold(self._entered, _Held(units, index, start, sample))
        self._entered += 1

    def _admit(self, item: int, units: int) -> None:
        self._view.append((item, units))
        self._span += units

    def _hold(self, item: int, held: _Held) -> None:
        self._held[item] = held
        insort(self._by_class, (held.units, -item))

    # ------------------------------------------------------------------ state

    def state_dict(self, *, samples: bool = True) -> dict[str, Any]:
        """Return the state between two blocks.

        ``cursor`` counts samples read from the source (not blocks), ``entered`` items (split samples have several); ``pending``
        are those in view and not yet placed, as [item, index, start, units, sample or piece]; ``placed`` those in view that are
        in a block already, as [item, units]; ``rest`` is the split sample that is not in view to its end, as [index, start,
        sample]. ``samples=False`` leaves the samples themselves out, for a source that can be read again at any place.
        """
        pending = [[item, *self._held[item]] for item, _ in self._view if item in self._held]
        return {
            **self._counts,
            "entered": self._entered,
            "pending": [
                [item, index, start, units, sample if samples else None] for item, units, index, start, sample in pending
            ],
            "placed": [[item, units] for item, units in self._view if item not in self._held],
            "rest": None if self._rest is None else [*self._rest[:2], self._rest[2] if samples else None],
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
            counts = {name: int(state[name]) for name in _COUNTS}
            entered = int(state["entered"])
            pending = [
                (int(item), _Held(int(units), int(index), int(start), it)) for item, index, start, units, it in state["pending"]
            ]
            placed = [(int(item), int(units)) for item, units in state["placed"]]
            rest = None if state["rest"] is None else (int(state["rest"][0]), int(state["rest"][1]), state["rest"][2])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError("the state of a stream is what state_dict gave.", f"{error!r}.", "Pass that.") from error
        missing = sum(held.sample is None for _, held in pending) + (rest is not None and rest[2] is None)
        if source is None and missing:
            raise InputError(
                "pending samples are restored with their tokens.",
                f"The state of {missing} pending samples was saved without.",
                "Pass source=, or save with samples=True.",
            )
        self._counts, self._entered = counts, entered
        self._view, self._span, self._held, self._by_class = deque(), 0, {}, []
        for item, held in pending:
            self._hold(item, self._read_again(held, source) if held.sample is None and source is not None else held)
        for item, units in sorted([*placed, *((item, held.units) for item, held in pending)]):
            self._admit(item, units)
        if rest is not None and rest[2] is None and source is not None:
            rest = (*rest[:2], next(iter(source(rest[0]))))
        self._rest = rest
        if source is not None:
            self._source = iter(source(counts["cursor"]))

    def _read_again(self, held: _Held, source: Callable[[int], Iterable[Any]]) -> _Held:
        sample = next(iter(source(held.place)))
        tokens, limit = self._length(sample), self._units * self._align
        if tokens > limit:
            sample = self._cut(sample, held.start, min(held.start + limit, tokens))
        return held._replace(sample=sample)


def stream(
    samples: Iterable[Any],
    capacity: int,
    *,
    look_ahead: int = 1024,
    max_segments: int | None = None,
    align: int = 1,
    overflow: str = "raise",
    length: Callable[[Any], int] = len,
    cut: Callable[[Any, int, int], Any] = cut_slice,
) -> Stream:
    """Return an iterator of blocks, each a list of (index, sample), over an iterator of samples of any length.

    The blocks are those of ``plan(order="input", policy="look_ahead")``, without its fresh starts, and no length is needed in
    advance. Nothing is lost or repeated over `Stream.state_dict` and `Stream.load_state_dict`.

    Args:
        samples: anything with ``len``, or whatever ``length`` measures. Samples of no tokens are passed over.
        overflow: what becomes of samples longer than ``capacity``: "raise", "truncate" (the head is kept), "drop", or "split"
            into pieces of ``capacity`` and a rest, each a segment (`Stream.starts` says where in its sample it begins).
        cut: a function of a sample, start and stop that gives these tokens of it. By default a slice.

    Cost: O(look_ahead) samples held; about 2 microseconds a sample and O(log look_ahead) comparisons.

    >>> blocks = stream(["abc", "defg", "hi", "jklmn"], capacity=7, look_ahead=4)
    >>> [[sample for _, sample in block] for block in blocks]
    [['abc', 'defg'], ['hi', 'jklmn']]
    >>> list(stream(["abcdefgh", "ijk"], capacity=5, overflow="split"))
    [[(0, 'abcde')], [(0, 'fgh')], [(1, 'ijk')]]
    """
    return Stream(
        samples,
        capacity,
        look_ahead=look_ahead,
        max_segments=max_segments,
        align=align,
        overflow=overflow,
        length=length,
        cut=cut,
    )
