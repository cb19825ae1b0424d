"""Selecting: which samples of a token store go to planning, and the account of those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError, OverlongError
from cloison.ledger import Entry, Ledger
from cloison.packing.targets import choose, first_targets, is_weighted
from cloison.planning.planner import items_of
from cloison.planning.plans import Settings
from cloison.spec import PackSpec
from cloison.store.tokens import TokenStore
from cloison.text.targets import ROLES, SHAPES, TRAINS

__all__ = ["Selection", "select", "settings_of", "source_ids"]

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Selection:
    """What goes to planning.

    Attributes:
        num_samples: that go, in source order.
        num_items: the same, and the further pieces of those that are split.
        gone: int64, rising, the source indices of those that do not go.
        ledger: from all records to these.
        weighted: a target has a weight other than 1.
    """

    num_samples: int
    num_items: int
    gone: _Ints
    ledger: Ledger
    weighted: bool

    def source_ids(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the source index of each of ``ids``, which count the samples that go."""
        return source_ids(ids, self.gone)


def source_ids(ids: npt.NDArray[Any], gone: _Ints) -> npt.NDArray[Any]:
    """Return the source index (int64) of each of ``ids``, which count the samples that are not ``gone`` (int64, rising)."""
    if not gone.size:
        return ids
    return ids.astype(np.int64) + np.searchsorted(gone - np.arange(gone.size), ids, side="right")


def settings_of(spec: PackSpec) -> Settings:
    """Return what a spec says of planning."""
    return Settings(spec.capacity, **spec.plan_options())


@dataclass(frozen=True, eq=False)
class _Part:
    """Consecutive samples, from the one of index ``begin`` on; arrays [samples]."""

    begin: int
    lengths: _Ints
    first: _Ints  # the first target of each, or its length
    cut: _Flags  # a prompt, and pieces without it
    barren: _Flags
    gone: _Flags
    weighted: bool  # a target among them has a weight other than 1


