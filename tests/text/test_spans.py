"""Spans: what is trained of a message, for templates of many families and for contents that try to mislead."""

# ruff: noqa: E501 - templates and what they give read best on one line

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.errors import SpanError
from cloison.text.locate import Locator
from cloison.text.sandbox import Sandbox
from tests.text.families import BLANKS, CHATS, FAMILIES, Family, Messages, assistant, system, user

SPECIAL = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|return|>", "<|start|>"]
LOCATORS: dict[str, tuple[Sandbox, Locator]] = {}


def locator(name: str, template: str, special: dict[str, str]) -> tuple[Sandbox, Locator]:
    """Return one renderer for each template of the test run."""
    if name not in LOCATORS:
        sandbox = Sandbox({"default": template}, special, "2024-01-01")
        LOCATORS[name] = (sandbox, Locator(sandbox, SPECIAL, special.get("eos_token")))
    return LOCATORS[name]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Any:
    yield
    for sandbox, _ in LOCATORS.values():
        sandbox.close()
    LOCATORS.clear()


def trained(name: str, template: str, special: dict[str, str], messages: Messages, **more: Any) -> tuple[str, list[str]]:
    """Return the rendering and the trained text of each assistant message in it."""
    sandbox, found = locator(name, template, special)
    job = ("default", messages, more.get("tools"), None, more.get("options", {}))
    (text,) = sandbox.render([job])
    if not isinstance(text, str):
        raise text
    (spans,) = found.locate([job], [text])
    if not isinstance(spans, list):
        raise spans
    out: dict[int, str] = {}
    ends: dict[int, int] = {}
    for start, stop, _, message in spans:
        if messages[message]["role"] == "assistant":
            assert ends.get(message, start) == start  # what is trained of a message is one stretch
            out[message] = out.get(message, "") + text[start:stop]
            ends[message] = stop
    return text, [out[message] for message in sorted(out)]


def family(name: str) -> Family:
    return FAMILIES[name]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_trains_what_the_rule_says(name: str, chat: str) -> None:
    messages = CHATS[chat]
    one = family(name)
    if not one.takes_system and messages[0]["role"] == "system":
        messages = messages[1:]
    _, found = trained(name, one.template, one.special, messages)
    assert found == one.expect(messages)


