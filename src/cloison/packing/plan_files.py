"""A plan on disk: its pieces, a file each, that one process writes and others read, in part and in any order.

A piece is an Arrow IPC file, uncompressed, of record batches (a `Stretch` each) with a row a block: ``sample_ids`` list<uint32>
(int64 where they do not fit), counted over all records of the sources; ``seq_lengths`` list<int32>; ``starts`` list<int32>
where a sample is in pieces; ``begins`` list<int64> where the plan keeps an order, from the first token of the piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloison.places import Place, borrowed, fetched
from cloison.planning.stretches import Stretch
from cloison.store.files import replacing, store_errors

__all__ = ["PieceSize", "PlanFiles", "write_piece"]


@dataclass(frozen=True)
class PieceSize:
    """What is in a piece: blocks, segments, tokens, and whether a sample is in pieces."""

    blocks: int
    segments: int
    tokens: int
    split: bool


def write_piece(folder: Place, index: int, stretches: Iterable[Stretch]) -> PieceSize:
    """Put piece ``index`` of a plan into ``folder``, whole or not at all. Cost: memory for a stretch."""
    blocks = segments = tokens = 0
    split = False
    with replacing(folder / _name(index), durable=False) as part, pa.OSFile(str(part), "wb") as file:  # every run makes them
        writer = None
        for stretch in stretches:
            batch = _batch(stretch)
            writer = writer or pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
            blocks, segments = blocks + stretch.sizes.size, segments + stretch.seq_lengths.size
            tokens += int(stretch.seq_lengths.sum(dtype=np.int64))
            split = split or (stretch.starts is not None and bool(stretch.starts.any()))
        (writer or pa.ipc.new_file(file, pa.schema([]))).close()
    return PieceSize(blocks, segments, tokens, split)


@dataclass(frozen=True, eq=False)
class PlanFiles:
    """The blocks of a plan whose pieces lie in ``folder``.

    Attributes:
        blocks, tokens: of each piece.
    """

    folder: Place
    blocks: Sequence[int]
    tokens: Sequence[int]
    _open: dict[int, list[pa.RecordBatch]] = field(default_factory=dict, init=False, repr=False)

    def stretches(self) -> Iterator[Stretch]:
        """Yield all blocks in order; no more than one stretch is in memory, and none is mapped."""
        before = 0
        for index, tokens in enumerate(self.tokens):
            place = self.folder / _name(index)
            with store_errors(f"{place} cannot be read"), borrowed(place) as path, pa.OSFile(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    yield _stretch(reader.get_batch(number), before)
            before += tokens

    def between(self, first: int, last: int) -> Stretch:
        """Return blocks first .. last - 1, which are at least one; the pieces that hold them are mapped."""
        found, begin = [], 0
        for index, end in enumerate(accumulate(self.blocks)):
            if begin < last and first < end:
                for batch in self._batches(index):
                    a, b = max(first - begin, 0), min(last - begin, batch.num_rows)
                    if a < b:
                        found.append(_stretch(batch.slice(a, b - a), 0))
                    begin += batch.num_rows
            begin = end
        return _joined(found)

    def _batches(self, index: int) -> list[pa.RecordBatch]:
        if index not in self._open:
            place = self.folder / _name(index)
            with store_errors(f"{place} cannot be read"):
                reader = pa.ipc.open_file(pa.memory_map(str(fetched(place))))
                self._open[index] = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return self._open[index]


def _name(index: int) -> str:
    return f"plan-{index:05d}.arrow"


def _batch(stretch: Stretch) -> pa.RecordBatch:
    offsets = pa.array(np.concatenate([[0], np.cumsum(stretch.sizes)]).astype(np.int32))
    columns = {"sample_ids": stretch.sample_ids, "seq_lengths": stretch.seq_lengths}
    columns |= {name: found for name in ("starts", "begins") if (found := getattr(stretch, name)) is not None}
    return pa.RecordBatch.from_pydict(
        {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in columns.items()}
    )


def _stretch(batch: pa.RecordBatch, before: int) -> Stretch:
    def flat(name: str) -> npt.NDArray[Any] | None:
        return batch.column(name).flatten().to_numpy() if name in batch.schema.names else None

    begins = flat("begins")
    sizes = batch.column("sample_ids").value_lengths().to_numpy().astype(np.int64)
    return Stretch(sizes, flat("sample_ids"), flat("starts"), flat("seq_lengths"), None if begins is None else begins + before)  # type: ignore[arg-type]


def _joined(parts: list[Stretch]) -> Stretch:
    if len(parts) == 1:
        return parts[0]

    def all_of(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)

    return Stretch(*(all_of(name) for name in ("sizes", "sample_ids", "starts", "seq_lengths", "begins")))
