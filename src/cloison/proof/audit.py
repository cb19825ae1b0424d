"""Audit: a TrainerCallback that audits the first step inside the real ``train()``, and leaves no trace in it."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from cloison.errors import InputError, require
from cloison.proof.ranks import world
from cloison.proof.report import VerifyReport
from cloison.proof.step import Known, StepAudit
from cloison.proof.traceless import attribute, set_aside
from cloison.proof.truth import SampleIndex
from cloison.proof.weights import Claim

require("transformers", "hf")
from transformers import TrainerCallback  # noqa: E402

__all__ = ["Audit"]

logger = logging.getLogger("cloison")


class Audit(TrainerCallback):  # a subclass: the one way in that trainers offer
    """Audits step 0 of ``transformers.Trainer``, ``trl.SFTTrainer`` and their kin: what it feeds, leaks and trains.

    Every micro-batch of the first step is looked at just before it is trained on, by the trainer's own ``training_step`` up to
    the loss that would go to ``backward``: in its precision, mode, wrapping and loss. Then the step runs as if nothing had
    been: random states, gradients, buffers, counts and metrics are put back.

    After the first step `report` holds the `VerifyReport`, the same on every rank. It is logged by the logger "cloison", as a
    warning where something is wrong.

    Args:
        samples: the samples as they are before packing (a data set with ``input_ids``, lists of ids, or `Sample`s with their
            labels): what is truly known of boundaries and prompts. Left out, the trainer's data set is asked.
        weights: what the weights of the step ought to be: "token_mean", "sample_mean", or None for no claim.
        on_findings: "warn", or "raise" a `FindingsError` before the first step is trained.
        seed: of everything drawn.

    Cost: for the first micro-batch 4 forwards for its targets and 2 + 2 * log2 segments for isolation (and about one a segment
    where there is a leak); one forward for each other micro-batch. Memory: as a forward without activations.

    A subclass of Trainer whose step keeps counts elsewhere than in plain attributes of the trainer sees more calls.
    """

    def __init__(
        self,
        *,
        samples: Iterable[Any] | None = None,
        weights: Claim | None = "token_mean",
        on_findings: Literal["warn", "raise"] = "warn",
        seed: int = 0,
    ) -> None:
        if on_findings not in ("warn", "raise"):
            raise InputError('on_findings must be "warn" or "raise".', f"It is {on_findings!r}.", "Pass one of them.")
        self.report: VerifyReport | None = None
        self._samples, self._weights, self._on_findings, self._seed = samples, weights, on_findings, seed

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand before the trainer's ``training_step`` until the first step is through."""
        trainer = _trainer_of(self)
        if trainer is None:
            warnings.warn("cloison.Audit found no trainer that calls it: nothing was audited.", stacklevel=2)
            return
        self.report = None
        audit = StepAudit(_known(trainer, self._samples), self._weights, self._seed)
        original = trainer.training_step
        before = vars(trainer).get("training_step")

        def put_back() -> None:
            if before is None:
                vars(trainer).pop("training_step", None)
            else:
                trainer.training_step = before

        def training_step(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            try:
                audit.micro_batch(model, lambda: _loss_of(trainer, original, model, inputs, rest, named))
                if getattr(trainer.accelerator, "sync_gradients", True):
                    put_back()
                    self._finish(audit)
            except BaseException:
                put_back()
                raise
            return original(model, inputs, *rest, **named)

        trainer.training_step = training_step

    def _finish(self, audit: StepAudit) -> None:
        self.report = audit.report()
        if world()[0] == 0:
            level = logging.INFO if self.report.ok else logging.WARNING
            logger.log(level, "audit of the first step:\n%s", self.report)
        if self._on_findings == "raise":
            self.report.raise_for_findings()


def _trainer_of(callback: Any) -> Any:
    """Return the trainer whose event is being handled: the ``self`` up the stack that holds ``callback``.

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


def _loss_of(trainer: Any, original: Any, model: Any, inputs: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the loss that the trainer's step hands to ``backward``, which is not run."""
    caught: list[Any] = []

    def backward(loss: Any, *_: Any, **__: Any) -> None:
        caught.append(loss)

    with (
        set_aside(trainer, keep=("training_step",)),
        attribute(trainer.accelerator, "backward", backward),
        _no_backward(caught),
        _unsynced(model),
    ):
        original(model, copy.copy(inputs), *rest, **named)
    return caught[-1] if caught else None


@contextmanager
def _no_backward(caught: list[Any]) -> Iterator[None]:
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
def _unsynced(model: Any) -> Iterator[None]:
    """Keep data-parallel wrappers from expecting a backward."""
    no_sync = getattr(model, "no_sync", None)
    if no_sync is None:
        yield
        return
    with no_sync():
        yield


def _known(trainer: Any, samples: Iterable[Any] | None) -> Known:
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
            rows = samples
            if rows is None and not packing:
                rows = _rows(dataset)
            index.append(None if rows is None else SampleIndex(rows))
        return index[0]

    return Known(row_lengths, found, _ends(trainer), packing)


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
    return isinstance(columns, list) and all(name in columns for name in names) and hasattr(dataset, "__len__")


def _columns(dataset: Any, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of some columns of a `datasets.Dataset` as arrays, straight from Arrow."""
    table = dataset.data
    lists = []
    for name in names:
        parts = []
        for chunk in table.column(name).chunks:
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
        return (dataset[index] for index in range(min(len(dataset), 20_000)))
    return None
