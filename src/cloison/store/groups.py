"""Row groups of packed blocks, decoded once and kept while they are used: the way from files to Blocks.

A Parquet row group is decoded whole (about 10 ns a token), and a block is a view into it. The last few decoded groups, and the
last few open files, are kept, each thread having its own: readers share nothing that a second thread or a forked process could
find half done. Of files that lie elsewhere than on disk a group is one request, and `Groups.fetch` makes many at once.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cloison.blocks import Block
from cloison.places import Place, RangedFile, Remote, hold, random_access
from cloison.segments import Segments
from cloison.store.columns import RESERVED
from cloison.store.files import store_errors
from cloison.store.manifest import Manifest

__all__ = ["Group", "Groups"]

_OPEN_FILES = 96
"""Files that a thread holds open, each with its parsed footer (some 0.5 MB): far below the usual limit of 1,024."""

_FOOTER_BYTES = 1 << 17
"""What the footer of a file of blocks has, nearly always; where it has more, reading it takes one request more."""

Flat = tuple[Any, npt.NDArray[Any]]


class Group:
    """Some blocks, decoded: per column its entries one after the other, and the offsets of blocks in them.

    Args:
        table: rows of the format's columns, one a block.
        capacity: of the blocks.
        kinds: of each carried column, whether it is per "token" or "segment".
    """

    def __init__(self, table: pa.Table, capacity: int, kinds: Mapping[str, str]) -> None:
        self._capacity, self._kinds = capacity, kinds
        self._columns: dict[str, Flat] = {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            column = column if isinstance(column, pa.Array) else column.chunk(0)
            plain = column.values.null_count == 0 and _is_number(column.values.type)
            values = column.values.to_numpy(zero_copy_only=False) if plain else column.values
            self._columns[name] = values, column.offsets.to_numpy()
        lengths, _ = self._columns["seq_lengths"]
        tokens = np.diff(self._columns["input_ids"][1])
        # Looked at once for all blocks; that each block's lengths sum to its tokens is what Block itself makes sure of.
        self._sound = lengths.dtype == np.int32 and lengths.min(initial=1) >= 1 and tokens.max(initial=0) <= capacity

    def block(self, row: int) -> Block:
        """Return block ``row`` of the group. Cost: tens of microseconds, and a copy of its tokens and labels.

        Raises:
            BoundaryError: the file states lengths that cannot be right.
        """
        found = {name: values[int(offsets[row]) : int(offsets[row + 1])] for name, (values, offsets) in self._columns.items()}
        reserved = {name: found[name] for name in RESERVED if name in found}
        token = {name: _entries(found[name]) for name, kind in self._kinds.items() if kind == "token"}
        segment = {name: _entries(found[name]) for name, kind in self._kinds.items() if kind == "segment"}
        if "first_labels" in reserved:
            segment["first_labels"] = reserved["first_labels"]
        lengths = reserved["seq_lengths"]
        if self._sound:
            segments = Segments(lengths, np.array([0, lengths.size], np.int64), self._capacity)
        else:
            segments = Segments.from_lengths(lengths, self._capacity)
        return Block(
            reserved["input_ids"],
            reserved["labels"],
            segments,
            reserved["sample_ids"],
            reserved.get("starts"),  # type: ignore[arg-type]  # None: no sample was split
            reserved.get("loss_weights"),
            token,
            segment,
        )


class Groups:
    """The row groups of a packed data set.

    Args:
        folder: where the shards are, on disk or elsewhere.
        manifest: what they are.
        kept: decoded groups that a thread holds at most.
    """

    def __init__(self, folder: Place, manifest: Manifest, kept: int) -> None:
        self._folder, self._manifest, self._kept = folder, manifest, kept
        self._ends = [0, *accumulate(shard.num_blocks for shard in manifest.shards)]
        self._unreadable = [f"{folder / shard.name} cannot be read" for shard in manifest.shards]  # asked for at every block
        self._own = threading.local()

    def block(self, index: int) -> Block:
        """Return block ``index`` (0 .. blocks - 1). Cost: one row group decoded, unless it is among those kept."""
        shard, number, row = self._place(index)
        group = self._group(shard, number)
        with self._reading(shard):
            return group.block(row)

    def column(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return a column of numbers over all blocks: its entries one after the other, and how many each block has."""
        values, counts = [], []
        for shard in range(len(self._manifest.shards)):
            with self._reading(shard):
                file = self._file(shard)
                self._hold(self._column_ranges(shard, file, name))
                found = file.read([name]).column(name)
                self._release()
                if len(found) != self._manifest.shards[shard].num_blocks:  # pyarrow ends without a word where a page lies
                    raise ValueError(f"{self._manifest.shards[shard].num_blocks:,} blocks are stated, and {len(found):,} there")
                for chunk in found.chunks:
                    values.append(chunk.flatten().to_numpy(zero_copy_only=False))
                    counts.append(np.diff(chunk.offsets.to_numpy()).astype(np.int64))
        if not values:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        flat = np.concatenate(values)
        flat.setflags(write=False)
        return flat, np.concatenate(counts)

    def fetch(self, indices: Iterable[int]) -> None:
        """Decode the groups of the blocks ``indices`` that are not there, asking for all at once: one wait in place of many.

        At most as many as are kept. On the local disk there is nothing to wait for, and nothing is done.
        """
        if not isinstance(self._folder, Remote):
            return
        wanted = dict.fromkeys(self._place(index)[:2] for index in indices)
        lacking = [key for key in wanted if key not in self._mine("groups")][: self._kept]
        with store_errors(f"{self._folder} cannot be read"):
            self._open_all({shard for shard, _ in lacking})
            self._hold([self._group_range(shard, number) for shard, number in lacking])
        for shard, number in lacking:
            self._group(shard, number)
        self._release()

    def _place(self, index: int) -> tuple[int, int, int]:
        """Return shard, group in it and row in that of block ``index``."""
        shard = bisect_right(self._ends, index) - 1
        return shard, *divmod(index - self._ends[shard], self._manifest.blocks_per_group)

    def _reading(self, shard: int) -> Any:
        return store_errors(self._unreadable[shard], damage="Restore the file, or pack again.")

    def _group(self, shard: int, number: int) -> Group:
        groups: OrderedDict[tuple[int, int], Group] = self._mine("groups")
        key = (shard, number)
        found = groups.get(key)
        if found is None:
            with self._reading(shard):
                # Without Arrow's threads: a group of this size is decoded faster alone, and a forked worker has none.
                table = self._file(shard).read_row_group(number, use_threads=False)
                found = Group(table, self._manifest.spec.capacity, self._manifest.columns)
            groups[key] = found
            while len(groups) > self._kept:
                groups.popitem(last=False)
        else:
            groups.move_to_end(key)
        return found

    def _file(self, shard: int) -> pq.ParquetFile:
        files: OrderedDict[int, pq.ParquetFile] = self._mine("files")
        if shard not in files:
            # Read, not mapped: what was read of a mapped file counts as memory of the process until it is closed.
            source = self._source(shard)
            files[shard] = pq.ParquetFile(source, pre_buffer=isinstance(source, RangedFile))
            while len(files) > _OPEN_FILES:
                files.popitem(last=False)[1].close()
        files.move_to_end(shard)
        return files[shard]

    def _source(self, shard: int) -> Any:
        """Return what the file of ``shard`` is read from: its path, or what asks for ranges of it."""
        known = self._manifest.shards[shard]
        if not isinstance(self._folder, Remote):
            return random_access(self._folder / known.name)
        sources: OrderedDict[int, RangedFile] = self._mine("sources")
        if shard not in sources:
            sources[shard] = RangedFile(self._folder / known.name, known.size_bytes)
        return sources[shard]

    def _open_all(self, shards: Iterable[int]) -> None:
        new = [shard for shard in shards if shard not in self._mine("files")][:_OPEN_FILES]
        ends = [(self._source(shard), self._manifest.shards[shard].size_bytes) for shard in new]
        self._hold([(file, max(0, size - _FOOTER_BYTES), size) for file, size in ends])
        for shard in new:
            self._file(shard)
        self._release()

    def _group_range(self, shard: int, number: int) -> tuple[RangedFile, int, int]:
        group = self._file(shard).metadata.row_group(number)
        edges = [_extent(group.column(column)) for column in range(group.num_columns)]
        return self._source(shard), min(start for start, _ in edges), max(stop for _, stop in edges)

    def _column_ranges(self, shard: int, file: pq.ParquetFile, name: str) -> list[tuple[RangedFile, int, int]]:
        """Return where the column lies in a file that is elsewhere than on disk: a stretch in each group."""
        if not isinstance(self._folder, Remote):
            return []
        metadata = file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        chunks = [group.column(column) for group in groups for column in range(group.num_columns)]
        source = self._source(shard)
        return [(source, *_extent(chunk)) for chunk in chunks if chunk.path_in_schema.split(".")[0] == name]

    def _hold(self, wanted: list[tuple[RangedFile, int, int]]) -> None:
        hold(wanted)
        self._mine("held").update((id(file), file) for file, _, _ in wanted)

    def _release(self) -> None:
        held = self._mine("held")
        while held:
            held.popitem()[1].release()

    def _mine(self, name: str) -> OrderedDict[Any, Any]:
        """Return this thread's own ``name``."""
        own: dict[str, OrderedDict[Any, Any]] = self._own.__dict__
        return own.setdefault(name, OrderedDict())


def _extent(chunk: Any) -> tuple[int, int]:
    """Return where a column chunk begins and ends in its file, in bytes."""
    start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _entries(values: Any) -> Any:
    """Return the entries of a carried column: numpy for plain numbers, else a list of Python values."""
    return values if isinstance(values, np.ndarray) else values.to_pylist()
