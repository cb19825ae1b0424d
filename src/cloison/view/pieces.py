"""The text of each token, safe to show: what a block's tokens look like, in a terminal and on a page.

Text from data is hostile: control characters, terminal escape codes and marks that reorder text become visible symbols.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

__all__ = ["pieces", "visible"]

_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SYMBOLS = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_SYMBOLS |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
_SYMBOLS |= {ord(mark): f"<U+{ord(mark):04X}>" for mark in _BIDI + "\u2028\u2029\ufeff"}
del _SYMBOLS[0x0A], _SYMBOLS[0x09]

_LONGEST_CHARACTER_TOKENS = 8


def visible(text: str) -> str:
    """Return ``text`` with every character that could act (control, escape, reordering, surrogate) as a visible symbol.

    Line feeds and tabs stay; they are the caller's to draw.

    >>> visible("a\\x1b[31m\\u202eb")
    'a␛[31m<U+202E>b'
    """
    shown = text.translate(_SYMBOLS)
    if shown.isascii():
        return shown
    return "".join(
        f"<U+{ord(c):04X}>" if unicodedata.category(c) in ("Cs", "Co", "Cn", "Cf") and c != "\u200d" else c for c in shown
    )


def pieces(ids: Sequence[int], tokenizer: Any | None) -> list[str]:
    """Return the text that each token adds, [tokens] strings; "" for the later tokens of a character spread over several.

    Args:
        ids: token ids.
        tokenizer: a ``tokenizers.Tokenizer``; None (it is not there) gives the ids themselves, as "⟨17⟩".

    A token that is no whole character alone is decoded with the next ones until the characters are whole; bytes that never
    become a character show as U+FFFD. The result is already `visible`.
    """
    if tokenizer is None:
        return [f"⟨{int(token)}⟩" for token in ids]
    alone: dict[int, str] = {}
    for token in {int(token) for token in ids}:
        alone[token] = tokenizer.decode([token], skip_special_tokens=False)
    out: list[str] = []
    place = 0
    while place < len(ids):
        text, used = alone[int(ids[place])], 1
        if "\ufffd" in text:
            for more in range(2, min(_LONGEST_CHARACTER_TOKENS, len(ids) - place) + 1):
                joined = tokenizer.decode([int(token) for token in ids[place : place + more]], skip_special_tokens=False)
                if "\ufffd" not in joined:
                    text, used = joined, more
                    break
        out += [visible(text)] + [""] * (used - 1)
        place += used
    return out
