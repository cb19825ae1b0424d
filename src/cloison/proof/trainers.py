"""What a Hugging Face trainer tells: itself, found from inside a callback; its loss, caught before ``backward``; its data."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cloison.proof.step import Known
from cloison.proof.traceless import attribute, set_aside
from cloison.proof.truth import SampleIndex

__all__ = ["known_of_trainer", "loss_of", "no_backward", "trainer_of", "unsynced"]

_UNKNOWN_ROWS = 20_000
"""Of a data set that is no Arrow table at most so many rows are read."""


def trainer_of(callback: Any) -> Any:
    """Return the trainer whose event is being handled: the ``self`` up the stack that holds ``callback``, or None.

    Events hand out the model and the loader but not the trainer, and only the trainer knows the loss.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        held = getattr(getattr(owner, "callback_handler", None), "callbacks", ())
        if any(one is callback for one in held) and hasattr(owner, "training_step"):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def loss_of(trainer: Any, original: Any, model: Any, inputs: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the loss that the trainer's step hands to ``backward``, which is not run; None where it handed none."""
    caught: list[Any] = []

    def backward(loss: Any, *_: Any, **__: Any) -> None:
        caught.append(loss)

    with (
        set_aside(trainer, keep=("training_step",)),
        attribute(trainer.accelerator, "backward", backward),
        no_backward(caught),
        unsynced(model),
    ):
        original(model, copy.copy(inputs), *rest, **named)
    return caught[-1] if caught else None


@contextmanager
def no_backward(caught: list[Any]) -> Iterator[None]:
    """Catch ``loss.backward()`` of steps that do without the accelerator."""
    import torch

    own = torch.Tensor.backward

    def backward(loss: Any, *_: Any, **__: Any) -> None:
        caught.append(loss)

    torch.Tensor.backward = backward  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = own  # type: ignore[method-assign]


@contextmanager
def unsynced(model: Any) -> Iterator[None]:
    """Keep data-parallel wrappers from expecting a backward."""
    no_sync = getattr(model, "no_sync", None)
    if no_sync is None:
        yield
        return
    with no_sync():
        yield


def known_of_trainer(trainer: Any, samples: Iterable[Any] | None) -> Known:
    """Return what ``trainer`` tells of its data: lengths beside its rows, rows that are samples, ends, whether it packs."""
    args, dataset = trainer.args, getattr(trainer, "train_dataset", None)
    packing = bool(getattr(args, "packing", False))
    index: list[SampleIndex | None] = []

    def row_lengths() -> Iterable[tuple[Any, Any]] | None:
        if samples is not None or not _has_columns(dataset, ("input_ids", "seq_lengths")):
            return None
        return _columns(dataset, ("input_ids", "seq_lengths"))

    def found() -> SampleIndex | None:
        if not index:
            rows = _rows(samples) if samples is not None else None if packing else _rows(dataset)
            index.append(None if rows is None else SampleIndex(rows))
        return index[0]

    return Known(row_lengths, found, ends=_ends(trainer), packed=packing)


def _ends(trainer: Any) -> tuple[int, ...]:
    model, ends = trainer.model, set()
    owners = (
        getattr(trainer, "processing_class", None),
        getattr(model, "generation_config", None),
        getattr(model, "config", None),
    )
    for owner in owners:
        value = getattr(owner, "eos_token_id", None)
        ends |= {int(v) for v in np.atleast_1d(value) if v is not None} if value is not None else set()
    return tuple(sorted(ends))


def _has_columns(dataset: Any, names: tuple[str, ...]) -> bool:
    columns = getattr(dataset, "column_names", None)
    return isinstance(columns, list) and all(name in columns for name in names) and hasattr(dataset, "data")


def _columns(dataset: Any, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of some columns of a `datasets.Dataset` as arrays, straight from Arrow."""
    lists = []
    for name in names:
        parts = []
        for chunk in dataset.data.column(name).chunks:
            values = chunk.flatten().to_numpy(zero_copy_only=False)
            parts.append((values, np.diff(chunk.offsets.to_numpy(zero_copy_only=False))))
        lists.append(parts)
    for pieces in zip(*lists, strict=True):
        ends = [np.cumsum(sizes) for _, sizes in pieces]
        for row in range(len(ends[0])):
            yield tuple(v[e[row] - s[row] : e[row]] for (v, s), e in zip(pieces, ends, strict=True))


def _rows(dataset: Any) -> Iterable[Any] | None:
    """Return the rows of a data set that can be read again without a trace, or None (streams are not touched)."""
    if _has_columns(dataset, ("input_ids",)):
        masks = ("labels", "completion_mask", "assistant_masks")
        names = ("input_ids", *(name for name in masks if name in dataset.column_names))
        return (dict(zip(names, row, strict=True)) for row in _columns(dataset, names))
    if isinstance(dataset, (list, tuple)):
        return iter(dataset)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(min(len(dataset), _UNKNOWN_ROWS)))
    return None
