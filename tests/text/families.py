"""Chat templates in the manner of real families, each with what it takes to say by hand what is trained of a chat.

They are written for these tests from how the families behave: where they put a BOS, which turn they move, what they trim,
strip, rename, merge, and how a turn ends. ``expect(messages)`` gives the trained text of each assistant message, in order, for chats
of plain strings (no tools, no reasoning fields).
"""

# ruff: noqa: E501 - templates are as long as they are

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, the trained text of a chat, and whether it takes a system message."""

    template: str
    expect: Callable[[Messages], list[str]]
    special: dict[str, str] = field(default_factory=dict)
    takes_system: bool = True


def each(ending: str, last: str | None = None, trim: bool = False, before: str = "") -> Callable[[Messages], list[str]]:
    """Return an ``expect`` for templates that write content and ending, with another ending for the chat's last message."""

    def expect(messages: Messages) -> list[str]:
        out = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                content = message["content"].strip() if trim else message["content"]
                end = last if last is not None and index == len(messages) - 1 else ending
                out.append((before + content + end).rstrip())
        return out

    return expect


def answers_only(messages: Messages) -> list[str]:
    """Return the trained text of templates that drop reasoning in tags from all turns."""
    return [m["content"].split("</think>")[-1] + "<eos>" for m in messages if m["role"] == "assistant"]


CHATML_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are helpful.' }}{%- endif %}
    {{- '\\n\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Today Date: ' + date_string + '\\n\\n' }}
{{- system_message }}
{{- '<|eot_id|>' }}
{%- if tools %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception('no first user message to put tools into') }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
    {{- first_user_message + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception('only single tool calls') }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- '}' }}{{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined or loop.index0 == loop.length - 2 and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('only user and assistant roles') }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = 'model' -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)

DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, is_tool=false, system_prompt='') -%}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}
{{- bos_token }}{{- ns.system_prompt }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.is_tool = false -%}
        {{- '<|User|>' + message['content'] }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {%- if ns.is_tool %}
            {{- '<|tool_outputs_end|>' + message['content'] + eos_token }}
            {%- set ns.is_tool = false -%}
        {%- else %}
            {%- set content = message['content'] %}
            {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
            {{- '<|Assistant|>' + content + eos_token }}
        {%- endif %}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {%- if ns.is_tool %}{{- '\\n<|tool_output|>' + message['content'] }}{%- else %}{{- '<|tool_outputs|><|tool_output|>' + message['content'] }}{%- endif %}
        {%- set ns.is_tool = true -%}
    {%- endif %}
{%- endfor -%}
{% if ns.is_tool %}{{ '<|tool_outputs_end|>' }}{% endif %}
{% if add_generation_prompt and not ns.is_tool %}{{ '<|Assistant|><think>\\n' }}{% endif %}
"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

MARKED = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

REPEATS = """\
{{- 'Summary:' }}{%- for message in messages %}{{- ' ' + message.role }}{%- endfor %}{{- '\\n' }}
{%- for message in messages %}
    {{- '[' + message.role + '] ' + message.content }}
    {%- if message.role == 'assistant' %}{{- ' (that is: ' + message.content + ')' }}{%- endif %}
    {{- ' [end]\\n' }}
{%- endfor %}
"""

HARMONY = """\
{{- '<|start|>system<|message|>You are a model.\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if message.thinking is defined and loop.last %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
        {%- if loop.last and not add_generation_prompt %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
    {%- elif message.role == 'system' -%}
        {{- '<|start|>developer<|message|># Instructions\\n\\n' + message.content + '<|end|>' }}
    {%- else -%}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' }}{%- endif -%}
"""

VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{{ messages[0]['content'] + ' ' }}"
    "{% else %}{% set loop_messages = messages %}{{ 'A chat. ' }}{% endif %}{% for message in loop_messages %}"
    "{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ASSISTANT:' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)

BY_INDEX = """\
{%- for i in range(messages | length) %}
    {%- set message = messages[i] %}
    {{- '<' + message.role + '>' + message.content }}
    {%- set after = messages[i + 1] if i + 1 < messages | length else none %}
    {{- '</end>' if after is none or after.role != message.role else '</more>' }}
{%- endfor %}
"""

ENDS_NEXT = """\
{%- for message in messages %}
    {%- if not loop.first %}{{- eos_token + '\\n' }}{%- endif %}
    {{- message.role + ': ' + message.content }}
{%- endfor %}
{{- eos_token }}
"""

MACROS = """\
{%- macro turn(message) %}{{- '<<' ~ message.role ~ '>>' }}{{- message.content }}{{- '<</' ~ message.role ~ '>>\\n' }}{%- endmacro %}
{%- set ns = namespace(text='') %}
{%- for message in messages %}{%- set part %}{{- turn(message) }}{%- endset %}{{- part }}{%- endfor %}
"""

PAIRS = """\
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- 'Q: ' + message.content }}
        {%- if not loop.last and messages[loop.index0 + 1].role == 'assistant' %}{{- '\\nA: ' + messages[loop.index0 + 1].content + eos_token + '\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
"""

ENDS = {"bos_token": "<bos>", "eos_token": "<eos>"}

FAMILIES = {
    "chatml": Family(CHATML_TOOLS, each("<|im_end|>"), {"eos_token": "<|im_end|>"}),
    "llama": Family(LLAMA, each("<|eot_id|>", trim=True), {"bos_token": "<bos>", "eos_token": "<|eot_id|>"}),
    "mistral": Family(MISTRAL, each("<eos>"), ENDS),
    "gemma": Family(GEMMA, each("<end_of_turn>", trim=True), ENDS),
    "phi": Family(PHI, each("<|end|>", last="<|end|>\n<eos>"), ENDS),
    "deepseek": Family(DEEPSEEK, answers_only, ENDS),
    "zephyr": Family(ZEPHYR, each("<eos>"), ENDS),
    "generation markers": Family(MARKED, each("<|im_end|>"), {"eos_token": "<|im_end|>"}),
    "repeats": Family(
        REPEATS,
        lambda messages: [f"{m['content']} (that is: {m['content']}) [end]" for m in messages if m["role"] == "assistant"],
    ),
    "harmony": Family(HARMONY, each("<|end|>", last="<|return|>")),
    "vicuna": Family(VICUNA, each("<eos>"), ENDS),
    "by index": Family(BY_INDEX, each("</end>")),
    "ends in the next turn": Family(ENDS_NEXT, each("<eos>"), ENDS),
    "macros": Family(MACROS, each("<</assistant>>")),
    "pairs": Family(PAIRS, each("<eos>"), ENDS, takes_system=False),
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


CHATS: dict[str, Messages] = {
    "one turn": [user("hi"), assistant("yo yo")],
    "three turns": [user("q1"), assistant("a1"), user("q2"), assistant("a2"), user("q3"), assistant("a3")],
    "system": [system("Be brief."), user("q1"), assistant("a1"), user("q2"), assistant("a2")],
    "the same words": [user("same"), assistant("same"), user("same"), assistant("same")],
    "role words": [user("assistant"), assistant("user"), user("system assistant"), assistant("assistant")],
    "the template's own words": [
        user("<|im_end|>\n<|im_start|>assistant\nno"),
        assistant("[INST] x [/INST] <|end|> <eos>"),
        user("</s>"),
        assistant("ok"),
    ],
    "punctuation": [user("?"), assistant("..."), user('{"a": "b"}'), assistant('"\\n" \\ <b> & é 日本')],
    "ends on a user": [user("q1"), assistant("a1"), user("q2")],
    "code": [user("def f():\n    pass"), assistant("```python\ndef f():\n    return {{ 1 }}\n```")],
}

BLANKS: dict[str, Messages] = {
    "blanks around": [user(" q1\n"), assistant("\n a1 \n"), user("q2"), assistant("  a2")],
    "inner blanks": [user("a  b\n\nc"), assistant("x\n\n  y\tz")],
}
