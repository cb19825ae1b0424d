"""Ledger: the account of every sample and token, from what came in to what was kept.

A ledger holds what came in, what was kept, and one `Entry` for each thing that happened on the way. Kinds of `GONE` take the
whole sample away; all other kinds keep it, whole or in part. So two sums must hold, and `Ledger.verify` checks them::

    samples_in == samples_kept + samples of the entries whose kind is in GONE
    tokens_in  == tokens_kept  + lost_tokens of all entries
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError

__all__ = ["GONE", "Entry", "Ledger"]

GONE = frozenset({"dropped", "empty", "nothing_to_train", "skipped"})
"""Kinds after which the sample is in no block. Others ("truncated", "split", "continuations", ...) keep it."""


@dataclass(frozen=True, eq=False)
class Entry:
    """What happened to some samples: how many, which, and how many of their tokens are gone.

    Attributes:
        samples: how many samples (or pieces, for "continuations").
        lost_tokens: tokens of theirs that are in no block.
        indices: int64 [samples], of the samples, rising; of "continuations" the sample of each further piece, with repeats.
    """

    samples: int
    lost_tokens: int
    indices: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        indices = np.array(self.indices, np.int64).reshape(-1)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)

    @classmethod
    def of(cls, indices: npt.ArrayLike, lost_tokens: int = 0) -> Entry:
        """Return the entry of these samples, in rising order."""
        array = np.sort(np.array(indices, np.int64).reshape(-1))
        return cls(int(array.size), int(lost_tokens), array)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Entry)
            and (self.samples, self.lost_tokens) == (other.samples, other.lost_tokens)
            and np.array_equal(self.indices, other.indices)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Ledger:
    """The account of a step or of a whole job. Plain data by `to_dict`; ledgers of shards merge, ledgers of steps chain.

    Attributes:
        samples_in, tokens_in: what the step was given.
        samples_kept, tokens_kept: what it passed on, counted at its output.
        entries: kind to `Entry`. Kinds without samples are left out.

    >>> ledger = Ledger(3, 100, 3, 50, {"truncated": Entry.of([0, 2], 50)})
    >>> ledger.verify().lost_share
    0.5
    """

    samples_in: int
    tokens_in: int
    samples_kept: int
    tokens_kept: int
    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        kept = {kind: self.entries[kind] for kind in sorted(self.entries) if self.entries[kind].samples}
        object.__setattr__(self, "entries", MappingProxyType(kept))

    def __reduce__(self) -> tuple[type[Ledger], tuple[Any, ...]]:
        counts = (self.samples_in, self.tokens_in, self.samples_kept, self.tokens_kept)
        return Ledger, (*counts, dict(self.entries))  # a proxy does not pickle

    @property
    def lost_tokens(self) -> int:
        """Tokens that are in no block."""
        return sum(entry.lost_tokens for entry in self.entries.values())

    @property
    def lost_share(self) -> float:
        """The same as a share of ``tokens_in`` (0 when nothing came in)."""
        return self.lost_tokens / self.tokens_in if self.tokens_in else 0.0

    @property
    def lost_samples(self) -> int:
        """Samples that are in no block."""
        return sum(entry.samples for kind, entry in self.entries.items() if kind in GONE)

    def verify(self) -> Ledger:
        """Return the ledger itself when its two sums hold and each entry names as many samples as it counts.

        Raises:
            InputError: it does not add up; the numbers are named.
        """
        for what, came, kept, lost in (
            ("samples", self.samples_in, self.samples_kept, self.lost_samples),
            ("tokens", self.tokens_in, self.tokens_kept, self.lost_tokens),
        ):
            if came != kept + lost:
                raise InputError(
                    f"the {what} of a ledger add up.",
                    f"{came:,} came in; {kept:,} were kept and {lost:,} are accounted as lost.",
                    "Count what is missing under a kind of its own.",
                )
        for kind, entry in self.entries.items():
            if entry.indices.size != entry.samples or entry.lost_tokens < 0:
                raise InputError(
                    f"the entry {kind!r} of a ledger names its samples.",
                    f"It counts {entry.samples:,}, names {entry.indices.size:,} and loses {entry.lost_tokens:,} tokens.",
                    "Build it with Entry.of.",
                )
        return self

    # ------------------------------------------------------------------ putting ledgers together

    def then(
        self,
        later: Ledger,
        indices: npt.ArrayLike | Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] | None = None,
    ) -> Ledger:
        """Return the ledger of this step followed by ``later``, which was given exactly what this one kept.

        Args:
            indices: int [samples that ``later`` was given], the index here of each sample there, or a function that gives
                those of some; None: the same.

        Raises:
            InputError: ``later`` was given something else.
        """
        if (self.samples_kept, self.tokens_kept) != (later.samples_in, later.tokens_in):
            raise InputError(
                "the later step of a ledger starts with what the earlier one kept.",
                f"The earlier kept {self.samples_kept:,} samples and {self.tokens_kept:,} tokens; "
                f"the later was given {later.samples_in:,} and {later.tokens_in:,}.",
                "Put the step between them on the account too.",
            )
        names = indices if indices is None or callable(indices) else np.asarray(indices).__getitem__
        renamed = {
            kind: Entry.of(entry.indices if names is None else names(entry.indices), entry.lost_tokens)
            for kind, entry in later.entries.items()
        }
        entries = _joined([self.entries, renamed])
        return Ledger(self.samples_in, self.tokens_in, later.samples_kept, later.tokens_kept, entries)

    def shifted(self, first_index: int) -> Ledger:
        """Return the same with every index raised by ``first_index``: a shard's own account in the numbering of the whole."""
        entries = {kind: Entry(e.samples, e.lost_tokens, e.indices + first_index) for kind, e in self.entries.items()}
        return Ledger(self.samples_in, self.tokens_in, self.samples_kept, self.tokens_kept, entries)

    @classmethod
    def merge(cls, ledgers: Iterable[Ledger]) -> Ledger:
        """Return the account of shards side by side; their indices must be of one numbering (see `shifted`)."""
        parts = list(ledgers)
        samples_in, tokens_in, samples_kept, tokens_kept = (sum(getattr(part, name) for part in parts) for name in _COUNTS)
        return cls(samples_in, tokens_in, samples_kept, tokens_kept, _joined([part.entries for part in parts]))

    # ------------------------------------------------------------------ plain data

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the counts, the derived losses, and the entries with their indices."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "lost_samples": self.lost_samples,
            "lost_tokens": self.lost_tokens,
            "lost_share": self.lost_share,
            "entries": {
                kind: {"samples": e.samples, "lost_tokens": e.lost_tokens, "indices": e.indices.tolist()}
                for kind, e in self.entries.items()
            },
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Ledger:
        """Return the ledger that `to_dict` wrote.

        Raises:
            InputError: a count is missing, or it does not add up.
        """
        try:
            samples_in, tokens_in, samples_kept, tokens_kept = (int(plain[name]) for name in _COUNTS)
            entries = {
                kind: Entry(int(e["samples"]), int(e["lost_tokens"]), np.asarray(e["indices"], np.int64))
                for kind, e in plain["entries"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "a ledger holds counts and entries.", f"This one does not: {error!r}.", "Read it from a manifest."
            ) from error
        return cls(samples_in, tokens_in, samples_kept, tokens_kept, entries).verify()


_COUNTS = ("samples_in", "tokens_in", "samples_kept", "tokens_kept")


def _joined(parts: list[Mapping[str, Entry]]) -> dict[str, Entry]:
    kinds = sorted({kind for part in parts for kind in part})
    joined = {}
    for kind in kinds:
        same = [part[kind] for part in parts if kind in part]
        joined[kind] = Entry.of(np.concatenate([e.indices for e in same]), sum(e.lost_tokens for e in same))
    return joined
