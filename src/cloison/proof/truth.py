"""Truth: which samples a live batch holds and where, from what is truly known, or from a guess that is called one.

What is known, the best first: lengths that the caller states; the lengths that travel with the rows of the data set; the
samples themselves, found in the rows by their tokens; cumulative lengths that the batch carries. Guesses: positions that
restart, and ids that end a text (which may end every turn).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.samples import Sample
from cloison.segments import IGNORE, Segments

__all__ = ["SampleIndex", "Truth", "batch_rows", "truth_of"]

MASKS = ("completion_mask", "assistant_masks", "assistant_mask", "loss_mask")
"""Columns of a data set that say which tokens its makers want trained."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What a batch holds.

    Attributes:
        segment_ids: int32 [B, T]: 1, 2, ... in a row, 0 where no sample is (padding).
        source: in words, where the boundaries come from.
        guessed: whether they are a guess.
        labels: int64 [B, T] or None: the tokens that ought to be trained, same index as the ids, -100 elsewhere; -200 where
            nothing is known.
        ends: ids that end a text or a turn.
        padding_known: whether the zeros of ``segment_ids`` are known to be padding.
        declared: whether the batch itself says that its rows hold several samples (positions restart, and no 2-D mask says
            that this is padding): where they begin is a guess, that they do is not.
    """

    segment_ids: npt.NDArray[np.int32]
    source: str
    guessed: bool = False
    labels: npt.NDArray[np.int64] | None = None
    ends: frozenset[int] = field(default_factory=frozenset)
    padding_known: bool = True
    declared: bool = False

    @property
    def segments(self) -> Segments:
        """The segments of the rows; padding between them belongs to none and is not shown."""
        return Segments.from_lengths([[stop - start for start, stop in row] for row in self.spans()])

    def spans(self) -> list[list[tuple[int, int]]]:
        """Return (start, stop) of every segment, row by row."""
        out = []
        for row in self.segment_ids:
            edges = np.flatnonzero(np.diff(row)) + 1
            starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [row.size]])
            out.append([(int(a), int(b)) for a, b in zip(starts, stops, strict=True) if row.size and row[a] != 0])
        return out

    def blocks(self, input_ids: npt.NDArray[Any]) -> list[Block]:
        """Return a Block for each row that holds a segment, and nothing of the padding."""
        made, first = [], 0
        for row, spans in zip(input_ids, self.spans(), strict=True):
            if not spans:
                continue
            ids = np.concatenate([row[a:b] for a, b in spans]).astype(np.int32)
            labels = np.full(ids.size, IGNORE, np.int32)
            segments = Segments.from_lengths([[b - a for a, b in spans]])
            made.append(Block(ids, labels, segments, np.arange(first, first + len(spans), dtype=np.int64)))
            first += len(spans)
        return made

    def places(self) -> npt.NDArray[np.int64]:
        """Return int64 [valid tokens]: where each token of `blocks` lies among the flattened ids, in order."""
        width = self.segment_ids.shape[1]
        parts = [np.arange(r * width + a, r * width + b) for r, row in enumerate(self.spans()) for a, b in row]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


ONE_EACH = "one sample a row (a guess)"
"""The source of a truth where nothing says what rows hold."""

UNKNOWN = -200
"""A label of which nothing is known."""


class SampleIndex:
    """Samples by their tokens, for finding them in rows.

    ``rows`` are mappings with ``input_ids``, `Sample`s, lists of ids, or `Block`s, of which each segment is a sample.

    At most ``limit`` are taken; `complete` says whether these were all.
    """

    def __init__(self, rows: Iterable[Any], limit: int = 200_000) -> None:
        self._by_head: dict[tuple[int, ...], list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]]] = {}
        self.complete = True
        self.size = 0
        self._openings: set[tuple[int, ...]] | None = None
        self._closings: set[tuple[int, ...]] | None = None
        self._by_tail: dict[tuple[int, ...], list[npt.NDArray[np.int64]]] = {}
        for row in _samples_of(rows):
            if self.size >= limit:
                self.complete = False
                break
            ids, labels = _ids_and_labels(row)
            if ids is None or not ids.size:
                continue
            self._by_head.setdefault(tuple(ids[:_HEAD].tolist()), []).append((ids, labels))
            self._by_tail.setdefault(tuple(ids[-_HEAD:].tolist()), []).append(ids)
            self.size += 1
        self._heads = sorted({len(head) for head in self._by_head}, reverse=True)

    def cover(self, row: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
        """Return (segment ids, labels, found): the samples that, end to end, cover most of ``row``; the fewest.

        Labels are -200 where no sample lies or where it says nothing. Cost: one look-up a token and length of a head.
        """
        ids = np.asarray(row, np.int64)
        best: list[tuple[int, int]] = [(0, 0)] * (ids.size + 1)  # (tokens covered, -samples) from here on
        chosen: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None] | None] = [None] * ids.size
        for at in range(ids.size - 1, -1, -1):
            best[at] = best[at + 1]
            for sample, own in self._at(ids, at):
                covered, fewest = best[at + sample.size]
                if (covered + sample.size, fewest - 1) > best[at]:
                    best[at], chosen[at] = (covered + sample.size, fewest - 1), (sample, own)
        segments, labels = np.zeros(ids.size, np.int32), np.full(ids.size, UNKNOWN, np.int64)
        at = found = 0
        while at < ids.size:
            match = chosen[at]
            if match is None:
                at += 1
                continue
            sample, own = match
            found += 1
            place = slice(at, at + sample.size)
            segments[place] = found
            if own is not None:
                labels[place] = own
                labels[at] = IGNORE
            at += sample.size
        return segments, labels, found

    def cut(self, row: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return segment ids of a row that was cut from a stream of samples: the first and the last may be pieces.

        Zeros where nothing fits, as in the middle of a sample that is longer than the row.
        """
        ids = np.asarray(row, np.int64)
        best = np.zeros(ids.size + 1, np.int64)
        step = np.ones(ids.size, np.int64)
        taken = np.zeros(ids.size, bool)
        for at in range(ids.size - 1, -1, -1):
            best[at] = best[at + 1]
            sizes = [sample.size for sample, _ in self._at(ids, at)]
            sizes += [ids.size - at] if self._starts(ids[at:]) else []
            for size in sizes:
                if best[at + size] + size > best[at]:
                    best[at], step[at], taken[at] = best[at + size] + size, size, True
        opening, most = 0, int(best[0])
        for stop in range(1, ids.size + 1):
            if stop + best[stop] > most and self._ends(ids[:stop]):
                opening, most = stop, stop + int(best[stop])
        out = np.zeros(ids.size, np.int32)
        out[:opening] = 1
        at, number = opening, int(opening > 0)
        while at < ids.size:
            if taken[at]:
                number += 1
                out[at : at + step[at]] = number
            at += int(step[at]) if taken[at] else 1
        return out

    def _starts(self, piece: npt.NDArray[np.int64]) -> bool:
        """Whether a sample begins with ``piece`` and goes on."""
        if piece.size >= _HEAD:
            found = self._by_head.get(tuple(piece[:_HEAD].tolist()), ())
            return any(s.size > piece.size and np.array_equal(s[: piece.size], piece) for s, _ in found)
        if self._openings is None:
            self._openings = {head[:n] for head in self._by_head for n in range(1, len(head))}
        return tuple(piece.tolist()) in self._openings

    def _ends(self, piece: npt.NDArray[np.int64]) -> bool:
        """Whether a sample ends with ``piece`` and began before it."""
        key = tuple(piece[-_HEAD:].tolist())
        if piece.size >= _HEAD:
            found = self._by_tail.get(key, ())
            return any(s.size > piece.size and np.array_equal(s[-piece.size :], piece) for s in found)
        if self._closings is None:
            self._closings = {tail[-n:] for tail in self._by_tail for n in range(1, len(tail))}
        return key in self._closings

    def _at(self, ids: npt.NDArray[np.int64], at: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]]:
        """Yield the samples whose tokens stand at ``at``."""
        for size in self._heads:
            for sample, labels in self._by_head.get(tuple(ids[at : at + size].tolist()), ()):
                if np.array_equal(ids[at : at + sample.size], sample):
                    yield sample, labels


