"""Messages that a chat template passes over: refused where their role is none that it knows, with the role that it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloison import encode
from cloison.errors import RecordError

QWEN = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content|trim + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
EVERY = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim + '<|im_end|>\n' }}{% endfor %}"


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


@pytest.mark.parametrize(
    ("turns", "said", "remedy"),
    [
        (
            (("user", "hi"), ("Assistant", "yo yo"), ("assistant", "hello")),
            "messages[1] has the role 'Assistant'",
            "'assistant'",
        ),
        ((("human", "hello there"), ("assistant", "yo")), "messages[0] has the role 'human'", "'user'"),
        ((("developer", "a cat"), ("user", "hi"), ("assistant", "yo")), "messages[0] has the role 'developer'", "'system'"),
        (
            (("user", "hi"), ("critic", "a mat"), ("assistant", "yo")),
            "messages[1] has the role 'critic'",
            "a role that it knows",
        ),
    ],
)
def test_a_message_of_an_unknown_role_is_not_lost_in_silence(
    turns: tuple[tuple[str, str], ...], said: str, remedy: str, small: Path
) -> None:
    with pytest.raises(RecordError) as caught:
        encode(chat(*turns), small, chat_template=QWEN)
    assert said in caught.value.asked and remedy in caught.value.remedy
    assert encode(chat(*turns), small, chat_template=EVERY).num_targets


def test_what_a_template_leaves_out_of_the_roles_that_it_knows_is_its_own_choice(small: Path) -> None:
    last = "{% for m in messages[-2:] %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    turns = (("system", "a cat"), ("user", "hi"), ("assistant", "yo"))
    assert encode(chat(*turns), small, chat_template=last).num_targets
    assert encode(chat(("Critic", "  "), *turns[1:]), small, chat_template=QWEN).num_targets  # nothing is lost of a blank


@pytest.mark.parametrize("use", ["m.content.startswith('a')", "m.role + m.content"])
def test_parts_where_a_template_takes_texts_are_named(use: str, small: Path) -> None:
    parts = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "assistant", "content": "yo"}]
    }
    with pytest.raises(RecordError, match="join the texts of the parts") as caught:
        encode(parts, small, chat_template="{% for m in messages %}{{ " + use + " }}{% endfor %}")
    assert "must render the record" in caught.value.asked
    with pytest.raises(RecordError) as other:
        encode(parts, small, chat_template="{{ raise_exception('no') }}")
    assert "join the texts" not in other.value.remedy
