"""Provenance: from the marks of one rendering to the characters that are trained of each message.

The rule (docs: "what is trained of a message"): from the first character that the message itself supplies, its reasoning with
the opening tag if it has reasoning, else its content or tool call, to the last non-blank character that the template writes for
that message, terminator included. What the template writes *for a message* is what it writes in the iterations over it, which
the loop marks show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloison.text.marks import Event, Leaf

__all__ = ["CharSpan", "Probe", "find_spans"]

_TAG = re.compile(r"(?:<[^<>]*>|\[[^\[\]\s]*\])\s*$")

CharSpan = tuple[int, int, bool, int]
"""(start, stop, is terminator, message), in characters."""


@dataclass(frozen=True)
class Probe:
    """How the template writes a message that has content and nothing else: the text before that content, and after it."""

    header: str
    footer: str


@dataclass(frozen=True)
class _Supply:
    """Characters [start, stop) of the rendering that come from one string of a message, from ``offset`` of it on."""

    start: int
    stop: int
    leaf: Leaf
    offset: int


def find_spans(
    text: str,
    events: Sequence[Event],
    leaves: Sequence[Leaf],
    slots: Sequence[tuple[int, int]],
    assistants: Sequence[int],
    probe: Callable[[int], Probe | None],
    prompt: Callable[[], str | None],
    special: Sequence[str],
    eos: str | None,
) -> list[CharSpan] | int:
    """Return the spans in ``text`` of every message that it shows, or the index of an assistant message without one.

    Args:
        text: a rendering without its marks.
        events: the marks.
        leaves: the strings of the messages, by the numbers in the marks.
        slots: (leaf, offset) by slot.
        assistants: indices of the messages that must have a span, if the template writes anything for them.
        probe: what `Probe` a message has; asked only where a message does not begin with its content.
        prompt: the generation prompt, if the template has one; asked as ``probe`` is.
        special: the texts of the special tokens, the longest first.
        eos: the text of the document's end.
    """
    supplies = _supplies(text, events, leaves, slots)
    owned = _owned(events, len(text))
    last = max((stop for ranges in owned.values() for _, stop in ranges), default=0)
    spans: list[CharSpan] = []
    shown: set[int] = set()
    claimed: set[int] = set()
    for message, ranges in owned.items():
        mine = supplies.get(message, [])
        for start, stop in ranges:
            inside = [one for one in mine if start <= one.start and one.stop <= stop]
            claimed.update(map(id, inside))
            if not inside and any(one.leaf.text for one in mine):
                continue
            first = _first(text, start, stop, inside, lambda message=message: probe(message), prompt)  # type: ignore[misc]
            if first is None:
                continue
            end = _end(text, start, stop, stop == last, inside, special, eos)
            if first < end:
                shown.add(message)
                spans += _split(text, first, end, message, inside, lambda message=message: probe(message))  # type: ignore[misc]
    for message in assistants:
        if message in shown:
            continue
        mine = [one for one in supplies.get(message, []) if one.stop > one.start]
        if mine:
            found = _elsewhere(text, mine, supplies, owned, message, special)
            if found is None:
                return message
            spans += found
        elif any(text[start:stop].strip() for start, stop in owned.get(message, [])):
            return message
    for message, mine in supplies.items():
        # Moved into what is written for another message, or written outside all iterations; a quote of what an assistant
        # says is not what the template writes for that message.
        if message not in assistants:
            loose = [one for one in mine if id(one) not in claimed and one.stop > one.start]
            spans += [(start, stop, False, message) for start, stop in _joined(text, loose)]
    spans.sort()
    return spans


def _supplies(
    text: str, events: Sequence[Event], leaves: Sequence[Leaf], slots: Sequence[tuple[int, int]]
) -> dict[int, list[_Supply]]:
    """Return, by message, where its strings stand in ``text``: each mark, grown as far as text and string agree."""
    found: dict[int, list[_Supply]] = {}
    latest: dict[int, _Supply] = {}
    for event in events:
        if event.kind == "S":
            (number, offset), width = slots[event.first], 1
        elif event.kind == "C":
            number, offset, width = event.first, event.second, 0
        else:
            continue
        place, leaf, before = event.place, leaves[number], latest.get(number)
        if before is not None and before.start <= place <= before.stop and place - offset == before.start - before.offset:
            if place + width <= before.stop:
                continue  # inside a stretch that is known
            found[leaf.message].remove(before)
            supply = _Supply(
                before.start, place + width + _forth(text, place + width, leaf, offset + width), leaf, before.offset
            )
        else:
            back = _back(text, place, leaf, offset)
            stop = place + width + _forth(text, place + width, leaf, offset + width)
            supply = _Supply(place - back, stop, leaf, offset - back)
        latest[number] = supply
        found.setdefault(leaf.message, []).append(supply)
    return found


def _back(text: str, place: int, leaf: Leaf, offset: int) -> int:
    """Return how many characters before ``place`` are those of the leaf before ``offset``: whole tags and cores only.

    A blank edge is left out: whether the blank is the message's or the template's cannot be told.
    """
    string = leaf.text
    size = _agree(min(place, offset), lambda size: text[place - size : place] == string[offset - size : offset])
    low = min((bound for bound in leaf.bounds if offset - size <= bound <= offset), default=offset - size)
    while low < offset and string[low].isspace():
        low += 1
    return offset - low


def _forth(text: str, place: int, leaf: Leaf, offset: int) -> int:
    """Return how many characters from ``place`` on are those of the leaf from ``offset`` on, as `_back` does."""
    string = leaf.text
    most = min(len(text) - place, len(string) - offset)
    size = _agree(most, lambda size: text[place : place + size] == string[offset : offset + size])
    high = max((bound for bound in leaf.bounds if offset <= bound <= offset + size), default=offset + size)
    while high > offset and string[high - 1].isspace():
        high -= 1
    return high - offset


def _agree(most: int, same: Callable[[int], bool]) -> int:
    """Return the largest size up to ``most`` that is the ``same``: the sizes that are come first."""
    if most <= 0 or same(most):
        return max(most, 0)
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if same(middle) else (low, middle)
    return low


def _owned(events: Sequence[Event], length: int) -> dict[int, list[tuple[int, int]]]:
    """Return, by message, the stretches of text that the template wrote in its iterations over that message."""
    owned: dict[int, list[tuple[int, int]]] = {}
    stack: list[tuple[int, int]] = []
    since = 0

    def close(place: int) -> None:
        if stack and place > since:
            ranges = owned.setdefault(stack[-1][1], [])
            if ranges and ranges[-1][1] == since:
                ranges[-1] = (ranges[-1][0], place)
            else:
                ranges.append((since, place))

    for event in events:
        if event.kind not in "LE":
            continue
        close(event.place)
        since = event.place
        for depth, (loop, _) in enumerate(stack):
            if loop == event.first:
                del stack[depth:]
                break
        if event.kind == "L":
            stack.append((event.first, event.second))
    close(length)
    return owned


def _first(
    text: str,
    start: int,
    stop: int,
    inside: Sequence[_Supply],
    probe: Callable[[], Probe | None],
    prompt: Callable[[], str | None],
) -> int | None:
    """Return where the message begins to supply what stands in [start, stop), or None where that cannot be told."""
    if inside and (earliest := min(inside, key=lambda one: (one.start, one.stop))).leaf.kind == "content":
        # A content that holds reasoning in tags: the template may have taken it apart and written the opening tag itself.
        before = text[start : earliest.start].rstrip()
        tag = _TAG.search(before)
        if tag is not None:
            head, words = earliest.leaf.text[: earliest.offset], earliest.leaf.text[earliest.offset :]
            if head.rstrip().endswith(tag.group()) or f"{tag.group()[0]}/{tag.group()[1:]}" in words:
                return start + tag.start()
        return earliest.start
    kind = earliest.leaf.kind if inside else "nothing"
    lead = text[start : earliest.start] if inside else text[start:stop]
    if not lead.strip():
        return start + len(lead) if inside else None
    known, asked = probe(), prompt()
    base = None
    if known is not None and lead.startswith(known.header):
        base = len(known.header)
    elif inside and asked and lead.startswith(asked):
        base = len(asked)
    if kind == "nothing":
        return None if base is None else start + base
    rest = "" if base is None else lead[base:]
    if base is not None and rest.strip():
        return start + base + len(rest) - len(rest.lstrip())
    if kind == "reasoning":
        tag = _TAG.search(lead)
        return start + (tag.start() if tag else len(lead))
    return None if base is None and kind == "call" else start + len(lead)


def _end(
    text: str, start: int, stop: int, is_last: bool, inside: Sequence[_Supply], special: Sequence[str], eos: str | None
) -> int:
    """Return where the last non-blank character of [start, stop) ends; behind the last message a document's end counts too."""
    end = start + len(text[start:stop].rstrip())
    if is_last and (tail := text[stop:].strip()) and not _without(tail, special):
        return len(text.rstrip())
    if inside and eos and end <= max(one.stop for one in inside):
        # Templates that end a message at the head of the next iteration.
        behind = end + len(text[end : end + 64]) - len(text[end : end + 64].lstrip())
        if text.startswith(eos, behind):
            return behind + len(eos)
    return end


