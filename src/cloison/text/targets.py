"""Targets: which tokens the loss asks for, from the spans by role. Pure numpy, so a new ``train_on`` never tokenises again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import SpecError
from cloison.segments import IGNORE

__all__ = [
    "ROLES",
    "SAMPLE",
    "SHAPES",
    "SPAN",
    "TRAINS",
    "labels",
    "resolve_train_on",
    "role_code",
    "span_array",
    "trained_spans",
]

SPAN = np.dtype([("start", "<i4"), ("stop", "<i4"), ("role", "u1"), ("terminator", "?"), ("message", "<i4"), ("weight", "<f4")])
"""One span of tokens [start, stop): whose words they are, whether they are its terminator, of which message, how heavy."""

ROLES = ("other", "system", "user", "assistant", "tool", "prompt", "completion", "text", "given", "given-assistant")
"""Role names by code. "given" are the targets of records that came tokenised; "given-assistant" those of an assistant mask."""

SAMPLE = 255
"""The role code of a span over the whole sample that holds nothing but the sample's weight."""

SHAPES = ("messages", "pair", "text", "tokens")
"""What a record was: a chat, a prompt with its completion, a document, token ids."""

_ALIASES = {"developer": "system", "function": "tool", "ipython": "tool", "model": "assistant", "human": "user"}
TRAINS = {
    "assistant": ("assistant", "completion", "given", "given-assistant"),
    "completion": ("completion", "given", "given-assistant"),
}
_CODES = {**{name: code for code, name in enumerate(ROLES)}, **{name: ROLES.index(role) for name, role in _ALIASES.items()}}
_DEFAULTS = {"messages": "assistant", "pair": "completion", "text": "all", "tokens": "completion"}


def role_code(role: str) -> int:
    """Return the code of ``role`` in `ROLES`; roles that templates know and we do not are "other"."""
    return _CODES.get(role, 0)


def span_array(rows: list[tuple[int, int, int, bool, int, float]]) -> npt.NDArray[Any]:
    """Return ``rows`` of (start, stop, role, terminator, message, weight) as a read-only `SPAN` array."""
    spans = np.array(rows, SPAN)
    spans.setflags(write=False)
    return spans


def resolve_train_on(shape: str, train_on: str) -> str:
    """Return ``train_on`` with "auto" replaced by what it means for ``shape``.

    Raises:
        SpecError: an unknown ``train_on``, or "completion" for a chat, in which no part is called so.
    """
    if train_on == "auto":
        return _DEFAULTS[shape]
    if train_on not in ("assistant", "last-assistant", "completion", "all"):
        raise SpecError(
            "train_on is auto, assistant, last-assistant, completion or all.", f"It is {train_on!r}.", "Pick one of them."
        )
    if train_on == "completion" and shape == "messages":
        raise SpecError(
            "train_on='completion' trains what follows a prompt.",
            "The record is a chat of messages, which has no prompt column.",
            'Pass train_on="assistant" or "last-assistant".',
        )
    return train_on


def trained_spans(spans: npt.NDArray[Any], shape: str, train_on: str) -> npt.NDArray[Any]:
    """Return the rows of ``spans`` whose tokens are targets under ``train_on``, weights aside."""
    wanted = resolve_train_on(shape, train_on)
    real: npt.NDArray[Any] = spans[spans["role"] != SAMPLE]
    if wanted == "all":
        return real
    names = TRAINS["assistant" if wanted == "last-assistant" else wanted]
    kept: npt.NDArray[Any] = real[np.isin(real["role"], [ROLES.index(name) for name in names])]
    if wanted == "last-assistant" and kept.size:
        kept = kept[kept["message"] == kept["message"].max()]
    return kept


def labels(
    input_ids: npt.NDArray[Any], spans: npt.NDArray[Any], shape: str, train_on: str = "auto"
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32] | None]:
    """Return the same-index labels of one sample, and its loss weights where any differs from 1.

    ``labels[i]`` is ``input_ids[i]`` where token i is a target and -100 elsewhere; the first is -100 always. A weight of 0
    makes a token no target. Tokens outside all spans (headers, a template's own words) are targets under "all" only.

    Args:
        input_ids: int [tokens].
        spans: `SPAN` array of the sample.
        shape: one of `SHAPES`.
        train_on: "auto", "assistant" (every assistant message; the completion of a pair), "last-assistant", "completion" or
            "all".

    Raises:
        SpecError: see `resolve_train_on`.

    >>> spans = span_array([(2, 3, 3, False, 1, 1.0), (3, 4, 3, True, 1, 1.0)])
    >>> labels(np.array([7, 8, 9, 2]), spans, "messages")[0].tolist()
    [-100, -100, 9, 2]
    """
    ids = np.asarray(input_ids, np.int32)
    count = ids.size
    wanted = resolve_train_on(shape, train_on)
    kept = trained_spans(spans, shape, wanted)
    if wanted == "all":
        chosen = np.ones(count, bool)
    else:
        chosen = np.zeros(count, bool)
        for start, stop in zip(kept["start"].tolist(), kept["stop"].tolist(), strict=True):
            chosen[start:stop] = True
    weights: npt.NDArray[np.float32] | None = None
    if spans.size and (spans["weight"] != 1).any():
        weights = np.ones(count, np.float32)
        for span in kept:
            weights[span["start"] : span["stop"]] = span["weight"]
        for span in spans[spans["role"] == SAMPLE]:
            weights[span["start"] : span["stop"]] *= span["weight"]
        chosen &= weights != 0
        if (weights[chosen] == 1).all():
            weights = None
    out = np.where(chosen, ids, np.int32(IGNORE)).astype(np.int32, copy=False)
    out[:1] = IGNORE
    return out, weights
