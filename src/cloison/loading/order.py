"""The order of blocks in an epoch: shuffled on levels, so that files are read in pieces and still well mixed.

Row groups of a packed data set are what is decoded at once. So the groups are shuffled over the whole epoch, some millions of
tokens of them form a bucket, and the blocks of a bucket are shuffled among themselves. Where there are more files than can
well be open at once, the files are shuffled first, and the groups over so many files at a time. All by the keyed bijections of
`cloison.planning.bijection`: any stretch of the order is found by itself, the same on every rank, with nothing stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cloison.planning.bijection import derive, permutation

__all__ = ["Order"]

_ORDER, _BUCKET, _FILES = 11, 12, 13
"""Labels of the keys: planning derives keys of its own from a seed that is often the same, and the two shall not agree."""


@dataclass(frozen=True)
class Order:
    """The order of ``num_blocks`` blocks in one epoch.

    Attributes:
        num_blocks: blocks of the epoch.
        seed, epoch: what the order is a function of.
        group: blocks that are decoded together; 1 makes the whole order one uniform shuffle.
        bucket_groups: groups that are shuffled among themselves, block by block.
        shuffle: False: the blocks as they come.
        file_groups: groups of a file (the last file may have fewer); 0: of no account.
        files: files whose groups are shuffled among themselves.
    """

    num_blocks: int
    seed: int
    epoch: int
    group: int = 1
    bucket_groups: int = 64
    shuffle: bool = True
    file_groups: int = 0
    files: int = 64

    def blocks(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the blocks at places start .. stop - 1 of the order, int64 [stop - start].

        >>> sorted(Order(10, seed=0, epoch=1, group=3, bucket_groups=2).blocks(0, 10).tolist()) == list(range(10))
        True
        """
        if start >= stop:
            return np.zeros(0, np.int64)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        if self.group == 1:
            return permutation(self.num_blocks, derive(self.seed, _ORDER, self.epoch), start, stop).astype(np.int64)
        edges = self._bucket_edges
        first, last = (int(np.searchsorted(edges, place, side="right")) - 1 for place in (start, stop - 1))
        buckets = [self._kept_bucket(index) for index in range(first, last + 1)]
        for index in list(self._recent):
            if not first <= index <= last:
                self._recent.pop(index, None)
        found = buckets[0] if len(buckets) == 1 else np.concatenate(buckets)
        return found[start - int(edges[first]) : stop - int(edges[first])]

    @cached_property
    def _groups(self) -> npt.NDArray[np.int64]:
        count = -(-self.num_blocks // self.group)
        key = derive(self.seed, _ORDER, self.epoch)
        files = -(-count // self.file_groups) if self.file_groups else 1
        if files <= self.files:
            return permutation(count, key).astype(np.int64)
        mixed = permutation(files, key).astype(np.int64)
        runs = []
        for first in range(0, files, self.files):
            found = (mixed[first : first + self.files, None] * self.file_groups + np.arange(self.file_groups)).reshape(-1)
            found = found[found < count]
            runs.append(found[permutation(found.size, derive(self.seed, _FILES, self.epoch, first)).astype(np.int64)])
        return np.concatenate(runs)

    @cached_property
    def _bucket_edges(self) -> npt.NDArray[np.int64]:
        """int64 [buckets + 1]: where each bucket begins in the order (the last group may be a short one)."""
        sizes = np.minimum(self._groups * self.group + self.group, self.num_blocks) - self._groups * self.group
        ends = np.cumsum(sizes)
        inner = ends[self.bucket_groups - 1 : -1 : self.bucket_groups]
        return np.concatenate([[0], inner, [self.num_blocks]]).astype(np.int64)

    @cached_property
    def _recent(self) -> dict[int, npt.NDArray[np.int64]]:
        """The buckets that were asked for last: steps ask for one bucket many times."""
        return {}

    def _kept_bucket(self, index: int) -> npt.NDArray[np.int64]:
        found = self._recent.get(index)
        if found is None:
            found = self._recent[index] = self._bucket(index)
        return found

    def _bucket(self, index: int) -> npt.NDArray[np.int64]:
        groups = self._groups[index * self.bucket_groups : (index + 1) * self.bucket_groups]
        blocks = (groups[:, None] * self.group + np.arange(self.group)).reshape(-1)
        blocks = blocks[blocks < self.num_blocks]
        key = derive(self.seed, _BUCKET, self.epoch, index)
        found: npt.NDArray[np.int64] = blocks[permutation(blocks.size, key).astype(np.int64)]
        return found
