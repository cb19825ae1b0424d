"""Sample: one independent training example, as token ids and same-index labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.segments import IGNORE

__all__ = ["SHOWN_TOKENS", "Sample", "token_array"]

SHOWN_TOKENS = 32
"""Samples and blocks of more tokens are shown by their counts."""


def token_array(values: npt.ArrayLike, name: str) -> npt.NDArray[np.int32]:
    """Return ``values`` as a read-only int32 [tokens], or raise an InputError that names the array and the bad value."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64).reshape(-1)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(
            f"{name} must be a flat list of integers.",
            f"It has dtype {array.dtype} and shape {list(array.shape)}.",
            "Pass token ids as one list or 1-D array.",
        )
    if array.dtype != np.int32 and array.size and (int(array.min()) < -(2**31) or int(array.max()) > 2**31 - 1):
        raise InputError(f"{name} must fit int32.", f"It reaches {int(array.min())} .. {int(array.max())}.", "Check the ids.")
    out = array.astype(np.int32)
    out.setflags(write=False)
    return out


@dataclass(frozen=True, eq=False)
class Sample:
    """One training example. Arrays are read-only; two samples are equal when their arrays are.

    Attributes:
        input_ids: int32 [tokens], each 0 or more.
        labels: int32 [tokens], same index as ``input_ids`` (the model shifts), -100 where not a target. The first is always
            -100: nothing inside the sample predicts it. Left out, every token but the first is a target.
        loss_weights: float32 [tokens] with the index of ``labels``, or None for 1 everywhere.
        columns: what is carried along: arrays of [tokens] stay per token, anything else is one value for the sample.
    """

    input_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    loss_weights: npt.NDArray[np.float32] | None = None
    columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        ids = token_array(self.input_ids, "input_ids")
        if ids.size and int(ids.min()) < 0:
            where = int(np.flatnonzero(ids < 0)[0])
            raise InputError("token ids are 0 or more.", f"input_ids[{where}] is {ids[where]}.", "Mask with labels, not ids.")
        labels = np.array(token_array(ids if self.labels is None else self.labels, "labels"))
        if labels.shape != ids.shape:
            raise InputError(
                "labels must have the index of input_ids.",
                f"There are {labels.size} labels for {ids.size} tokens.",
                "Do not shift labels; use -100 for tokens that are no target.",
            )
        foreign = np.flatnonzero((labels < 0) & (labels != IGNORE))
        if foreign.size:
            raise InputError(
                "labels are token ids, or -100 where not a target.",
                f"labels[{foreign[0]}] is {labels[foreign[0]]} ({foreign.size} of {labels.size} are below 0).",
                "Write -100 there.",
            )
        labels[:1] = IGNORE
        labels.setflags(write=False)
        object.__setattr__(self, "input_ids", ids)
        object.__setattr__(self, "labels", labels)
        if self.loss_weights is not None:
            weights = np.array(self.loss_weights, np.float32)
            if weights.shape != ids.shape:
                raise InputError(
                    "loss_weights must have the index of labels.",
                    f"There are {weights.size} weights for {ids.size} tokens.",
                    "Pass one weight a token.",
                )
            if not np.isfinite(weights).all():
                where = int(np.flatnonzero(~np.isfinite(weights))[0])
                raise InputError(
                    "loss_weights must be finite.",
                    f"loss_weights[{where}] is {weights[where]}.",
                    "Write 0 where nothing is trained.",
                )
            weights.setflags(write=False)
            object.__setattr__(self, "loss_weights", weights)

    def __reduce__(self) -> tuple[Any, ...]:
        """Samples go to workers and back: by their fields, checked again and read-only again."""
        return type(self), (self.input_ids, self.labels, self.loss_weights, dict(self.columns))

    def __len__(self) -> int:
        return int(self.input_ids.size)

    def __repr__(self) -> str:
        if len(self) > SHOWN_TOKENS:
            shown = f"{len(self):,} tokens, {self.num_targets:,} targets"
        else:
            shown = f"input_ids={self.input_ids.tolist()}, labels={self.labels.tolist()}"
        weights = "" if self.loss_weights is None else ", with loss_weights"
        return f"Sample({shown}{weights}{f', columns={list(self.columns)}' if self.columns else ''})"

    @property
    def num_targets(self) -> int:
        """How many tokens the loss asks for."""
        return int((self.labels != IGNORE).sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        same_weights = (self.loss_weights is None) == (other.loss_weights is None) and (
            self.loss_weights is None or np.array_equal(self.loss_weights, other.loss_weights)  # type: ignore[arg-type]
        )
        return (
            np.array_equal(self.input_ids, other.input_ids)
            and np.array_equal(self.labels, other.labels)
            and same_weights
            and self.columns.keys() == other.columns.keys()
            and all(np.array_equal(value, other.columns[name]) for name, value in self.columns.items())
        )

    __hash__ = None  # type: ignore[assignment]