_HEAD = 8


def _samples_of(rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, Block):
            yield from row.samples()
        else:
            yield row


def _ids_and_labels(row: Any) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]:
    if isinstance(row, Sample):
        return row.input_ids.astype(np.int64), row.labels.astype(np.int64)
    if not isinstance(row, Mapping):
        return np.asarray(row, np.int64), None
    if row.get("input_ids") is None:
        return None, None
    ids = np.asarray(row["input_ids"], np.int64)
    labels = None if row.get("labels") is None else np.asarray(row["labels"], np.int64)
    if labels is None:
        masks = [np.asarray(row[name]) for name in MASKS if row.get(name) is not None]
        if masks:
            labels = np.where(np.logical_and.reduce([mask != 0 for mask in masks]), ids, IGNORE)
    return ids, labels if labels is None or labels.shape == ids.shape else None


def batch_rows(value: Any) -> npt.NDArray[np.int64]:
    """Return ids, labels or the like of a batch as int64 [B, T] on the host."""
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return np.atleast_2d(array).astype(np.int64)


def truth_of(
    batch: Mapping[str, Any],
    *,
    seq_lengths: Sequence[Any] | None = None,
    row_lengths: Iterable[tuple[Any, Any]] | None = None,
    samples: SampleIndex | None = None,
    ends: Collection[int] = (),
    packed: bool = False,
) -> Truth:
    """Return what ``batch`` holds.

    Args:
        batch: what the model was called with; ``input_ids`` [B, T].
        seq_lengths: lengths that the caller states, rows of them.
        row_lengths: (input_ids, seq_lengths) of rows of the data set, to be found in the batch.
        samples: the samples, to be found in the rows.
        ends: ids that end a text.
        packed: whether it is known that rows hold several samples, so that ``ends`` are worth a guess.

    Raises:
        InputError: the batch has no ids, or lengths that do not fit it.
    """
    if batch.get("input_ids") is None:
        raise InputError("a batch to audit has input_ids.", f"It has {', '.join(map(str, batch)) or 'nothing'}.", "Pass ids.")
    ids = batch_rows(batch["input_ids"])
    marked = frozenset(int(end) for end in ends)
    if seq_lengths is not None:
        return Truth(_from_lengths(seq_lengths, ids.shape), "the lengths that were passed", ends=marked)
    if row_lengths is not None:
        found = _from_rows(row_lengths, ids)
        if found is not None:
            return Truth(found, "seq_lengths of the data set's rows", ends=marked)
    if samples is not None and samples.size:
        covered = _with_openings([samples.cover(row) for row in ids], ids)
        taken = np.stack([segments for segments, _, _ in covered]) > 0
        asked = _valid(batch, ids) & ~_tails(ids, taken)
        if taken.any() and np.mean(taken[asked]) > 0.999:
            labels = np.stack([own for _, own, _ in covered])
            known = labels if (labels != UNKNOWN).any() else None
            return Truth(np.stack([s for s, _, _ in covered]), "the samples, found in the rows", labels=known, ends=marked)
        pieces = np.stack([samples.cut(row) for row in ids]) if packed else np.zeros(ids.shape, np.int32)
        if (pieces > 0)[_valid(batch, ids)].mean() > 0.999:
            return Truth(pieces, "the samples and pieces of them, found in the rows", ends=marked)
    if batch.get("seq_lengths") is not None:
        return Truth(_from_lengths(_lists(batch["seq_lengths"]), ids.shape), "seq_lengths of the batch", ends=marked)
    stated = _from_cu(batch, ids)
    if stated is not None:
        return Truth(stated, "cu_seq_lens of the batch", ends=marked)
    return _guessed(batch, ids, marked, packed)