def _without(text: str, special: Sequence[str]) -> str:
    """Return what is left of ``text`` when special tokens and blanks are taken from its head."""
    while (token := next((one for one in special if text.startswith(one)), None)) is not None:
        text = text[len(token) :].lstrip()
    return text


def _split(
    text: str, first: int, end: int, message: int, inside: Sequence[_Supply], probe: Callable[[], Probe | None]
) -> list[CharSpan]:
    """Return [first, end) as what the message supplies and its terminator."""
    edge = first
    if inside:
        latest = max(inside, key=lambda one: one.stop)
        edge = max(first, min(latest.stop, end))
        if latest.leaf.kind != "content" and edge < end and (known := probe()) is not None:
            footer = known.footer.strip()
            if footer and text[edge:end].endswith(footer):
                edge = end - len(footer)
    spans: list[CharSpan] = []
    if edge > first:
        spans.append((first, edge, False, message))
    if end > edge:
        spans.append((edge, end, True, message))
    return spans


def _elsewhere(
    text: str,
    mine: Sequence[_Supply],
    supplies: dict[int, list[_Supply]],
    owned: dict[int, list[tuple[int, int]]],
    message: int,
    special: Sequence[str],
) -> list[CharSpan] | None:
    """Return the spans of an assistant message that is written outside its own iteration, or None where its end is unclear.

    Its terminator is what follows it to the end of the iteration (or of the text), where no other message follows in between;
    else the special token that follows it.
    """
    ordered = sorted(mine, key=lambda one: one.start)
    if ordered[0].leaf.kind == "call":
        return None
    first, edge = ordered[0].start, ordered[-1].stop
    if ordered[0].leaf.kind == "reasoning" and (tag := _TAG.search(text[:first])):
        first = tag.start()
    around = [stop for ranges in owned.values() for start, stop in ranges if start <= first and edge <= stop]
    bound = min(around, default=len(text))
    others = [one.start for other, ones in supplies.items() if other != message for one in ones if edge <= one.start < bound]
    if not others:
        end = len(text[:bound].rstrip())
    else:
        behind = text[edge : min(others)].lstrip()
        token = next((one for one in special if behind.startswith(one)), None)
        if token is None:
            return None
        end = min(others) - len(behind) + len(token)
    return [(first, edge, False, message), *([(edge, end, True, message)] if end > edge else [])]


def _joined(text: str, supplies: Sequence[_Supply]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for one in sorted(supplies, key=lambda one: one.start):
        if out and not text[out[-1][1] : one.start].strip():
            out[-1] = (out[-1][0], max(out[-1][1], one.stop))
        else:
            out.append((one.start, one.stop))
    return out
