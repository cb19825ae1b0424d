"""Block: one row of whole segments, the unit that is stored, shuffled and fed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import BoundaryError
from cloison.samples import SHOWN_TOKENS, Sample, token_array
from cloison.segments import IGNORE, Segments
from cloison.showing import repr_html

__all__ = ["Block"]


@dataclass(frozen=True, eq=False)
class Block:
    """A packed row without its padding. Arrays are read-only.

    Attributes:
        input_ids: int32 [tokens], the segments' tokens one after the other.
        labels: int32 [tokens], same index, -100 where not a target and at the first token of every segment.
        segments: a one-row `Segments` whose lengths sum to the tokens and whose capacity is the block's.
        sample_ids: int64 [segments], the index of the source sample of each segment.
        starts: int32 [segments], where in its sample the segment begins: 0 unless the sample was split.
        loss_weights: float32 [tokens] or None.
        token_columns: name to array [tokens].
        segment_columns: name to list or array [segments].
    """

    input_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    segments: Segments
    sample_ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    loss_weights: npt.NDArray[np.float32] | None = None
    token_columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    segment_columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    _repr_html_ = repr_html

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_ids", token_array(self.input_ids, "input_ids"))
        object.__setattr__(self, "labels", token_array(self.labels, "labels"))
        ids = np.asarray(self.sample_ids, np.int64)
        starts = np.zeros(ids.size, np.int32) if self.starts is None else np.asarray(self.starts, np.int32)
        weights = None if self.loss_weights is None else np.asarray(self.loss_weights, np.float32)
        for name, array in (("sample_ids", ids), ("starts", starts), ("loss_weights", weights)):
            if array is not None:
                array = array.view()
                array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.segments.num_rows != 1:
            raise BoundaryError("a block is one row.", f"Its segments have {self.segments.num_rows}.", "Pass segments[b].")
        tokens, count = self.segments.num_tokens, self.segments.num_segments
        sizes: dict[str, tuple[int, int]] = {
            "input_ids": (self.input_ids.size, tokens),
            "labels": (self.labels.size, tokens),
            "sample_ids": (ids.size, count),
            "starts": (starts.size, count),
        }
        if weights is not None:
            sizes["loss_weights"] = (weights.size, tokens)
        sizes |= {name: (len(column), tokens) for name, column in self.token_columns.items()}
        sizes |= {name: (len(column), count) for name, column in self.segment_columns.items()}
        for name, (found, wanted) in sizes.items():
            if found != wanted:
                raise BoundaryError(
                    f"{name} must have {wanted} entries, as the lengths {self.segments.seq_lengths.tolist()[:8]} say.",
                    f"It has {found}.",
                    "Pass arrays and lengths of the same block.",
                )
        first = self.segments.first_tokens()
        trained = np.flatnonzero(self.labels[first] != IGNORE)
        if trained.size:
            raise BoundaryError(
                "the first token of a segment is no target: nothing in its sample predicts it.",
                f"Segment {int(trained[0])} has label {int(self.labels[first[trained[0]]])} there "
                f"({trained.size} of {count} segments).",
                "Set it to -100.",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Blocks go to workers and back: by their fields, checked again and read-only again."""
        columns = dict(self.token_columns), dict(self.segment_columns)
        fields = (self.input_ids, self.labels, self.segments, self.sample_ids, self.starts, self.loss_weights)
        return type(self), (*fields, *columns)

    def __len__(self) -> int:
        """Segments."""
        return self.segments.num_segments

    def __repr__(self) -> str:
        if self.num_tokens > SHOWN_TOKENS:
            counts = f"{self.num_tokens:,} of {self.segments.capacity:,} tokens, {self.num_targets:,} targets"
            shown = f"{len(self)} segments, {counts}"
        else:
            shown = f"input_ids={self.input_ids.tolist()}, labels={self.labels.tolist()}, {self.segments}"
        weights = "" if self.loss_weights is None else ", with loss_weights"
        columns = [*self.token_columns, *self.segment_columns]
        return f"Block({shown}{weights}{f', columns={columns}' if columns else ''})"

    @property
    def num_tokens(self) -> int:
        """Valid tokens."""
        return int(self.input_ids.size)

    @property
    def num_targets(self) -> int:
        """How many tokens the loss asks for."""
        return int((self.labels != IGNORE).sum())

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """int32 [tokens], the labels already shifted inside each segment, for trainers that do not shift."""
        return self.segments.targets(self.labels)

    def samples(self) -> Iterator[Sample]:
        """Yield each segment as a `Sample` (a fragment where its sample was split), with its columns."""
        first = self.segments.first_tokens()
        for index, (start, length) in enumerate(zip(first, self.segments.seq_lengths, strict=True)):
            place = slice(int(start), int(start + length))
            columns = {name: column[place] for name, column in self.token_columns.items()}
            columns |= {name: column[index] for name, column in self.segment_columns.items()}
            weights = None if self.loss_weights is None else self.loss_weights[place]
            yield Sample(self.input_ids[place], self.labels[place], weights, MappingProxyType(columns))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Block):
            return NotImplemented
        if (self.loss_weights is None) != (other.loss_weights is None):
            return False
        return (
            self.segments == other.segments
            and np.array_equal(self.sample_ids, other.sample_ids)
            and np.array_equal(self.starts, other.starts)
            and list(self.samples()) == list(other.samples())
        )

    __hash__ = None  # type: ignore[assignment]