def _lists(lengths: Any) -> Any:
    """Return lengths of rows without the zeros that fill them up, whatever they come as."""
    plain = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    rows = plain if plain and isinstance(plain[0], (list, tuple)) else [plain]
    return [[int(length) for length in row if int(length) > 0] for row in rows]


_Covered = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]


def _with_openings(covered: list[_Covered], ids: npt.NDArray[np.int64]) -> list[_Covered]:
    """Return ``covered`` with the token before each sample as its first, where a collator put the same one before all of them.

    It stands at the start of the row or right behind another sample: padding on the left does so for one length at most.
    """
    before: set[int] = set()
    firsts: list[tuple[int, int]] = []
    for row, (segments, _, _) in enumerate(covered):
        starts = np.flatnonzero((segments > 0) & (np.diff(segments, prepend=0) != 0))
        for start in starts.tolist():
            if start == 0 or segments[start - 1] != 0 or (start > 1 and segments[start - 2] == 0):
                return covered
            before.add(int(ids[row, start - 1]))
            firsts.append((row, start))
    if len(before) != 1:
        return covered
    out = [(segments.copy(), labels.copy(), count) for segments, labels, count in covered]
    for row, start in firsts:
        segments, labels, _ = out[row]
        segments[start - 1] = segments[start]
        labels[start - 1] = IGNORE
        labels[start] = UNKNOWN if labels[start] == IGNORE else labels[start]  # the first token may be a target now
    return out


