"""Marks: strings laced with private-use characters that show, in a rendering, where each piece of a message went.

A chat is marked in one of two ways. *Canonical*: the words of each message are replaced by one slot each, so that all chats
with the same structure (roles, fields, tags, blank edges) share one marked rendering. *Direct*: the words stay and are marked
where they begin and end. The tags of a template are the strings that it compares or splits contents by, as ``</think>``; they
stay whole and unmarked, so that the template still sees them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from cloison.text.renderer import MARK_CLOSE, MARK_OPEN

__all__ = ["Edges", "Event", "Leaf", "Marked", "has_marks", "mark_chat", "parse", "tag_pattern"]

Edges = Literal["edges", "cores", "words", "none"]
"""Where marks stand: at the edges of the string and of its words, of its words only, inside words, or nowhere."""

_MARK = re.compile(f'{MARK_OPEN}([A-Z])(\\d+)(?:\\.(\\d+))?(\\\\*)"?{MARK_CLOSE}')
_WORD = re.compile(r"(?<!\S)\w(?=\w|\s|[.,;:!?]|$)")
_NOT_WORDS = frozenset({"role", "type", "id", "tool_call_id"})
_REASONING = frozenset({"reasoning_content", "thinking", "reasoning"})
_MOST_PARTS = 24


@dataclass(frozen=True)
class Leaf:
    """A string of a message: of which message, what kind ("content", "reasoning", "call", "other"), and the string itself.

    In a canonical chat ``text`` has one `MARK_OPEN` character for each slot.
    """

    message: int
    kind: str
    text: str


@dataclass(frozen=True)
class Marked:
    """A chat with marks.

    Attributes:
        messages: the marked messages, for the template.
        leaves: their strings, by the number in the marks.
        slots: of a canonical chat: (leaf, offset in the leaf's text) by slot.
        cores: of a canonical chat: the words that the slots stand for.
    """

    messages: list[dict[str, Any]]
    leaves: list[Leaf]
    slots: list[tuple[int, int]]
    cores: list[str]


@dataclass(frozen=True)
class Event:
    """A mark that a rendering shows: at which character of the text without marks, of which kind, with which numbers.

    Kinds: "L" loop and message, "E" loop, "G" generation edge, "C" leaf and offset, "S" slot and JSON escapes around it.
    """

    place: int
    kind: str
    first: int
    second: int


def has_marks(text: str) -> bool:
    """Return whether ``text`` holds a character that marks are made of."""
    return MARK_OPEN in text or MARK_CLOSE in text


def tag_pattern(tags: list[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds each of ``tags``, the longest first, or None where there are none."""
    if not tags:
        return None
    return re.compile("(" + "|".join(map(re.escape, sorted(tags, key=lambda tag: (-len(tag), tag)))) + ")")


def mark_chat(
    messages: list[dict[str, Any]], tags: re.Pattern[str] | None, edges: Edges, canonical: bool, calls: bool
) -> Marked:
    """Return ``messages`` with marks.

    Args:
        messages: plain data; the roles and what names a kind stay as they are.
        tags: what stays whole, see `tag_pattern`.
        edges: where marks stand.
        canonical: replace words by slots.
        calls: mark the strings of tool calls and other fields too, not only contents and reasoning.
    """
    marked = Marked([], [], [], [])
    for index, message in enumerate(messages):
        aliases: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for name, value in message.items():
            if name in _NOT_WORDS or name == "name":
                fields[name] = value
            elif name in _REASONING and isinstance(value, str):
                # Copies of one string under several names are one leaf.
                if value not in aliases:
                    aliases[value] = _mark_string(marked, index, "reasoning", value, tags, edges, canonical)
                fields[name] = aliases[value]
            elif name == "content":
                fields[name] = _mark_value(marked, index, "content", value, tags, edges, canonical)
            elif calls:
                kind = "call" if name in ("tool_calls", "function_call") else "other"
                fields[name] = _mark_value(marked, index, kind, value, tags, edges, canonical)
            else:
                fields[name] = value
        marked.messages.append(fields)
    return marked


def _mark_value(
    marked: Marked, index: int, kind: str, value: Any, tags: re.Pattern[str] | None, edges: Edges, canonical: bool
) -> Any:
    if isinstance(value, str):
        return _mark_string(marked, index, kind, value, tags, edges, canonical)
    if isinstance(value, dict):
        return {
            name: item if name in _NOT_WORDS else _mark_value(marked, index, kind, item, tags, edges, canonical)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_mark_value(marked, index, kind, item, tags, edges, canonical) for item in value]
    return value


def _mark_string(
    marked: Marked, index: int, kind: str, text: str, tags: re.Pattern[str] | None, edges: Edges, canonical: bool
) -> str:
    leaf = len(marked.leaves)
    if edges == "none" or not text.strip():
        marked.leaves.append(Leaf(index, kind, text))
        return text
    parts = tags.split(text) if tags is not None and kind != "call" else [text]
    if len(parts) > 2 * _MOST_PARTS:
        parts = [text]
    out: list[str] = []
    plain: list[str] = []
    length = 0
    for number, part in enumerate(parts):
        core = part.strip()
        if number % 2 or not core:
            out.append(part)
            plain.append(part)
            length += len(part)
            continue
        at = part.index(core)
        lead, trail = part[:at], part[at + len(core) :]
        length += at
        if canonical:
            out += [lead, f'{MARK_OPEN}S{len(marked.slots)}"{MARK_CLOSE}', trail]
            plain += [lead, MARK_OPEN, trail]
            marked.slots.append((leaf, length))
            marked.cores.append(core)
            length += 1 + len(trail)
            continue
        plain.append(part)
        if edges == "words":
            here = length

            def inside(found: re.Match[str], here: int = here) -> str:
                return f"{found.group()}{MARK_OPEN}C{leaf}.{here + found.end()}{MARK_CLOSE}"

            out += [lead, _WORD.sub(inside, core), trail]
        else:
            first, last = _content_mark(leaf, length), _content_mark(leaf, length + len(core))
            out += [lead, first, core, last, trail]
        length += len(core) + len(trail)
    if edges == "edges":
        out = [_content_mark(leaf, 0), *out, _content_mark(leaf, length)]
    marked.leaves.append(Leaf(index, kind, "".join(plain)))
    return "".join(out)


def _content_mark(leaf: int, offset: int) -> str:
    return f"{MARK_OPEN}C{leaf}.{offset}{MARK_CLOSE}"


def parse(rendering: str) -> tuple[str, list[Event]]:
    """Return a marked rendering without its marks, and the marks. Each slot leaves one `MARK_OPEN` character behind."""
    pieces: list[str] = []
    events: list[Event] = []
    length = last = 0
    for found in _MARK.finditer(rendering):
        piece = rendering[last : found.start()]
        pieces.append(piece)
        length += len(piece)
        last = found.end()
        kind = found.group(1)
        if kind == "S":
            events.append(Event(length, kind, int(found.group(2)), len(found.group(4))))
            pieces.append(MARK_OPEN)
            length += 1
        else:
            events.append(Event(length, kind, int(found.group(2)), int(found.group(3) or 0)))
    pieces.append(rendering[last:])
    return "".join(pieces), events