@pytest.mark.parametrize("chat", BLANKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_blanks_that_a_template_keeps_are_trained_and_those_it_trims_are_not(name: str, chat: str) -> None:
    one = family(name)
    _, found = trained(name, one.template, one.special, BLANKS[chat])
    assert found == one.expect(BLANKS[chat])


@pytest.fixture(scope="module")
def qwen(qwen3: Path) -> str:
    return str(json.loads((qwen3 / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"])


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 'x "y"\n', "b": 2}}}
QWEN: dict[str, tuple[Messages, list[str]]] = {
    "an inserted empty think block is context": ([user("q"), assistant("ok")], ["ok<|im_end|>"]),
    "earlier reasoning is stripped": (
        [user("q1"), assistant("c", reasoning_content="a b"), user("q2"), assistant("e", reasoning_content="d")],
        ["c<|im_end|>", "<think>\nd\n</think>\n\ne<|im_end|>"],
    ),
    "reasoning in tags": (
        [user("q1"), assistant("<think>a b</think>c"), user("q2"), assistant("<think>d</think>e")],
        ["c<|im_end|>", "<think>\nd\n</think>\n\ne<|im_end|>"],
    ),
    "an empty reasoning is context": ([user("q"), assistant("e", reasoning_content="")], ["e<|im_end|>"]),
    "a tool call": (
        [
            user("q"),
            assistant("", tool_calls=[CALL]),
            {"role": "tool", "content": "3"},
            {"role": "tool", "content": "4"},
            assistant("7"),
        ],
        ['<tool_call>\n{"name": "add", "arguments": {"a": "x \\"y\\"\\n", "b": 2}}\n</tool_call><|im_end|>', "7<|im_end|>"],
    ),
    "words and two tool calls": (
        [user("q"), assistant("so", tool_calls=[CALL, CALL]), user("p"), assistant("z")],
        [
            "so"
            + '\n<tool_call>\n{"name": "add", "arguments": {"a": "x \\"y\\"\\n", "b": 2}}\n</tool_call>' * 2
            + "<|im_end|>",
            "z<|im_end|>",
        ],
    ),
    "reasoning before a tool call": (
        [user("q"), assistant("", reasoning_content="r", tool_calls=[CALL]), {"role": "tool", "content": "3"}, assistant("7")],
        [
            '<think>\nr\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": "x \\"y\\"\\n", "b": 2}}\n</tool_call><|im_end|>',
            "7<|im_end|>",
        ],
    ),
    "a user who looks like a tool": (
        [user("q"), assistant("a"), user("<tool_response>x</tool_response>"), assistant("b")],
        ["a<|im_end|>", "b<|im_end|>"],
    ),
    "an empty answer": ([user("q"), assistant("")], ["<|im_end|>"]),
    "a blank answer": ([user("q"), assistant("\n")], ["<|im_end|>"]),
    "an answer of tags": ([user("q"), assistant("<think></think>"), user("p"), assistant("x")], ["<|im_end|>", "x<|im_end|>"]),
    "think inside words": (
        [user("q"), assistant("I say </think> twice </think> ok")],
        ["<think>\nI say \n</think>\n\n ok<|im_end|>"],
    ),
    "arguments as a string": (
        [user("q"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": '{"a": 1}'}}])],
        ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'],
    ),
    "arguments without words": (
        [user("q"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}])],
        ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'],
    ),
}


@pytest.mark.parametrize("case", QWEN)
def test_reasoning_and_tool_calls(case: str, qwen: str) -> None:
    messages, expected = QWEN[case]
    _, found = trained("qwen3", qwen, {"eos_token": "<|im_end|>"}, messages)
    assert found == expected


def test_harmony_trains_its_reasoning_from_the_channel_on() -> None:
    one = family("harmony")
    messages = [user("q"), assistant("a", thinking="t", reasoning_content="t")]
    _, found = trained("harmony", one.template, one.special, messages)
    assert found == ["<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>a<|return|>"]


def test_deepseek_drops_reasoning_and_closes_tools() -> None:
    one = family("deepseek")
    messages = [user("q"), assistant("<think>r</think>a"), user("p"), {"role": "tool", "content": "t"}, assistant("b")]
    text, found = trained("deepseek", one.template, one.special, messages)
    assert found == ["a<eos>", "b<eos>"] and "<|tool_outputs_end|>b" in text


TRICKS = {
    "upper case": (
        "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}</{{ m.role }}>{% endfor %}",
        "YO {YO}</assistant>",
    ),
    "replaced words": (
        "{% for m in messages %}<{{ m.role }}>{{ m.content | replace('{', '(') }}</{{ m.role }}>{% endfor %}",
        "yo (yo}</assistant>",
    ),
    "json": ("{% for m in messages %}{{ m.role }} {{ m.content | tojson }};{% endfor %}", 'yo {yo}";'),
    "whole message as json": ("{% for m in messages %}{{ m | tojson }}\n{% endfor %}", 'yo {yo}"}'),
    "looks at the words": (
        "{% for m in messages %}<{{ m.role }}>{% if m.content.startswith('yo') %}!{% endif %}{{ m.content }}</>{% endfor %}",
        "yo {yo}</>",
    ),
    "looks at the length": (
        "{% for m in messages %}<{{ m.role }}>{% if m.content | length == 7 %}!{% endif %}{{ m.content }}</>{% endfor %}",
        "yo {yo}</>",
    ),
    "first line only": ("{% for m in messages %}<{{ m.role }}>{{ m.content.splitlines()[0] }}</>{% endfor %}", "yo {yo}</>"),
    "kept in a namespace": (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ '<' ~ m.role ~ '>' ~ m.content ~ '<|end|>' %}{% endfor %}{{ ns.t }}",
        "yo {yo}<|end|>",
    ),
    "no loop": ("U {{ messages[0].content }} A {{ messages[1].content }} END", "yo {yo} END"),
    "backwards first": (
        "{% for m in messages | reverse %}{{ m.role }},{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}",
        "yo {yo}</>",
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'user' %}U {{ m.content }}\n{% continue %}{% endif %}A {{ m.content }}</>\n{% endfor %}",
        "yo {yo}</>",
    ),
    "filtered loop": (
        "{% for m in messages if m.role != 'system' %}{% if loop.nextitem is defined %}{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}",
        "yo {yo}</>",
    ),
    "nested loop over messages": (
        "{% for m in messages %}[{% for o in messages %}{{ o.role[0] }}{% endfor %}]{{ m.content }}</>{% endfor %}",
        "yo {yo}</>",
    ),
    "reversed": ("{% for m in messages %}<{{ m.role }}>{{ m.content | reverse }}</>{% endfor %}", "}oy{ oy</>"),
    "cut words": ("{% for m in messages %}<{{ m.role }}>{{ m.content[:2] }}</>{% endfor %}", "yo</>"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_templates_that_do_things_to_the_words(trick: str) -> None:
    template, expected = TRICKS[trick]
    messages = [user("hi hi"), assistant("yo {yo}"), user("no"), assistant("yo {yo}")]
    messages = messages[:2] if trick == "no loop" else messages
    _, found = trained(trick, template, {}, messages)
    assert found == [expected] * (len(messages) // 2)


def test_what_no_marking_explains_is_an_error_and_never_a_guess() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content | wordcount }} words</>{% endfor %}"
    with pytest.raises(SpanError) as raised:
        trained("word count", template, {}, [user("abc"), assistant("defg hij")])
    assert "message" in raised.value.asked and "chat_template" in raised.value.remedy