def select(store: TokenStore, skipped: Sequence[int], spec: PackSpec, put: Callable[[_Ints], object]) -> Selection:
    """Give ``put`` the lengths of the samples in which something is left to train once the overflow policy has cut.

    They come in source order, a unit of the store at a time. Empty samples pass: the planner counts them. Cost: a pass over
    spans, none over tokens; memory for a chunk of the store, and for what the ledger lists.

    Args:
        skipped: indices of the records that could not be read, rising.

    Raises:
        OverlongError: chats or pairs that would be split into pieces without their prompt, and no ``split_prompts``; or samples
            longer than a block takes, and no overflow policy, or one that leaves none.
        InputError: there is no record at all; or a sample has nothing to train and ``on_empty`` is "raise".
        SpecError: ``train_on`` means nothing for a shape that is there.
    """
    limit, most = _limit(spec), _planned_limit(spec)
    samples = tokens = kept = kept_tokens = over = fitting = further = barren_tokens = 0
    cut = longest = longest_at = 0
    barren, gone = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    silent, weighted = True, False
    for part in _parts(store, skipped, spec):
        lengths = part.lengths[~part.gone]
        put(lengths)
        samples, tokens = samples + part.lengths.size, tokens + int(part.lengths.sum())
        kept, kept_tokens = kept + lengths.size, kept_tokens + int(lengths.sum())
        over += int((lengths > most).sum())
        fitting += int(((lengths > 0) & (lengths <= most)).sum())
        further += int(np.maximum((lengths - 1) // limit, 0).sum())
        barren.append(np.flatnonzero(part.barren) + part.begin)
        gone.append(np.flatnonzero(part.gone) + part.begin)
        barren_tokens += int(part.lengths[part.barren].sum())
        silent = silent and bool((part.barren | (part.lengths == 0)).all())
        weighted = weighted or part.weighted
        if part.cut.any():
            at = int(np.argmax(np.where(part.cut, part.lengths, -1)))
            if not cut or part.lengths[at] > longest:
                longest, longest_at = int(part.lengths[at]), at + part.begin
            cut += int(part.cut.sum())
    if not samples:
        raise InputError(
            "a packed data set needs records.",
            "The sources have none: their files are empty, or have blank lines or a head alone.",
            "Look at what should have written them, and at the paths.",
        )
    if cut:
        raise _fragments(cut, longest_at, longest, samples, limit, spec)
    untrained = np.concatenate(barren)
    if spec.on_empty == "raise" and untrained.size:
        raise InputError(
            "every sample must have something to train.",
            f"Sample {int(untrained[0])} has no target under train_on={spec.train_on!r} "
            f"({untrained.size:,} of {samples:,} samples).",
            'Pass on_empty="drop" to count and drop them, another train_on, or a larger capacity.',
            samples=untrained[:5].tolist(),
        )
    if silent and (untrained.size or _has_chats(store)):
        raise _nothing_at_all(store, samples, limit, spec, _parts(store, skipped, spec))
    if over and (spec.overflow == "raise" or (spec.overflow == "drop" and not fitting)):
        all_lengths = (np.where(part.gone, 0, part.lengths) for part in _parts(store, skipped, spec))
        items_of(settings_of(spec), all_lengths)  # raises, and names samples by their place in the sources
    entries = {"skipped": Entry.of(np.array(skipped, np.int64)), "nothing_to_train": Entry.of(untrained, barren_tokens)}
    ledger = Ledger(samples, tokens, kept, kept_tokens, entries).verify()
    split = spec.overflow == "split" and spec.policy != "wrap"
    return Selection(kept, kept + further if split else kept, np.concatenate(gone), ledger, weighted)


def _limit(spec: PackSpec) -> int:
    """Return the longest piece that a block takes."""
    limit = spec.capacity // spec.align * spec.align
    return min(limit, spec.max_sample_tokens or limit)


def _planned_limit(spec: PackSpec) -> int:
    """Return the length above which the overflow policy speaks: "wrap" cuts by itself what is longer than a block."""
    if spec.policy != "wrap":
        return _limit(spec)
    return spec.max_sample_tokens if spec.max_sample_tokens and spec.overflow != "split" else np.iinfo(np.int32).max


def _parts(store: TokenStore, skipped: Sequence[int], spec: PackSpec) -> Iterator[_Part]:
    """Yield what is decided of each sample, a unit of the store at a time."""
    limit = _limit(spec)
    split = spec.overflow == "split" and spec.policy != "wrap"
    broken = np.array(skipped, np.int64)
    begin = 0
    for lengths, spans, counts, shapes in store.each_unit():
        chosen = choose(spans, counts, shapes, spec.train_on)
        first = first_targets(chosen, lengths, limit if split else None)
        over = lengths > limit
        cut = np.zeros_like(over)
        if not spec.split_prompts and (split or spec.policy == "wrap"):
            talks = np.isin(shapes, [SHAPES.index("messages"), SHAPES.index("pair")])
            cut = talks | ((shapes == SHAPES.index("tokens")) & (first > 1))
            cut &= over | (spec.policy == "wrap")
        barren = (lengths > 0) & (first >= (np.minimum(lengths, limit) if spec.overflow == "truncate" else lengths))
        if spec.overflow in ("drop", "raise"):
            barren &= ~over  # the planner speaks of those
        gone = barren.copy()
        here = broken[np.searchsorted(broken, begin) : np.searchsorted(broken, begin + lengths.size)]
        gone[here - begin] = True
        yield _Part(begin, lengths, first, cut, barren, gone, is_weighted(chosen))
        begin += lengths.size


def _nothing_at_all(store: TokenStore, samples: int, limit: int, spec: PackSpec, parts: Iterator[_Part]) -> InputError:
    """Return the error for sources of which not one sample has something to train: an empty data set is nobody's wish."""
    told = f"None of {samples:,} samples has, under train_on={spec.train_on!r}"
    late = ((int(part.first[at]), part.begin + int(at)) for part in parts for at in np.flatnonzero(part.first < part.lengths))
    nearest = min(late, default=None)
    if nearest is not None:
        return InputError(
            "a packed data set needs something to train.",
            f"{told}: their targets lie behind the limit of {limit:,} tokens (the nearest is token "
            f"{nearest[0]:,} of sample {nearest[1]}).",
            f'Raise capacity{"" if spec.max_sample_tokens is None else " or max_sample_tokens"}, or pass overflow="drop".',
            samples=[nearest[1]],
        )
    says = any(
        np.isin(spans["role"], [ROLES.index(role) for role in TRAINS["assistant"]]).any() for _, spans, *_ in store.each_unit()
    )
    if _has_chats(store) and not says:
        template = (
            "the tokenizer's chat template" if spec.chat_template is None else f"the template {spec.chat_template[:60]!r}"
        )
        return InputError(
            "a packed data set needs something to train.",
            f"{told}: {template} writes nothing of what an assistant says, or no record has an assistant's message.",
            'Look at one record and its rendering, pass another chat_template, or train_on="all".',
        )
    return InputError(
        "a packed data set needs something to train.",
        f"{told}: labels and masks are empty, weights are 0, or there is one token only.",
        "Look at the labels, masks and weights of the records, or pass another train_on.",
    )


def _has_chats(store: TokenStore) -> bool:
    return any((shapes == SHAPES.index("messages")).any() for *_, shapes in store.each_unit())


def _fragments(cut: int, at: int, longest: int, samples: int, limit: int, spec: PackSpec) -> OverlongError:
    asked = 'policy="wrap"' if spec.policy == "wrap" else 'overflow="split"'
    which = "a prompt" if spec.policy == "wrap" else f"a prompt and more than {limit:,} tokens"
    other = "another policy" if spec.policy == "wrap" else 'overflow="truncate" or "drop", or raise capacity'
    return OverlongError(
        f"{asked} would cut conversations or prompt/completion pairs into pieces without their prompt.",
        f"{cut:,} of {samples:,} samples have {which}; the longest is sample {at} with {longest:,}.",
        f"Pass split_prompts=True if that is meant, or {other}.",
        samples=[at],
    )
