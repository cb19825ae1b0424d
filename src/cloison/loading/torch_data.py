"""Data sets for torch's ``DataLoader`` and for trainers that bring their own sampling.

- `Batches` puts a `Loader` behind worker processes: batches come in the loader's order for any number of workers, since each
  is found by its index.
- `BlockItems` gives single blocks to ``transformers.Trainer`` (and others that sample and shard by themselves), with
  ``data_collator=cloison.collate``. Its items are Blocks, not dicts: ``remove_unused_columns`` would take from dicts what
  the model does not name, boundaries included, and leaves other objects alone.
"""

from __future__ import annotations

from typing import Any

import torch.utils.data

from cloison.blocks import Block
from cloison.loading.loader import Loader
from cloison.loading.reading import source_of

__all__ = ["Batches", "BlockItems"]


class Batches(torch.utils.data.Dataset[Any]):
    """The batches that were left of a loader's epoch when this was made: ``DataLoader(Batches(loader), batch_size=None)``.

    ``batch_size=None`` hands each batch through as it is. The loader itself does not move: after training for ``n`` batches
    say so with ``loader.skip(n)`` before taking its state.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._first, self._size = loader.done, loader.remaining

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self._loader[self._first + index]


class BlockItems(torch.utils.data.Dataset[Block]):
    """The blocks of a packed data set (or of a list) by index, one item each."""

    def __init__(self, packed: Any) -> None:
        self._source = source_of(packed)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Block:
        return self._source[range(len(self))[index]]