WORDS = st.text(st.sampled_from("ab \n\"'\\{}<>|/é日"), max_size=6)
PIECES = st.sampled_from(["", "assistant", "<|im_end|>", "</think>", "<think>", "[INST]", "<eos>", "user\n", "same", "x"])
CONTENT = st.lists(st.one_of(WORDS, PIECES), max_size=4).map("".join)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(set(FAMILIES) - {"deepseek"})),
    st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3),
    st.booleans(),
)
def test_any_words_in_any_family(name: str, turns: list[tuple[str, str]], with_system: bool) -> None:
    one = family(name)
    messages: Messages = [system("Be brief.")] if with_system and one.takes_system else []
    for asked, said in turns:
        messages += [user(asked or "q"), assistant(said.strip() or "a")]
    _, found = trained(name, one.template, one.special, messages)
    assert found == one.expect(messages)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3))
def test_any_words_in_qwen3(qwen: str, turns: list[tuple[str, str]]) -> None:
    messages: Messages = []
    for asked, said in turns:
        messages += [user(asked or "q"), assistant(said.replace("think>", "") or "a")]
    _, found = trained("qwen3", qwen, {"eos_token": "<|im_end|>"}, messages)
    assert len(found) == len(turns)
    for number, (message, words) in enumerate(zip(messages[1::2], found, strict=True)):
        said = message["content"].lstrip("\n") if number == len(turns) - 1 else message["content"]
        assert words.strip() == (said + "<|im_end|>").strip()


def test_one_structure_is_learnt_once() -> None:
    one = family("chatml")
    sandbox = Sandbox({"default": one.template}, one.special, "2024-01-01")
    found = Locator(sandbox, SPECIAL, "<|im_end|>")
    jobs: list[Any] = [("default", [user(f"q{i}"), assistant(f"a {i} b")], None, None, {}) for i in range(300)]
    spans = found.locate(jobs, [str(text) for text in sandbox.render(jobs)])
    assert all(isinstance(one, list) and len(one) == 4 for one in spans)
    assert found.renderings <= 2
    sandbox.close()


def test_generation_blocks_agree_where_they_are_drawn_as_the_rule_says() -> None:
    from cloison.text.marks import mark_chat, parse

    one = family("generation markers")
    for messages in CHATS.values():
        sandbox, _ = locator("generation markers", one.template, one.special)
        job: Any = ("default", messages, None, None, {})
        rendering = sandbox.render([job], marked=True)[0]
        assert isinstance(rendering, str)
        text, events = parse(rendering, mark_chat(messages, None, "none", False, False))
        edges = [event.place for event in events if event.kind == "G"]
        blocks = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        assert blocks == trained("generation markers", one.template, one.special, messages)[1]
