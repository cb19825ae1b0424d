"""Rendering: what the sandbox gives is what transformers' apply_chat_template gives, and hostile templates are stopped."""

# ruff: noqa: E501

from __future__ import annotations

import datetime
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cloison.errors import TemplateError
from cloison.spec import PackSpec
from cloison.text.encoder import Encoder
from cloison.text.sandbox import Sandbox
from cloison.text.shapes import read_record, recognise
from tests.text.families import BLANKS, CHATS, FAMILIES, HARMONY, assistant, system, user

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "a <b> & 'c'",
            "parameters": {"type": "object", "properties": {"é": {"type": "integer"}}},
        },
    }
]
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"é": 1, "s": "<\"'&>"}}}
MORE: dict[str, dict[str, Any]] = {
    "tools": {
        "messages": [
            user("q"),
            assistant("", tool_calls=[CALL]),
            {"role": "tool", "content": "3", "tool_call_id": "1"},
            assistant("3"),
        ],
        "tools": TOOLS,
    },
    "no content": {
        "messages": [
            user("q"),
            assistant(None, tool_calls=[CALL]),
            {"role": "tool", "content": "3"},
            {"role": "tool", "content": "4"},
            assistant("3"),
        ]
    },
    "reasoning": {"messages": [user("q"), assistant("a", reasoning_content="r"), user("p"), assistant("b", thinking="s")]},
    "tags": {"messages": [user("q"), assistant("<think>\nr\n</think>\n\na"), user("p"), assistant("<think>s</think>b")]},
    "parts": {"messages": [user([{"type": "text", "text": " q "}]), assistant([{"type": "text", "text": "a"}])]},
}
RECORDS = {name: {"messages": messages} for name, messages in (CHATS | BLANKS).items()} | MORE


@pytest.fixture(scope="module")
def templates(qwen3: Path) -> dict[str, tuple[str, dict[str, str]]]:
    config = json.loads((qwen3 / "tokenizer_config.json").read_text(encoding="utf-8"))
    found = {name: (family.template, family.special) for name, family in FAMILIES.items()}
    return found | {"qwen3": (config["chat_template"], {"eos_token": "<|im_end|>"})}


@pytest.mark.parametrize("name", [*FAMILIES, "qwen3"])
@pytest.mark.parametrize("prompt", [False, True])
def test_renders_as_transformers_does(name: str, prompt: bool, templates: dict[str, tuple[str, dict[str, str]]]) -> None:
    from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

    template, special = templates[name]
    today = datetime.date.today().isoformat()
    examples = {key: read_record(record, recognise(record)) for key, record in RECORDS.items()}
    sandbox = Sandbox({"default": template}, special, today)
    jobs = [("default", one.messages, one.tools, None, {"add_generation_prompt": prompt}) for one in examples.values()]
    rendered = 0
    for (key, record), ours in zip(RECORDS.items(), sandbox.render(jobs), strict=True):
        try:
            (theirs,), _ = render_jinja_template(
                conversations=[_normalize_chat_messages(record["messages"])],
                tools=record.get("tools"),
                chat_template=template,
                add_generation_prompt=prompt,
                **special,
            )
        except Exception:
            assert isinstance(ours, TemplateError), key
            continue
        assert ours == theirs, key
        rendered += 1
    sandbox.close()
    assert rendered >= 6


def test_apply_chat_template_of_a_real_tokenizer(qwen3: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(qwen3))
    encoder = Encoder(qwen3, PackSpec(capacity=8))
    records = list(RECORDS.values())
    for key, record, ours in zip(RECORDS, records, encoder.encode_batch(records), strict=True):
        try:
            theirs = tokenizer.apply_chat_template(record["messages"], tools=record.get("tools"))["input_ids"]
        except Exception:
            assert not hasattr(ours, "input_ids"), key
            continue
        assert ours.input_ids.tolist() == theirs, key  # type: ignore[union-attr]
    encoder.close()


def test_today_is_the_date_of_the_spec(qwen3: Path) -> None:
    specs = [PackSpec(capacity=8, date=day, chat_template=HARMONY) for day in ("2024-02-29", "2024-03-01")]
    encoders = [Encoder(qwen3, spec) for spec in specs]
    first, second = (encoder.encode_batch([{"messages": CHATS["one turn"]}])[0] for encoder in encoders)
    assert "Current date: 2024-02-29" in encoders[0].vocabulary.backend.decode(first.input_ids.tolist())  # type: ignore[union-attr]
    assert "Current date: 2024-03-01" in encoders[0].vocabulary.backend.decode(second.input_ids.tolist())  # type: ignore[union-attr]
    assert encoders[0].needs_date and encoders[0].token_key != encoders[1].token_key
    for encoder in encoders:
        encoder.close()


