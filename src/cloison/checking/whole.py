"""What only the whole data set can say: endings that are never trained, samples that are there twice or not at all, totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cloison.checking.hits import Hit, Place
from cloison.checking.known import Known
from cloison.checking.rows import Rows

__all__ = ["Endings", "SampleBook", "Totals"]

_MOSTLY = 0.9
_OFTEN = 0.5


class Totals:
    """Sums over all rows, as plain integers. Memory: constant."""

    def __init__(self) -> None:
        self.rows = self.segments = self.tokens = self.cells = self.targets = self.max_seqlen = 0
        self.has_labels = True

    def add(self, rows: Rows) -> None:
        """Count ``rows``."""
        self.rows += rows.num_rows
        self.segments += rows.segments.num_segments
        self.tokens += rows.segments.num_tokens
        self.cells += int(rows.input_ids.size)
        self.max_seqlen = max(self.max_seqlen, rows.segments.max_seqlen)
        if rows.trained is None:
            self.has_labels = False
        else:
            self.targets += int(np.count_nonzero(rows.trained))

    def hits(self) -> Iterator[Hit]:
        """Yield what the sums say."""
        if not self.tokens:
            yield Hit("nothing_to_check", 1, self.rows)
        elif self.has_labels and not self.targets:
            yield Hit("no_target_at_all", self.tokens, self.tokens)


class Endings:
    """How samples end, and whether that is trained. Memory: one entry for each token id that ends a segment."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._seen: Counter[int] = Counter()
        self._trained: Counter[int] = Counter()
        self._last: Counter[int] = Counter()
        self._last_asked: Counter[int] = Counter()
        self._final_target: Counter[int] = Counter()
        self._segments = self._scanned = 0
        self._recorded = False

    def add(self, rows: Rows) -> None:
        """Count ``rows``."""
        ids, trained = rows.input_ids, rows.trained
        last = rows.last_cells
        self._segments += last.size
        self._recorded |= rows.source != "none"
        if self._known.eos_token_id is not None and rows.source != "none":
            ends = ids == self._known.eos_token_id
            if rows.padding is not None:
                ends &= ~rows.padding
            finals = rows.row_offsets[:-1] + rows.segments.row_tokens - 1
            finals = finals[rows.segments.row_tokens > 0]
            ends[finals] = True
            self._scanned += int(np.count_nonzero(ends))
        if trained is None:
            return
        for token in self._known.terminators:
            there = ids == token
            there[rows.first_cells] = False
            if rows.moved.any():  # a label there is that of another token
                there &= ~rows.moved[rows.row_of_cell]
            if rows.padding is not None:
                there &= ~rows.padding
            self._seen[token] += int(np.count_nonzero(there))
            self._trained[token] += int(np.count_nonzero(there & trained))
        if not self._known.terminators and last.size:
            long = last[rows.segments.seq_lengths > 1]
            self._last.update(_counts(ids[long]))
            self._last_asked.update(_counts(ids[long[trained[long]]]))
            asked = np.flatnonzero(trained)
            index = np.searchsorted(asked, last, "right") - 1
            has = (index >= 0) & (asked[np.maximum(index, 0)] > rows.first_cells) if asked.size else np.zeros(last.size, bool)
            if has.any():
                self._final_target.update(_counts(ids[asked[index[has]]]))

    def hits(self) -> Iterator[Hit]:
        """Yield terminators that are never trained, and how an end-of-text scan would differ from the recorded boundaries."""
        for token in self._known.terminators:
            if self._seen[token] and not self._trained[token]:
                yield Hit("end_never_trained", self._seen[token], self._seen[token], details={"token": token, "variant": token})
        if self._last:
            token, count = self._last.most_common(1)[0]
            total = sum(self._last.values())
            finals = self._final_target.most_common(1)
            constant = bool(finals) and finals[0][1] >= _OFTEN * sum(self._final_target.values())
            if total > 1 and count >= _MOSTLY * total and not self._last_asked[token] and finals and not constant:
                yield Hit("last_token_never_trained", count, total, details={"token": token})
        if self._recorded and self._known.eos_token_id is not None and self._scanned != self._segments:
            details = {"token": self._known.eos_token_id, "scanned": self._scanned, "recorded": self._segments}
            yield Hit("eos_scan_differs", abs(self._scanned - self._segments), self._segments, details=details)


def _counts(ids: npt.NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(ids, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


class SampleBook:
    """Which samples are there. Memory: one byte a sample; 24 bytes a segment of data in which samples were split."""

    def __init__(self) -> None:
        self._seen = np.zeros(0, bool)
        self._twice = self._segments = 0
        self._first: Place | None = None
        self._parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self.used = False

    def add(self, rows: Rows) -> None:
        """Note the samples of ``rows``; rows without ids say nothing."""
        ids = rows.sample_ids
        if ids is None or not ids.size or int(ids.min()) < 0:
            return
        self.used = True
        self._segments += ids.size
        top = int(ids.max()) + 1
        if top > self._seen.size:
            self._seen = np.append(self._seen, np.zeros(max(top, 2 * self._seen.size) - self._seen.size, bool))
        if rows.starts is not None:
            self._parts.append((ids, rows.starts, rows.segments.seq_lengths.astype(np.int64)))
            self._seen[ids] = True
            return
        unique, first = np.unique(ids, return_index=True)
        again = np.ones(ids.size, bool)
        again[first] = self._seen[unique]
        if again.any():
            self._twice += int(np.count_nonzero(again))
            if self._first is None:
                self._first = rows.cell_place(int(rows.first_cells[np.flatnonzero(again)[0]]))
        self._seen[unique] = True

    def hits(self, expected: int | None = None, excused: npt.NDArray[np.int64] | None = None) -> Iterator[Hit]:
        """Yield samples that are twice there, and, of ``expected`` samples, those neither there nor ``excused`` (indices)."""
        if not self.used and expected is None:
            return
        if self._parts:
            ids, starts, lengths = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
            order = np.lexsort((starts, ids))
            ids, starts, ends = ids[order], starts[order], (starts + lengths)[order]
            same = ids[1:] == ids[:-1]
            yield Hit("sample_twice", int(np.count_nonzero(same & (starts[1:] < ends[:-1]))), self._segments)
            gaps = ids[1:][same & (starts[1:] > ends[:-1])]
            heads = ids[np.append(True, ~same) & (starts > 0)]
            broken = np.unique(np.concatenate([gaps, heads]))
            yield Hit("sample_parts_missing", broken.size, np.unique(ids).size)
        else:
            yield Hit("sample_twice", self._twice, self._segments, self._first or Place())
        if expected is not None:
            there = np.zeros(expected, bool)
            there[: self._seen.size] = self._seen[:expected]
            if excused is not None:
                there[excused[(excused >= 0) & (excused < expected)]] = True
            missing = np.flatnonzero(~there)
            details = {"sample": int(missing[0])} if missing.size else {}
            yield Hit("sample_missing", missing.size, expected, details=details)
