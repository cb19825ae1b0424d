"""The block page in a real browser: hover, jump, filter, keyboard, and text that tries to be markup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cloison
from cloison.view.blocks import block_data, block_section, choose_blocks
from cloison.view.page import render_page, write_page
from tests.view.pages import browser, opened, serious

TOKENIZER = Path(cloison.__file__).parent / "story" / "tokenizer" / "tokenizer.json"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"quotes\" & 'more' </script><img src=x onerror=alert(2)>",
    "emoji 👩‍👧 🎉",
    "עברית \u202e rtl",
    "\x1b[31m\x07",
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    texts = [*HOSTILE, *(f"sample number {number} has some words" for number in range(20))]
    samples = [tokenizer.encode(text).ids for text in texts]
    blocks = cloison.pack_samples(samples, capacity=128, order="input")
    data = block_data(
        list(enumerate(blocks)), tokenizer, 128, len(blocks), findings={1: ["a planted finding <b>"]}, wrong={1: [2]}
    )
    html = render_page("hostile <title>", "& more", [block_section(data, tokenizer)], data)
    return write_page(html, tmp_path_factory.mktemp("page") / "blocks.html")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


def test_hostile_text_shows_as_text(chromium: Any, page_file: Path) -> None:
    with opened(chromium, page_file) as page:
        text = page.locator("#tokens").inner_text()
        assert "<script>alert(1)</script>" in text
        assert "onerror=alert(2)>" in text
        assert "👩‍👧 🎉" in text
        assert "<U+202E>" in text and "␛[31m␇" in text
        assert page.locator("#tokens img, #tokens script").count() == 0
        assert page.title() == "hostile <title>"


def test_hover_and_arrow_keys_say_what_a_token_is(chromium: Any, page_file: Path) -> None:
    with opened(chromium, page_file) as page:
        page.locator("#tokens span").nth(1).hover()
        said = page.locator("#panel").inner_text()
        assert said.startswith("token 1: id ") and "position 1" in said and "target (label" in said and "sample 0" in said
        page.locator("#tokens").focus()
        page.keyboard.press("Home")
        assert "token 0:" in page.locator("#panel").inner_text()
        assert "context (label −100)" in page.locator("#panel").inner_text()
        page.keyboard.press("ArrowRight")
        assert "token 1:" in page.locator("#panel").inner_text()


def test_jump_and_filter(chromium: Any, page_file: Path) -> None:
    with opened(chromium, page_file) as page:
        assert page.locator("#block-title").inner_text().startswith("Block 0:")
        page.get_by_role("button", name="Next block").click()
        assert page.locator("#block-title").inner_text().startswith("Block 1:")
        assert page.locator("#block-findings").inner_text() == "a planted finding <b>"
        assert page.locator("#tokens .wrong").count() == 1
        page.get_by_role("spinbutton", name="Sample").fill("20")
        page.get_by_role("spinbutton", name="Sample").press("Enter")
        assert "sample 20" in page.locator("#panel").inner_text()
        page.get_by_role("spinbutton", name="Block").fill("99")
        page.get_by_role("spinbutton", name="Block").press("Enter")
        assert "Block 99 is not on this page" in page.locator("#jump-said").inner_text()
        page.get_by_label("only blocks with findings").check()
        assert page.locator("#block-title").inner_text().startswith("Block 1:")


def test_what_may_attend_to_what(chromium: Any, page_file: Path) -> None:
    with opened(chromium, page_file) as page:
        own = page.locator("#attention polygon").count()
        assert "its own sample only" in page.locator("#attention-said").inner_text()
        page.get_by_role("button", name="Show a plain causal mask").click()
        assert page.locator("#attention polygon").count() == own + 1
        assert "belongs to other samples" in page.locator("#attention-said").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_serious_accessibility_finding_and_no_sideways_scroll(
    chromium: Any, page_file: Path, width: int, scheme: str
) -> None:
    with opened(chromium, page_file, width, scheme) as page:
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_blocks_that_were_asked_for_come_first_then_findings() -> None:
    assert choose_blocks(4096, 1000, budget=8192) == [0, 1]
    assert choose_blocks(4096, 1000, asked=[700], budget=8192) == [0, 700]
    assert choose_blocks(4096, 1000, found=[31, 32, 33], budget=8192) == [31, 32]
    assert choose_blocks(100_000, 3, budget=8192) == [0]
    assert choose_blocks(10, 0) == []
