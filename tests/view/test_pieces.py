"""The text of tokens, and what must never act in a terminal or on a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloison
from cloison.view.pieces import pieces, visible

TOKENIZER = Path(cloison.__file__).parent / "story" / "tokenizer" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TOKENIZER))


@given(st.text())
def test_nothing_visible_can_act(text: str) -> None:
    shown = visible(text)
    assert not any(c < " " and c not in "\n\t" for c in shown)
    assert not any(
        "\x7f" <= c <= "\x9f" or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c" for c in shown
    )
    shown.encode("utf-8")  # no surrogate is left


def test_escape_codes_and_reordering_show_as_symbols() -> None:
    assert visible("\x1b]0;title\x07") == "␛]0;title␇"
    assert visible("a\u202eb\x9b") == "a<U+202E>b\\x9b"
    assert visible("plain\n\tтекст 漢字 👩\u200d👧") == "plain\n\tтекст 漢字 👩\u200d👧"


def test_pieces_join_to_the_text_and_characters_are_whole(tokenizer) -> None:
    text = "def f():\n\treturn 'héllo 漢字 👩‍👧 𒀀'  # ok"
    ids = tokenizer.encode(text).ids
    found = pieces(ids, tokenizer)
    assert len(found) == len(ids)
    assert "".join(found) == text
    assert "" in found  # a character spread over tokens shows at its first
    assert not any("\ufffd" in piece for piece in found)


def test_bytes_that_never_become_a_character_are_said(tokenizer) -> None:
    ids = tokenizer.encode("漢").ids[:1]
    assert pieces(ids, tokenizer) == ["\ufffd"]


def test_without_a_tokenizer_ids_are_shown() -> None:
    assert pieces([5, 17], None) == ["⟨5⟩", "⟨17⟩"]


def test_special_tokens_are_shown(tokenizer) -> None:
    end = tokenizer.token_to_id("<|end|>")
    assert pieces([end], tokenizer) == ["<|end|>"]
