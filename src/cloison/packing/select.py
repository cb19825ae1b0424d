"""Selecting: which samples of a token store go to planning, and the account of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError, OverlongError
from cloison.ledger import Entry, Ledger
from cloison.packing.targets import choose, first_targets, is_weighted
from cloison.spec import PackSpec
from cloison.store.tokens import TokenStore
from cloison.text.targets import ROLES, SHAPES, TRAINS

__all__ = ["Selection", "select"]


@dataclass(frozen=True, eq=False)
class Selection:
    """What goes to planning.

    Attributes:
        sample_ids: int64 [samples], in source order.
        lengths: int64 [samples], their tokens.
        ledger: from all records to these.
        all_lengths: int64 [all records], 0 for those that do not go.
        over: how many of them are longer than a block takes.
        weighted: a target has a weight other than 1.
    """

    sample_ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    all_lengths: npt.NDArray[np.int64]
    over: int
    ledger: Ledger
    weighted: bool


def select(store: TokenStore, skipped: Sequence[int], spec: PackSpec) -> Selection:
    """Return the samples of ``store`` in which something is left to train once the overflow policy has cut.

    Empty samples pass: the planner counts them. Cost: a pass over spans, none over tokens.

    Args:
        skipped: indices of the records that could not be read.

    Raises:
        OverlongError: chats or pairs that would be split into pieces without their prompt, and no ``split_prompts``.
        InputError: a sample has nothing to train and ``on_empty`` is "raise".
        SpecError: ``train_on`` means nothing for a shape that is there.
    """
    lengths = store.lengths()
    limit = spec.capacity // spec.align * spec.align
    limit = min(limit, spec.max_sample_tokens or limit)
    split = spec.overflow == "split" and spec.policy != "wrap"
    first = np.zeros(lengths.size, np.int64)
    prompted = np.zeros(lengths.size, bool)
    weighted = False
    done = 0
    for spans, counts, shapes in store.each_unit():
        here = slice(done, done + shapes.size)
        chosen = choose(spans, counts, shapes, spec.train_on)
        first[here] = first_targets(chosen, lengths[here], limit if split else None)
        talks = np.isin(shapes, [SHAPES.index("messages"), SHAPES.index("pair")])
        prompted[here] = talks | ((shapes == SHAPES.index("tokens")) & (first[here] > 1))
        weighted = weighted or is_weighted(chosen)
        done += shapes.size

    over = lengths > limit
    cuts = np.ones_like(over) if spec.policy == "wrap" else over & (spec.overflow == "split")
    if not spec.split_prompts:
        _refuse_fragments(np.flatnonzero(cuts & prompted), lengths, limit, spec)
    kept_length = np.minimum(lengths, limit) if spec.overflow == "truncate" else lengths
    barren = (lengths > 0) & (first >= kept_length)
    if spec.overflow in ("drop", "raise"):
        barren &= ~over  # the planner speaks of those
    if spec.on_empty == "raise" and barren.any():
        raise InputError(
            "every sample must have something to train.",
            f"Sample {int(np.flatnonzero(barren)[0])} has no target under train_on={spec.train_on!r} "
            f"({int(barren.sum()):,} of {lengths.size:,} samples).",
            'Pass on_empty="drop" to count and drop them, another train_on, or a larger capacity.',
        )
    if (barren | (lengths == 0)).all() and (barren.any() or _has_chats(store)):
        raise _nothing_at_all(store, lengths, first, limit, spec)
    gone = barren.copy()
    gone[list(skipped)] = True
    kept = np.flatnonzero(~gone)
    ledger = Ledger(
        int(lengths.size),
        int(lengths.sum()),
        int(kept.size),
        int(lengths[kept].sum()),
        {
            "skipped": Entry.of(np.array(skipped, np.int64)),
            "nothing_to_train": Entry.of(np.flatnonzero(barren), int(lengths[barren].sum())),
        },
    )
    some = bool(gone.any())  # else one array does for both: memory is what planning needs most
    all_lengths, lengths = (np.where(gone, 0, lengths), lengths[kept]) if some else (lengths, lengths)
    return Selection(kept, lengths, all_lengths, int(over[kept].sum()), ledger.verify(), weighted)


def _nothing_at_all(
    store: TokenStore, lengths: npt.NDArray[np.int64], first: npt.NDArray[np.int64], limit: int, spec: PackSpec
) -> InputError:
    """Return the error for sources of which not one sample has something to train: an empty data set is nobody's wish."""
    told = f"None of {lengths.size:,} samples has, under train_on={spec.train_on!r}"
    late = first < lengths
    if late.any():
        return InputError(
            "a packed data set needs something to train.",
            f"{told}: their targets lie behind the limit of {limit:,} tokens (the nearest is token {int(first[late].min()):,} "
            f"of sample {int(np.flatnonzero(late)[np.argmin(first[late])])}).",
            f'Raise capacity{"" if spec.max_sample_tokens is None else " or max_sample_tokens"}, or pass overflow="drop".',
        )
    says = any(
        np.isin(spans["role"], [ROLES.index(role) for role in TRAINS["assistant"]]).any() for spans, *_ in store.each_unit()
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
    return any((shapes == SHAPES.index("messages")).any() for _, _, shapes in store.each_unit())


def _refuse_fragments(cut: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], limit: int, spec: PackSpec) -> None:
    if not cut.size:
        return
    longest = int(cut[np.argmax(lengths[cut])])
    asked = 'policy="wrap"' if spec.policy == "wrap" else 'overflow="split"'
    which = "a prompt" if spec.policy == "wrap" else f"a prompt and more than {limit:,} tokens"
    other = "another policy" if spec.policy == "wrap" else 'overflow="truncate" or "drop", or raise capacity'
    raise OverlongError(
        f"{asked} would cut conversations or prompt/completion pairs into pieces without their prompt.",
        f"{cut.size:,} of {lengths.size:,} samples have {which}; the longest is sample {longest} with "
        f"{int(lengths[longest]):,}.",
        f"Pass split_prompts=True if that is meant, or {other}.",
    )
