"""Edges: from spans by characters to spans by tokens, without a list of all offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Row", "token_rows"]

Row = tuple[int, int, int, bool, int, float]
"""(start, stop, role, terminator, message, weight): the fields of `cloison.text.targets.SPAN`."""


def token_rows(spans: Sequence[Row], encoding: Any, characters: int, count: int) -> tuple[list[Row], list[int]]:
    """Return ``spans`` by tokens, and the tokens that lie across the outer edge of one, in order.

    A token that lies across an edge is inside; between a message's words and its terminator it is the terminator's.
    """
    rows: list[Row] = []
    across: set[int] = set()
    after = -1
    for start, stop, role, terminator, message, weight in spans:
        first, cut = _start(encoding, start, characters, count)
        last, cut_last = _stop(encoding, stop, characters, count)
        if terminator and start == after and rows and rows[-1][4] == message:
            across.discard(first if cut else -1)
            words = rows.pop()
            if words[0] < first:
                rows.append((words[0], min(words[1], first), *words[2:]))
        elif cut:
            across.add(first)
        if cut_last:
            across.add(last - 1)
        after = stop
        if first < last:
            rows.append((first, last, role, terminator, message, weight))
    return rows, sorted(across - {-1})


def _start(encoding: Any, place: int, characters: int, count: int) -> tuple[int, bool]:
    """Return the first token that ends behind the character ``place``, and whether it begins before it."""
    token = _token(encoding, place, characters)
    return (count, False) if token is None else (token, place > 0 and encoding.token_to_chars(token)[0] < place)


def _stop(encoding: Any, place: int, characters: int, count: int) -> tuple[int, bool]:
    """Return the first token that begins at the character ``place`` or behind it, and whether the one before lies across it."""
    token = _token(encoding, place, characters)
    if token is None:
        return count, False
    cut = encoding.token_to_chars(token)[0] < place
    return token + cut, cut


def _token(encoding: Any, place: int, characters: int) -> int | None:
    """Return the first token with the character at ``place``, or with the first behind it that is in any."""
    while place < characters:
        token: int | None = encoding.char_to_token(place)
        if token is not None:
            return token
        place += 1  # a blank that the tokenizer drops
    return None
