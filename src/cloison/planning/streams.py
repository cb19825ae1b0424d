"""stream: the rule of `look_ahead` on samples that come one by one, with a state that can be saved at any block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, NamedTuple

from cloison.errors import InputError, OverlongError
from cloison.planning.look_ahead import CELLS, CHOICE, FINE, GRACE, LOOKS, patience_units, window_units

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
        self._queues: dict[int, dict[int, int]] = {}  # by octave of units: pending items, oldest first, and their places
        self._waiting = 0  # units of pending items
        self._window = window_units(look_ahead, self._units)
        self._begin = self._end = 0  # units before the view, and to its end: places of items are counted in them
        self.starts: list[int] = []

    def __iter__(self) -> Iterator[list[tuple[int, Any]]]:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        self._refill()
        if not self._held:
            raise StopIteration
        start, waiting, held = self._begin, self._waiting, len(self._held)
        choice, patience = CHOICE * waiting // held, patience_units.py_func(waiting, held, self._units)
        block: dict[int, _Held] = {}
        room, in_order = self._units, True
        while self._held and room and len(block) != self._limit:
            oldest, units = self._view[0]
            in_order = in_order and (not block or room - units >= choice)
            found = [oldest] if in_order else self._search(room, len(block), start, patience)
            if not found:
                break
            for item in found:
                block[item] = self._leave(item)
                room -= block[item].units
            self._refill()
        self._counts["blocks"] += 1
        chosen = [block[item] for item in sorted(block)]
        self.starts = [item.start for item in chosen]
        return [(item.place, item.sample) for item in chosen]

    def _leave(self, item: int) -> _Held:
        held = self._held.pop(item)
        del self._queues[held.units.bit_length()][item]
        self._waiting -= held.units
        return held

    def _search(self, room: int, taken: int, start: int, patience: int) -> list[int]:
        """Return the near set that fills ``room`` well enough beside ``taken`` others: see `look_ahead`."""
        longest = self._units.bit_length()
        fineness = max(longest - CELLS, 0)
        steps = room >> fineness
        up_to = (2 << steps) - 1
        near = merge(
            *(self._fitting(octave, room, start, patience * (longest - octave)) for octave in range(1, room.bit_length() + 1))
        )
        reach, looked = [1], list[tuple[int, int]]()
        for _, _, item, distance in near:
            cells = -(-self._held[item].units >> fineness)
            reach.append((reach[-1] | reach[-1] << cells) & up_to)
            looked.append((item, cells))
            best = reach[-1].bit_length() - 1 << fineness
            if room - best <= (distance + GRACE * self._units) // FINE or len(looked) == LOOKS:
                break
        found = _picked(reach, looked)
        if self._limit is not None and len(found) > self._limit - taken:
            return _picked(reach[: self._limit - taken + 1], looked)
        return found

    def _fitting(self, octave: int, room: int, start: int, further: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (distance and ``further``, octave, item, distance) of those of one octave that fit, the nearest first."""
        for item, place in self._queues.get(octave, {}).items():
            if self._held[item].units <= room:
                yield place - start + further, octave, item, place - start

    def _refill(self) -> None:
        """Read on until ``look_ahead`` items from the oldest pending one are in view, or units enough."""
        while True:
            while self._view and self._view[0][0] not in self._held:
                self._begin += self._view.popleft()[1]
            in_view = self._end - self._begin
            if self._view and (self._entered - self._view[0][0] >= self._ahead or in_view >= self._window):
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
        self._admit(self._entered, _Held(-(-tokens // self._align), index, start, sample))
        self._entered += 1

    def _admit(self, item: int, held: _Held) -> None:
        """Let an item into the view, and wait."""
        self._held[item] = held
        self._queues.setdefault(held.units.bit_length(), {})[item] = self._end
        self._waiting += held.units
        self._see(item, held.units)

    def _see(self, item: int, units: int) -> None:
        self._view.append((item, units))
        self._end += units

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
        self._view, self._begin, self._end, self._waiting, self._held, self._queues = deque(), 0, 0, 0, {}, {}
        waiting = dict(pending)
        for item, units in sorted([*placed, *((item, held.units) for item, held in pending)]):
            if item not in waiting:
                self._see(item, units)
            else:
                held = waiting[item]
                self._admit(item, self._read_again(held, source) if held.sample is None and source is not None else held)
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


def _picked(reach: list[int], looked: list[tuple[int, int]]) -> list[int]:
    """Return the items that add up to the highest sum of the last row, the nearest that do."""
    found, at, total = [], len(reach) - 1, reach[-1].bit_length() - 1
    while total:
        while reach[at - 1] >> total & 1:
            at -= 1
        at -= 1
        found.append(looked[at][0])
        total -= looked[at][1]
    return found


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

    The blocks are those of ``plan(order="input", policy="look_ahead")``, in the order in which they are filled and without its
    fresh starts, and no length is needed in advance. Nothing is lost or repeated over `Stream.state_dict` and
    `Stream.load_state_dict`.

    Args:
        samples: anything with ``len``, or whatever ``length`` measures. Samples of no tokens are passed over.
        overflow: what becomes of samples longer than ``capacity``: "raise", "truncate" (the head is kept), "drop", or "split"
            into pieces of ``capacity`` and a rest, each a segment (`Stream.starts` says where in its sample it begins).
        cut: a function of a sample, start and stop that gives these tokens of it. By default a slice.

    Cost: O(look_ahead) samples held; 20 to 80 microseconds a sample, the search being in Python here.

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