def _guessed(batch: Mapping[str, Any], ids: npt.NDArray[np.int64], ends: frozenset[int], packed: bool) -> Truth:
    valid = _valid(batch, ids)
    known = batch.get("attention_mask") is not None and getattr(batch["attention_mask"], "ndim", 0) == 2
    positions = batch.get("position_ids")
    if positions is not None:
        array = positions.detach().cpu().numpy() if hasattr(positions, "detach") else np.asarray(positions)
        array = array[0] if array.ndim == 3 else np.atleast_2d(array)
        array = np.broadcast_to(array, ids.shape)
        starts = np.ones(ids.shape, bool)
        starts[:, 1:] = np.diff(array, axis=1) != 1
        found = np.where(valid, np.cumsum(starts, axis=1), 0).astype(np.int32)
        if (found > 1).any() or not (packed and ends):
            declared = bool((found > 1).any()) and not known
            return Truth(found, "positions that restart (a guess)", True, None, ends, known, declared)
    if packed and ends:
        starts = np.zeros(ids.shape, bool)
        starts[:, 0] = True
        starts[:, 1:] = np.isin(ids[:, :-1], list(ends))
        found = np.where(valid, np.cumsum(starts, axis=1), 0).astype(np.int32)
        return Truth(found, "ids that end a text (a guess)", guessed=True, ends=ends, padding_known=known)
    one = np.where(valid, 1, 0).astype(np.int32)
    return Truth(one, ONE_EACH, guessed=True, ends=ends, padding_known=known)


def _valid(batch: Mapping[str, Any], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    mask = batch.get("attention_mask")
    if mask is not None and getattr(mask, "ndim", 0) == 2 and tuple(mask.shape) == ids.shape:
        return np.asarray(batch_rows(mask) != 0)
    return np.ones(ids.shape, bool)


def _tails(ids: npt.NDArray[np.int64], found: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return bool [B, T]: what no sample covers at either end of a row and is one id over and over, as padding is."""
    out = np.zeros(ids.shape, bool)
    for row, covered, tail in zip(ids, found, out, strict=True):
        places = np.flatnonzero(covered)
        first, last = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 0)
        for part in (slice(0, first), slice(last, row.size)):
            tail[part] = row[part].size > 0 and bool((row[part] == row[part][0]).all())
    return out


def _from_lengths(rows: Sequence[Any], shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
    segments = Segments.from_lengths(rows, capacity=shape[1])
    if segments.num_rows != shape[0]:
        raise InputError(
            f"seq_lengths must have the {shape[0]} rows of the batch.", f"There are {segments.num_rows}.", "Pass a list a row."
        )
    return np.array(segments.segment_ids())


def _from_rows(rows: Iterable[tuple[Any, Any]], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32] | None:
    """Return segment ids where rows of a data set, each with its lengths, are found in the batch: in rows, or end to end."""
    lengths_of: dict[bytes, list[npt.NDArray[np.int64]]] = {}
    tokens = []
    for row, lengths in rows:
        array, own = np.asarray(row, np.int64), np.asarray(lengths, np.int64)
        if array.size and own.sum() == array.size:
            lengths_of.setdefault(array[:_HEAD].tobytes(), []).append(own)
            tokens.append(array)
    by_head: dict[bytes, list[npt.NDArray[np.int64]]] = {}
    for array in tokens:
        by_head.setdefault(array[:_HEAD].tobytes(), []).append(array)
    out = np.zeros(ids.shape, np.int32)
    for index, row in enumerate(ids):
        at = number = 0
        while at < row.size:
            key = row[at : at + _HEAD].tobytes()
            options = zip(by_head.get(key, ()), lengths_of.get(key, ()), strict=True)
            match = next(((t, own) for t, own in options if np.array_equal(row[at : at + t.size], t)), None)
            if match is None:
                break
            count = match[1].size
            out[index, at : at + match[0].size] = np.repeat(np.arange(number + 1, number + count + 1), match[1])
            number, at = number + count, at + match[0].size
        if at == 0:
            return None
    return out


def _from_cu(batch: Mapping[str, Any], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32] | None:
    """Return segment ids by the cumulative lengths of the batch over its flattened tokens; None where they do not fit."""
    name = next((n for n in ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q") if batch.get(n) is not None), None)
    if name is None:
        return None
    try:
        offsets = Segments.from_cu_seqlens(batch_rows(batch[name]).reshape(-1))
    except BoundaryError:
        return None
    if not 0 < offsets.num_tokens <= ids.size:
        return None
    flat = np.zeros(ids.size, np.int32)
    flat[: offsets.num_tokens] = np.repeat(np.arange(1, offsets.num_segments + 1), offsets.seq_lengths)
    out = flat.reshape(ids.shape)
    first = out[:, :1] - 1
    return np.where(out > 0, out - np.maximum(first, 0), 0).astype(np.int32)
