"""What is wrong with the targets of one micro-batch, by what its loss trains and what its rows truly hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.findings import Finding
from cloison.proof.fit import NOTHING
from cloison.proof.loss_shapes import SOFT
from cloison.proof.targets import UNNAMED, Reading
from cloison.proof.truth import UNKNOWN, Truth
from cloison.segments import IGNORE

__all__ = ["target_findings"]

_AUXILIARY_FAINT = 1e-3
"""Padding counts as trained by an auxiliary loss above this share of what an ordinary position gets."""


@dataclass(frozen=True, eq=False)
class _View:
    """The arrays that every rule reads, all [B, T]."""

    ids: npt.NDArray[np.int64]
    reading: Reading
    truth: Truth
    trained: npt.NDArray[np.bool_]
    following: npt.NDArray[np.int64]  # the token one further on, -1 at the end of a row
    inside: npt.NDArray[np.bool_]  # the next position is of the same segment
    guess: str

    @property
    def unseen(self) -> npt.NDArray[np.bool_]:
        """Where nothing can be told."""
        return np.zeros(self.ids.shape, bool) if self.reading.unseen is None else self.reading.unseen

    def severity(self) -> Any:
        return "warning" if self.truth.guessed else "error"

    def where(self, mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
        row, position = np.argwhere(mask)[0].tolist()
        return {"row": row, "position": position, "count": int(mask.sum()), "boundaries": self.truth.source}


def target_findings(ids: npt.NDArray[np.int64], reading: Reading, truth: Truth, *, sure: bool = False) -> list[Finding]:
    """Return what is wrong with ``reading``, the targets of the batch ``ids`` [B, T].

    Args:
        sure: boundaries that are a guess are as good as known (the trainer says that it packs), so that what crosses them is
            an error and not a warning.
    """
    bad = int((~np.isfinite(reading.weights)).sum())
    trained = reading.tokens != NOTHING
    if bad or (trained.any() and not np.isfinite(reading.loss)):
        what = f"The gradient of the loss is not finite at {bad} positions" if bad else f"The loss is {reading.loss}"
        return [
            Finding(
                "not_finite",
                "error",
                f"{what}, with logits that are all zero.",
                "Look for a division by a count of targets that is zero, or a mask that multiplies where it should select.",
            )
        ]
    if reading.beside_input:
        return []
    following = np.full_like(ids, NOTHING)
    following[:, :-1] = ids[:, 1:]
    inside = np.zeros(ids.shape, bool)
    inside[:, :-1] = (truth.segment_ids[:, :-1] == truth.segment_ids[:, 1:]) & (truth.segment_ids[:, :-1] != 0)
    guess = " (boundaries are a guess)" if truth.guessed else ""
    if sure and truth.guessed:
        truth = Truth(truth.segment_ids, truth.source, False, truth.labels, truth.ends, truth.padding_known)
    view = _View(ids, reading, truth, trained, following, inside, guess)
    if not trained.any():
        return list(_unseen(view)) if view.unseen.any() else [_nothing(view)]
    if reading.shape.name == SOFT:
        return [
            Finding(
                "soft_targets",
                "note",
                "The loss pulls each position to many tokens (distillation, or targets that are no tokens): which ones was not "
                "tested.",
            )
        ]
    hidden = _hides(view)
    if hidden.any():
        return [*_masked(view, hidden), *_shape(view)]
    shift, found = _shift(view)
    if shift == 1:
        found += [*_wrong_tokens(view), *_boundary(view), *_expected(view)]
    return [*found, *_padding(view), *_terminators(view), *_untrained(view), *_shape(view), *_auxiliary(view)]


def _nothing(view: _View) -> Finding:
    return Finding(
        "nothing_trained",
        "error",
        f"The loss trains nothing in this batch of {int((view.truth.segment_ids != 0).sum())} tokens"
        + ("." if np.isfinite(view.reading.loss) else f" (and is {view.reading.loss}: a division by no targets)."),
        "Look at the labels: they are -100 everywhere (a prompt that fills the row, an answer template that never matches).",
    )


def _matches(view: _View, distance: int) -> npt.NDArray[np.bool_]:
    """Return bool [B, T]: the target is the token ``distance`` further on, identical rows of the head allowed for."""
    moved = np.full_like(view.ids, NOTHING)
    if distance < view.ids.shape[1]:
        moved[:, : view.ids.shape[1] - distance] = view.ids[:, distance:]
    equal = (view.reading.tokens == moved) | ((view.reading.ties > 0) & (moved != NOTHING))
    return np.asarray(view.trained & equal)


def _shift(view: _View) -> tuple[int, list[Finding]]:
    """Return how far ahead of their position the targets lie, and what is wrong with that."""
    share = {distance: float(_matches(view, distance)[view.trained].mean()) for distance in (1, 2, 0)}
    shift = max(share, key=lambda distance: share[distance])
    if share[shift] <= share[1] or share[shift] < 0.5:
        return 1, []
    count = int(_matches(view, shift).sum())
    total = int(view.trained.sum())
    where = view.where(_matches(view, shift))
    if shift == 2:
        message = f"{count} of {total} targets are the token after the next one: labels are shifted twice."
        fix = "Pass labels with the index of input_ids (the model shifts), or pass shift_labels beside labels."
        return shift, [Finding("shifted_twice", "error", message, fix, where)]
    message = f"{count} of {total} targets are the token of their own position: labels are not shifted."
    fix = "Shift labels by one to the left in the loss, or let the model compute its own loss."
    return shift, [Finding("not_shifted", "error", message, fix, where)]


def _hides(view: _View) -> npt.NDArray[np.bool_]:
    """Return bool [B, T]: where the batch hides the token that is asked for at its own place, as masked modelling does.

    Nowhere, unless one id (the mask token) stands in most of the places that ask for another, and most do not ask for the next.
    """
    hides = view.trained & (view.reading.tokens != view.ids)
    if not hides.any() or _matches(view, 1)[view.trained].mean() > 0.5:
        return np.zeros(view.ids.shape, bool)
    ids, counts = np.unique(view.ids[hides], return_counts=True)
    mask = ids[counts.argmax()]
    one = hides.sum() > 1 and counts.max() >= 0.5 * hides.sum() and not (view.reading.tokens == mask).any()
    return hides if one else np.zeros(view.ids.shape, bool)


def _masked(view: _View, hidden: npt.NDArray[np.bool_]) -> Iterator[Finding]:
    yield Finding(
        "masked_targets",
        "note",
        f"Targets are the tokens of their own places, which the batch hides at {int(hidden.sum())} of "
        f"{int(view.trained.sum())}: masked modelling. Nothing is shifted, and no boundary can be crossed.",
        "",
        view.where(hidden),
    )
    padded = view.trained & (view.truth.segment_ids == 0)
    if view.truth.padding_known and padded.any():
        yield Finding(
            "padding_trained",
            view.severity(),
            f"{int(padded.sum())} positions of padding are trained{view.guess}.",
            "Set the labels of padding to -100, by place and not by id.",
            view.where(padded),
        )


def _wrong_tokens(view: _View) -> Iterator[Finding]:
    wrong = view.trained & view.inside & ~_matches(view, 1)
    if wrong.any():
        row, position = np.argwhere(wrong)[0].tolist()
        yield Finding(
            "wrong_token",
            "error",
            f"{int(wrong.sum())} of {int(view.trained.sum())} targets are not the token that follows in their sample. First: "
            f"row {row}, position {position} asks for {int(view.reading.tokens[row, position])}, and "
            f"{int(view.following[row, position])} follows.",
            "Build labels from the same ids that are fed, in the same order and with the same padding.",
            view.where(wrong),
        )


def _boundary(view: _View) -> Iterator[Finding]:
    segments = view.truth.segment_ids
    last = (segments != 0) & ~view.inside
    after = np.zeros_like(segments)
    after[:, :-1] = segments[:, 1:]
    after[:, -1] = 0 if view.truth.guessed else 1  # nothing follows the end of a row, unless the row is a cut of a stream
    crossing = view.trained & last & (after != 0)
    if crossing.any():
        boundaries = int((last & (after != 0)).sum())
        yield Finding(
            "boundary_target",
            view.severity(),
            f"The last token of a sample is trained to predict what follows it (the next sample's first token), at "
            f"{int(crossing.sum())} of {boundaries} boundaries{view.guess}.",
            "Set the label of the first token of every sample to -100.",
            view.where(crossing),
        )


def _expected(view: _View) -> Iterator[Finding]:
    """Compare with the labels of the samples, where these are known."""
    if view.truth.labels is None:
        return
    wanted = np.full(view.ids.shape, UNKNOWN, np.int64)
    wanted[:, :-1] = np.where(view.inside[:, :-1], view.truth.labels[:, 1:], UNKNOWN)
    known = wanted != UNKNOWN
    extra = known & (wanted == IGNORE) & view.trained
    if extra.any():
        prompts = int((known & (wanted == IGNORE)).sum())
        yield Finding(
            "prompt_trained",
            "error",
            f"{int(extra.sum())} of {prompts} tokens that the samples exclude (prompts, context) are trained.",
            "Carry the samples' labels (or completion_mask, assistant_masks) through packing and collating.",
            view.where(extra),
        )
    missing = known & (wanted != IGNORE) & ~view.trained & ~view.unseen
    if not missing.any():
        return
    ends = view.inside & np.isin(view.following, list(view.truth.ends))
    ends[:, :-1] |= view.inside[:, :-1] & ~view.inside[:, 1:]
    if not (missing & ~ends).any() and not (view.trained & ends).any():
        yield _never_stops(view, missing)
        return
    yield Finding(
        "target_missing",
        "error",
        f"{int(missing.sum())} of {int((known & (wanted != IGNORE)).sum())} tokens that the samples train are not trained.",
        "Look for masks by token id (padding, special tokens), wrong offsets, or labels cut with another length than ids.",
        view.where(missing),
    )


def _padding(view: _View) -> Iterator[Finding]:
    segments = view.truth.segment_ids
    if not view.truth.padding_known:
        return
    after = np.zeros_like(segments)
    after[:, :-1] = segments[:, 1:]
    padded = view.trained & ((segments == 0) | ((after == 0) & ~view.inside))
    padded[:, -1] &= segments[:, -1] == 0
    if padded.any():
        yield Finding(
            "padding_trained",
            view.severity(),
            f"{int(padded.sum())} positions train padding, or are trained to predict it{view.guess}.",
            "Set the labels of padding to -100, by place and not by id.",
            view.where(padded),
        )


def _terminators(view: _View) -> Iterator[Finding]:
    """An id that ends a text follows trained tokens, and is never a target itself; for batches whose labels nobody knows."""
    if view.truth.labels is not None or not view.truth.ends:
        return
    is_end = np.isin(view.following, list(view.truth.ends)) & view.inside
    wanted = np.zeros(view.ids.shape, bool)
    wanted[:, 1:] = is_end[:, 1:] & view.trained[:, :-1] & ~view.unseen[:, 1:]
    if wanted.any() and not (view.trained & is_end).any():
        yield _never_stops(view, wanted)


def _never_stops(view: _View, places: npt.NDArray[np.bool_]) -> Finding:
    named = ", ".join(map(str, sorted({int(i) for i in view.following[places]})[:4]))
    return Finding(
        "terminator_never_trained",
        "error",
        f"What ends a text (id {named}) is never a target, at {int(places.sum())} places after trained tokens: the model does "
        "not learn to stop.",
        "Mask padding by place, not by id (do padding and the end share one?), and end the trained span after the terminator.",
        view.where(places),
    )


def _untrained(view: _View) -> Iterator[Finding]:
    empty = total = 0
    for row, spans in enumerate(view.truth.spans()):
        for start, stop in spans:
            if stop - start > 1:
                total += 1
                empty += not view.trained[row, start : stop - 1].any()
    if empty and not view.truth.guessed:
        yield Finding(
            "sample_without_targets",
            "note",
            f"{empty} of {total} samples of more than one token train nothing.",
            "Drop them before packing, or look at their labels.",
            {"count": empty},
        )


def _shape(view: _View) -> Iterator[Finding]:
    shape = view.reading.shape
    if shape.name not in ("cross entropy", SOFT, "nothing", UNNAMED):
        details = [f"smoothing {shape.smoothing:.3g}"] if shape.smoothing else []
        details += [f"z coefficient {shape.z:.3g}"] if shape.z else []
        said = {
            "confidence-weighted": "The weight of a target depends on the model's confidence (focal, DFT and the like).",
            "other": "The loss has a form of its own: its targets were read, its further terms were not recognised.",
        }.get(shape.name, f"The loss has {shape.name} ({', '.join(details)}).")
        yield Finding("loss_form", "note", said, "", {"name": shape.name, "smoothing": shape.smoothing, "z": shape.z})
    negative = view.trained & (view.reading.weights < 0)
    if negative.any():
        yield Finding(
            "negative_weights",
            "note",
            f"{int(negative.sum())} of {int(view.trained.sum())} targets have a negative weight: the loss pushes them down.",
            "",
            view.where(negative),
        )
    yield from _unseen(view)
    tied = view.trained & (view.reading.ties > 0)
    if tied.any():
        yield Finding(
            "ambiguous_tokens",
            "note",
            f"{int(tied.sum())} targets cannot be told from others: their rows of the head are identical.",
            "",
            view.where(tied),
        )


def _unseen(view: _View) -> Iterator[Finding]:
    if view.unseen.any():
        yield Finding(
            "unseen_targets",
            "note",
            f"At {int(view.unseen.sum())} positions the model was so sure of a token that its gradient does not tell what is "
            "trained there.",
            "Audit with a trainer callback or read_targets: substituted logits have no such blind spot.",
            view.where(view.unseen),
        )


def _auxiliary(view: _View) -> Iterator[Finding]:
    found = view.reading.auxiliary
    if found is None:
        return
    padding = view.truth.segment_ids == 0
    if view.truth.padding_known and padding.any() and (~padding).any():
        level = float(np.median(found[~padding]))
        touched = padding & (found > _AUXILIARY_FAINT * max(level, 1e-300))
        if touched.any():
            yield Finding(
                "auxiliary_over_padding",
                "error",
                f"The auxiliary loss of the routers counts {int(touched.sum())} padding positions as tokens.",
                "Flatten rows instead of padding them, or pass the 2-D mask that the auxiliary loss reads.",
                view.where(touched),
            )
