"""Targets of many segments at once: what `cloison.text.targets.labels` says for one sample, without a loop over samples.

The tests hold it against that function, which is the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.segments import IGNORE
from cloison.text.targets import ROLES, SAMPLE, SHAPES, TRAINS, resolve_train_on

__all__ = ["Chosen", "SegmentTargets", "choose", "fill_targets", "first_targets", "flat_ranges", "is_weighted"]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Spans of some samples, and which of them train.

    Attributes:
        spans: structured [spans].
        owner: int64 [spans], the sample of each.
        trained: bool [spans], targets by role and message; a weight of 0 is none.
        whole: bool [samples], samples in which every token is a target.
        shares: float32 [samples], the weight of the whole sample.
    """

    spans: npt.NDArray[np.void]
    owner: npt.NDArray[np.int64]
    trained: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]
    shares: npt.NDArray[np.float32]


def flat_ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ``starts[0], starts[0] + 1, ...`` for ``lengths[0]`` entries, and so on for each."""
    before = np.cumsum(lengths) - lengths
    out: npt.NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64)
    out += np.repeat(starts - before, lengths)
    return out


def choose(
    spans: npt.NDArray[np.void], span_counts: npt.NDArray[np.int64], shapes: npt.NDArray[np.uint8], train_on: str
) -> Chosen:
    """Return which spans train under ``train_on``. Arrays as in `cloison.store.tokens.Unit`.

    Raises:
        SpecError: ``train_on`` means nothing for a shape that is there.
    """
    owner = np.repeat(np.arange(span_counts.size), span_counts)
    table = np.zeros((len(SHAPES), 256), bool)
    whole_shapes = np.zeros(len(SHAPES), bool)
    last_shapes = np.zeros(len(SHAPES), bool)
    for shape in np.unique(shapes).tolist():
        wanted = resolve_train_on(SHAPES[shape], train_on)
        whole_shapes[shape] = wanted == "all"
        last_shapes[shape] = wanted == "last-assistant"
        names = ROLES if wanted == "all" else TRAINS["assistant" if wanted == "last-assistant" else wanted]
        table[shape, [ROLES.index(name) for name in names]] = True
    of_span = shapes[owner]
    trained = table[of_span, spans["role"]]
    if last_shapes.any():
        last = np.full(span_counts.size, -1, np.int64)
        np.maximum.at(last, owner[trained], spans["message"][trained])
        trained &= ~last_shapes[of_span] | (spans["message"] == last[owner])
    shares = np.ones(span_counts.size, np.float32)
    over_sample = spans["role"] == SAMPLE
    np.multiply.at(shares, owner[over_sample], spans["weight"][over_sample])
    trained &= spans["weight"] != 0
    trained &= shares[owner] != 0
    return Chosen(spans, owner, trained, whole_shapes[shapes], shares)


def is_weighted(chosen: Chosen) -> bool:
    """Return whether a target of these samples has a weight other than 1."""
    heavy = (chosen.spans["weight"] != 1) & (chosen.spans["role"] != SAMPLE) & chosen.trained
    return bool(heavy.any() or ((chosen.shares != 1) & (chosen.shares != 0)).any())


def first_targets(chosen: Chosen, lengths: npt.NDArray[np.int64], piece: int | None = None) -> npt.NDArray[np.int64]:
    """Return int64 [samples], the index of the first target of each, or its length where it has none.

    Under "all" a message of weight 0 at the front is looked past no further than its tokens.

    Args:
        piece: samples are split into pieces of so many tokens, whose first tokens are no targets.
    """
    out = lengths.copy()
    begins = np.maximum(chosen.spans["start"], 1).astype(np.int64)
    if piece is not None:
        begins = np.where(begins % piece == 0, begins + 1, begins) if piece > 1 else chosen.spans["stop"].astype(np.int64)
    real = chosen.trained & (begins < chosen.spans["stop"])
    np.minimum.at(out, chosen.owner[real], begins[real])
    muted = np.zeros(lengths.size, bool)
    muted[chosen.owner[(chosen.spans["weight"] == 0) & (chosen.spans["role"] != SAMPLE)]] = True
    plain = chosen.whole & (chosen.shares != 0) & ~muted
    out[plain] = np.minimum(1, lengths[plain]) if piece != 1 else lengths[plain]
    for sample in np.flatnonzero(chosen.whole & (chosen.shares != 0) & muted).tolist():
        live = np.ones(int(lengths[sample]), bool)
        for span in chosen.spans[(chosen.owner == sample) & (chosen.spans["role"] != SAMPLE)]:
            live[span["start"] : span["stop"]] = span["weight"] != 0
        live[:: piece or max(1, live.size)] = False
        found = np.flatnonzero(live)
        out[sample] = found[0] if found.size else lengths[sample]
    return out


@dataclass(frozen=True, eq=False)
class SegmentTargets:
    """What `fill_targets` finds for some segments.

    Attributes:
        labels: int32 [tokens], -100 where not a target and at every segment's first token.
        first_labels: int32 [segments], the label of that first token in its whole sample.
        loss_weights: float32 [tokens], or None when not asked for.
        roles: role name to [targets, trained terminators].
    """

    labels: npt.NDArray[np.int32]
    first_labels: npt.NDArray[np.int32]
    loss_weights: npt.NDArray[np.float32] | None
    roles: dict[str, list[int]]


def fill_targets(
    input_ids: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    chosen: Chosen,
    *,
    weighted: bool,
) -> SegmentTargets:
    """Return the targets of segments, one a sample of ``chosen``: tokens ``starts`` to ``starts + lengths`` of each.

    Args:
        input_ids: int32 [tokens], the segments' tokens one after the other.
        weighted: make loss weights too.
    """
    base = np.cumsum(lengths) - lengths
    total = input_ids.size
    spans, owner = chosen.spans, chosen.owner
    begin = np.clip(spans["start"] - starts[owner], 0, lengths[owner])
    end = np.clip(spans["stop"] - starts[owner], 0, lengths[owner])
    real = begin < end
    begin, end = begin + base[owner], end + base[owner]

    live = chosen.trained & real
    edges = np.zeros(total + 1, np.int32)
    np.add.at(edges, begin[live], 1)
    np.add.at(edges, end[live], -1)
    whole = np.flatnonzero(chosen.whole & (chosen.shares != 0) & (lengths > 0))
    np.add.at(edges, base[whole], 1)
    np.add.at(edges, (base + lengths)[whole], -1)
    is_target = np.cumsum(edges[:-1]) > 0
    muted = real & (spans["weight"] == 0) & (spans["role"] != SAMPLE) & chosen.whole[owner]
    is_target[flat_ranges(begin[muted], (end - begin)[muted])] = False

    labels = np.where(is_target, input_ids, np.int32(IGNORE))
    filled = lengths > 0
    first = base[filled]
    first_labels = np.full(lengths.size, IGNORE, np.int32)
    first_labels[filled] = np.where(starts[filled] > 0, labels[first], np.int32(IGNORE))
    labels[first] = IGNORE
    is_target[first] = False
    weights = _weights(total, begin, end, real, chosen, lengths) if weighted else None
    return SegmentTargets(labels, first_labels, weights, _by_role(is_target, begin, end, real, spans))


def _weights(
    total: int,
    begin: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    real: npt.NDArray[np.bool_],
    chosen: Chosen,
    lengths: npt.NDArray[np.int64],
) -> npt.NDArray[np.float32]:
    out = np.ones(total, np.float32)
    zero = (chosen.spans["weight"] == 0) & (chosen.spans["role"] != SAMPLE) & chosen.whole[chosen.owner]
    kept = real & (chosen.trained | zero)
    sizes = (end - begin)[kept]
    out[flat_ranges(begin[kept], sizes)] = np.repeat(chosen.spans["weight"][kept], sizes)
    out *= np.repeat(chosen.shares, lengths)
    return out


def _by_role(
    is_target: npt.NDArray[np.bool_],
    begin: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    real: npt.NDArray[np.bool_],
    spans: npt.NDArray[Any],
) -> dict[str, list[int]]:
    """Return targets and trained terminators per role; targets in no span are the "template"'s."""
    before = np.concatenate([[0], np.cumsum(is_target, dtype=np.int64)])
    counted = real & (spans["role"] != SAMPLE)
    targets = np.where(counted, before[np.where(real, end, 0)] - before[np.where(real, begin, 0)], 0)
    out: dict[str, list[int]] = {}
    for code in np.unique(spans["role"][counted]).tolist():
        here = counted & (spans["role"] == code)
        trained = int(targets[here].sum())
        if trained:
            out[ROLES[code]] = [trained, int((spans["terminator"][here] & (targets[here] > 0)).sum())]
    rest = int(is_target.sum()) - sum(trained for trained, _ in out.values())
    if rest > 0:
        out["template"] = [rest, 0]
    return out
