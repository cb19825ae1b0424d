"""A data set for torch's ``DataLoader``: a `Loader` behind worker processes.

Trainers that sample and shard by themselves need nothing from here: a `Packed` is a map-style data set of Blocks, with
``data_collator=cloison.collate``. Blocks are no dicts, so that ``transformers.Trainer``, whose ``remove_unused_columns`` takes
from dicts what the model does not name (the boundaries among it), leaves them whole.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch.utils.data

from cloison.loading.loader import Loader

__all__ = ["Batches"]


class Batches(torch.utils.data.Dataset[Any]):
    """The batches that were left of a loader's epoch when this was made: ``DataLoader(Batches(loader), batch_size=None)``.

    ``batch_size=None`` hands each batch through as it is. The loader itself does not move: after training for ``n`` batches
    say so with ``loader.skip(n)`` before taking its state.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = copy(loader)  # which stays where it is when the loader moves on
        self._first, self._size = loader.done, loader.remaining

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self._loader[self._first + index]
