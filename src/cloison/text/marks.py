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

Edges = Literal["edges", "cores", "ends", "words", "swap", "none"]
"""Where marks stand: at the edges of the string and of its cores (what lies between tags and blanks), of its cores only, at the
ends of cores, inside words, in the place of letters (so that no length changes), or nowhere."""

_MARK = re.compile(f'{MARK_OPEN}([A-Z])(\\d+)(?:\\.(\\d+))?(\\\\*)"?{MARK_CLOSE}')
_MARKS = re.compile("[\U000f0000-\U0010fdff]")
_SWAPPED = re.compile("[\U000f0000-\U0010fcff]")
_KEPT = frozenset("\"\\<>&'")
"""Characters that JSON, reprs and markup write in other ways: never swapped."""

_WORD = re.compile(r"(?<!\S)\w(?=\w|\s|[.,;:!?]|$)")
_NOT_WORDS = frozenset({"role", "type", "id", "tool_call_id"})
_REASONING = frozenset({"reasoning_content", "thinking", "reasoning"})
_MOST_PARTS = 24
_SWAPS = (0xF0000, 0x10FD00)
"""Private-use characters that stand for letters; `MARK_OPEN` and `MARK_CLOSE` lie above them."""


@dataclass(frozen=True)
class Leaf:
    """A string of a message: of which message, what kind ("content", "reasoning", "call", "other"), and the string itself.

    In a canonical chat ``text`` has one `MARK_OPEN` character for each slot. ``bounds`` are the offsets at which its tags and
    cores begin and end.
    """

    message: int
    kind: str
    text: str
    bounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Marked:
    """A chat with marks.

    Attributes:
        messages: the marked messages, for the template.
        leaves: their strings, by the number in the marks.
        slots: of a canonical chat: (leaf, offset in the leaf's text) by slot.
        cores: of a canonical chat: the words that the slots stand for.
        swapped: of swapped letters: (leaf, offset) by character from the first of `_SWAPS` on.
    """

    messages: list[dict[str, Any]]
    leaves: list[Leaf]
    slots: list[tuple[int, int]]
    cores: list[str]
    swapped: list[tuple[int, int]]


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
    return _MARKS.search(text) is not None


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
    marked = Marked([], [], [], [], [])
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
    bounds = [0]
    length = 0
    for number, part in enumerate(parts):
        core = part.strip()
        if number % 2 or not core:
            # A tag, or blanks between tags.
            out.append(part)
            plain.append(part)
            length += len(part)
            bounds.append(length)
            continue
        at = part.index(core)
        trail = part[at + len(core) :]
        length += at
        if canonical:
            laced, shown = f'{MARK_OPEN}S{len(marked.slots)}"{MARK_CLOSE}', MARK_OPEN
            marked.slots.append((leaf, length))
            marked.cores.append(core)
        else:
            laced, shown = _lace(marked, leaf, length, core, edges), core
        out += [part[:at], laced, trail]
        plain += [part[:at], shown, trail]
        bounds += [length, length + len(shown), length + len(shown) + len(trail)]
        length = bounds[-1]
    if edges == "edges":
        out = [_content_mark(leaf, 0), *out, _content_mark(leaf, length)]
    marked.leaves.append(Leaf(index, kind, "".join(plain), tuple(bounds)))
    return "".join(out)


def _lace(marked: Marked, leaf: int, offset: int, core: str, edges: Edges) -> str:
    """Return ``core``, which begins at ``offset`` of the leaf, with its marks."""
    last = _content_mark(leaf, offset + len(core))
    if edges == "ends":
        return core + last
    if edges == "words":
        return _WORD.sub(lambda found: found.group() + _content_mark(leaf, offset + found.end()), core)
    if edges == "swap":
        letters = list(core)
        for place, letter in enumerate(core):
            if letter not in _KEPT and not letter.isspace() and len(marked.swapped) < _SWAPS[1] - _SWAPS[0]:
                letters[place] = chr(_SWAPS[0] + len(marked.swapped))
                marked.swapped.append((leaf, offset + place))
        return "".join(letters)
    return _content_mark(leaf, offset) + core + last


def _content_mark(leaf: int, offset: int) -> str:
    return f"{MARK_OPEN}C{leaf}.{offset}{MARK_CLOSE}"


def parse(rendering: str, marked: Marked) -> tuple[str, list[Event]]:
    """Return the rendering of ``marked`` without its marks, and the marks. A slot leaves one `MARK_OPEN` character behind."""
    text, events = _parsed(rendering)
    if not marked.swapped:
        return text, events
    letters: dict[int, str | int | None] = {
        _SWAPS[0] + number: marked.leaves[leaf].text[at] for number, (leaf, at) in enumerate(marked.swapped)
    }
    places = [Event(found.start(), "C", *marked.swapped[ord(found.group()) - _SWAPS[0]]) for found in _SWAPPED.finditer(text)]
    return text.translate(letters), sorted([*events, *places], key=lambda event: event.place)


def _parsed(rendering: str) -> tuple[str, list[Event]]:
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
