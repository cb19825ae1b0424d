"""A block in the terminal: walls before every line, nothing lost at any width, targets told from context without colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

import cloison
from cloison.samples import Sample
from cloison.view.terminal_block import block_view
from tests.terminal import shown

TOKENIZER = Path(cloison.__file__).parent / "story" / "tokenizer" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TOKENIZER))


def block_of(tokenizer, *asked: tuple[str, str], capacity: int = 400):
    samples = []
    for question, answer in asked:
        context, target = tokenizer.encode(question).ids, tokenizer.encode(answer).ids
        samples.append(Sample([*context, *target], [*[-100] * len(context), *target]))
    return cloison.pack_samples(samples, capacity=capacity, order="input")[0]


def test_a_block_at_40_columns(tokenizer) -> None:
    long = "what is the sum of all the numbers that stand in this list? "
    block = block_of(tokenizer, (long, "It is\nten."), ("yes? ", "no"), capacity=60)
    assert [line.rstrip() for line in shown(block_view(block, 0, 1, tokenizer), 40).splitlines()] == snapshot(
        [
            "block 0 of 1: 2 segments, 28 of 60",
            "tokens, 6 targets",
            "trained: between ⟦ and ⟧",
            "▌ segment 0: sample 0, 23 tokens, 5",
            "▌ trained",
            "▌ what is the sum of all the numbers",
            "▌ that stand in this list? ⟦It is",
            "▌ ten.⟧",
            "▌ segment 1: sample 1, 5 tokens, 1",
            "▌ trained",
            "▌ yes? ⟦no⟧",
            "▌ padding: 32 token positions",
        ]
    )


@settings(max_examples=25, deadline=None)
@given(words=st.lists(st.text("abc \n\tдж漢é", min_size=1, max_size=60), min_size=1, max_size=4), width=st.integers(24, 130))
def test_every_line_has_its_wall_and_no_text_is_lost(tokenizer, words: list[str], width: int) -> None:
    block = block_of(tokenizer, *[("ask", word) for word in words], capacity=4000)
    lines = shown(block_view(block, 0, 1, tokenizer), width).splitlines()
    walled = lines[next(i for i, line in enumerate(lines) if line.startswith("▌")) :]
    assert all(line.startswith("▌") for line in walled)
    found = "".join("".join(line.removeprefix("▌") for line in walled).split())
    for word in words:
        assert f"ask⟦{''.join(word.split())}⟧" in found


def test_with_colour_targets_are_strong_and_context_is_dim(tokenizer) -> None:
    out = shown(block_view(block_of(tokenizer, ("question ", "answer")), 0, 1, tokenizer), 80, colour=True)
    assert "\x1b[2;36mquestion \x1b[0m\x1b[1;36manswer\x1b[0m" in out
    assert "⟦" not in out


def test_without_a_tokenizer_ids_are_shown() -> None:
    block = cloison.pack_samples([np.arange(3, 7)], capacity=8)[0]
    out = shown(block_view(block, 0, 1, None))
    assert "⟨3⟩ ⟦⟨4⟩ ⟨5⟩ ⟨6⟩ ⟧" in out and "pass --tokenizer" in out