def test_a_template_without_a_date_has_one_key_for_all_days(qwen3: Path) -> None:
    keys = {Encoder(qwen3, PackSpec(capacity=8, date=day)).token_key for day in ("2024-02-29", "2024-03-01")}
    assert len(keys) == 1


def limited(template: str, **limits: Any) -> tuple[Any, Any]:
    """Return what a chat at fault gives, and what an ordinary one after it gives."""
    sandbox = Sandbox({"bad": template, "good": "{{ messages[0].content }}"}, {}, "2024-01-01", **limits)
    chat = CHATS["one turn"]
    first, second = sandbox.render([("bad", chat, None, None, {}), ("good", chat, None, None, {})])
    sandbox.close()
    return first, second


def test_an_endless_template_is_stopped_and_the_next_record_goes_on() -> None:
    loop = (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
    )
    first, second = limited(loop, seconds=0.5)
    assert isinstance(first, TemplateError) and "more than 0.5 s" in first.found
    assert second == "hi"


def test_a_renderer_that_does_not_answer_is_killed_and_started_anew() -> None:
    sandbox = Sandbox({"default": "{{ messages[0].content }}"}, {}, "2024-01-01", seconds=0.1, patience=2.0)
    jobs: list[Any] = [("default", CHATS["one turn"], None, None, {})] * 2
    assert sandbox.render(jobs) == ["hi", "hi"]
    process = sandbox._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert sandbox.render(jobs) == ["hi", "hi"]
    assert process.poll() is not None and sandbox._process is not process
    sandbox.close()


def test_a_huge_output_is_stopped() -> None:
    first, second = limited("{{ 'x' * 5000 }}", characters=1000)
    assert isinstance(first, TemplateError) and "5000 characters" in first.found and second == "hi"


def test_a_template_that_fills_memory_is_stopped() -> None:
    first, second = limited("{{ messages[0].content * 9999999999 }}", limit_bytes=1 << 30)
    assert isinstance(first, TemplateError) and "memory" in first.found and second == "hi"


def test_the_renderer_sees_no_secrets_and_writes_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import subprocess
    import sys

    from cloison.text import renderer
    from cloison.text.sandbox import _environment

    monkeypatch.setenv("SOME_TOKEN", "secret")
    assert "SOME_TOKEN" not in _environment()
    script = (
        f"import os, sys; sys.path.insert(0, {str(Path(renderer.__file__).parent)!r}); import renderer; renderer._fence(1 << 32)\n"
        f"file = os.open({str(tmp_path / 'out')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "try:\n    os.write(file, b'x')\nexcept OSError:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "refused"


def test_a_syntax_error_is_an_error_of_each_record() -> None:
    first, second = limited("{% for %}")
    assert isinstance(first, TemplateError) and "TemplateSyntaxError" in first.found and second == "hi"


def test_named_templates(qwen3: Path, tmp_path: Path) -> None:
    config = json.loads((qwen3 / "tokenizer_config.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").symlink_to(qwen3 / "tokenizer.json")
    config["chat_template"] = [
        {"name": "default", "template": "D{{ messages[0].content }}"},
        {"name": "tool_use", "template": "T{{ messages[0].content }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    record = {"messages": [user("hi")]}
    texts = []
    for spec, more in (
        (PackSpec(capacity=8), {}),
        (PackSpec(capacity=8), {"tools": TOOLS}),
        (PackSpec(capacity=8, chat_template="tool_use"), {}),
    ):
        encoder = Encoder(tmp_path, spec)
        (done,) = encoder.encode_batch([record | more])
        texts.append(encoder.vocabulary.backend.decode(done.input_ids.tolist()))  # type: ignore[union-attr]
        encoder.close()
    assert texts == ["Dhi", "Thi", "Thi"]
    (tmp_path / "chat_template.jinja").write_text("J{{ messages[0].content }}")
    encoder = Encoder(tmp_path, PackSpec(capacity=8))
    (done,) = encoder.encode_batch([record])
    assert encoder.vocabulary.backend.decode(done.input_ids.tolist()) == "Jhi"  # type: ignore[union-attr]


def test_a_bare_system_prompt_renders(qwen3: Path) -> None:
    encoder = Encoder(qwen3, PackSpec(capacity=8))
    (done,) = encoder.encode_batch([{"messages": [system("only")]}])
    assert not (done.spans["role"] == 3).any()  # type: ignore[union-attr]


ORPHAN = """
import sys, time
from cloison.text.sandbox import Sandbox
sandbox = Sandbox({"default": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"}, {}, "2024-01-01", seconds=2)
print(sandbox._process.pid, flush=True)
sandbox.render([("default", [], None, None, {})])
"""


def test_a_renderer_does_not_outlive_a_parent_that_was_killed() -> None:
    import subprocess
    import sys
    import time

    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            break
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break  # gone, and not yet collected
        time.sleep(0.1)
    else:
        pytest.fail("the renderer still runs")
