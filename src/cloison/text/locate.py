"""Locate: the trained characters of each message in its real rendering, for any chat template.

Chats with the same structure share a *skeleton*, learnt from one marked rendering in which slots stand for the words. A record
is filled into its skeleton; only where that gives the real rendering, character for character, do the skeleton's spans hold.
Where it does not (a template that looks at the words, shortens, rewrites them), the record itself is rendered a second time
with marks, which must not have changed the rendering either. What no way of marking explains is a SpanError.

Generation blocks decide nothing: authors draw them in different ways (with the terminator or without, with the header's newline
or without), and the rule is one for all templates. That they agree with it where they are drawn as it says is a test.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from cloison.errors import SpanError
from cloison.text.marks import Edges, Marked, mark_chat, parse, tag_pattern
from cloison.text.provenance import CharSpan, Probe, find_spans
from cloison.text.renderer import MARK_CLOSE, MARK_OPEN
from cloison.text.sandbox import Job, Sandbox

__all__ = ["Locator"]

_SKELETONS = 2048
_CANONICAL: tuple[Edges, ...] = ("edges", "cores")
_DIRECT: tuple[tuple[Edges, bool], ...] = (
    ("edges", True),
    ("cores", True),
    ("cores", False),
    ("ends", False),
    ("words", False),
    ("swap", False),
    ("none", False),
)


@dataclass(frozen=True)
class Skeleton:
    """A rendering with slots: literals and slots take turns, and the spans lie in the text in which a slot is one character."""

    parts: tuple[str, ...]
    slots: tuple[int, ...]
    levels: tuple[int, ...]
    edges: tuple[tuple[int, int, int, int, bool, int], ...]

    def fill(self, cores: Sequence[str], text: str) -> list[CharSpan] | None:
        """Return the spans in ``text`` if the skeleton with these words is that text, else None."""
        words = [cores[slot] for slot in self.slots]
        if any(self.levels):
            words = [_escaped(word, level) for word, level in zip(words, self.levels, strict=True)]
        parts = list(self.parts)
        parts[1::2] = words
        if "".join(parts) != text:
            return None
        grown = [0, *accumulate(len(word) - 1 for word in words)]
        return [
            (start + grown[before], stop + grown[through], terminator, message)
            for start, before, stop, through, terminator, message in self.edges
        ]


def _escaped(word: str, level: int) -> str:
    """Return ``word`` inside as many JSON strings as the backslashes before a quote in it show: 0, 1, 3, 7, ..."""
    while level:
        word = json.dumps(word, ensure_ascii=False)[1:-1]
        level //= 2
    return word


class Locator:
    """What knows the skeletons of one tokenizer's templates. One thread at a time."""

    def __init__(self, sandbox: Sandbox, special: Sequence[str], eos: str | None) -> None:
        self._sandbox = sandbox
        self._special = tuple(sorted(special, key=lambda one: (-len(one), one)))
        self._eos = eos
        self._skeletons: OrderedDict[Any, list[Skeleton]] = OrderedDict()
        self._probes: OrderedDict[str, Probe | None] = OrderedDict()
        self._prompts: dict[str, str | None] = {}
        self._tags: dict[str, Any] = {}
        self.renderings = 0

    def locate(self, jobs: Sequence[Job], texts: Sequence[str]) -> list[list[CharSpan] | SpanError]:
        """Return for each job the spans in its real rendering, or the SpanError of the message that has none."""
        found: list[list[CharSpan] | SpanError | None] = [None] * len(jobs)
        keyed = [self._key(job) for job in jobs]
        waiting = [index for index in range(len(jobs)) if not self._fill(index, keyed, texts, found)]
        for edges in _CANONICAL:
            new = {
                keyed[index][0]: index
                for index in reversed(waiting)
                if len(self._known(keyed[index][0])) <= _CANONICAL.index(edges)
            }
            if new:
                self._learn(list(new.values()), jobs, keyed, edges)
                waiting = [index for index in waiting if not self._fill(index, keyed, texts, found)]
        failed: dict[int, int] = {}
        for edges, calls in _DIRECT:
            if not waiting:
                break
            marked = [mark_chat(jobs[index][1], self._pattern(jobs[index][0]), edges, False, calls) for index in waiting]
            renderings = self._render(
                [_replaced(jobs[index], one.messages) for index, one in zip(waiting, marked, strict=True)]
            )
            still = []
            for index, one, rendering in zip(waiting, marked, renderings, strict=True):
                text, events = parse(rendering, one) if isinstance(rendering, str) else ("", [])
                spans = (
                    self._find(jobs[index], text, events, one) if isinstance(rendering, str) and text == texts[index] else -1
                )
                if isinstance(spans, list):
                    found[index] = spans
                else:
                    failed[index] = max(spans, failed.get(index, -1))
                    still.append(index)
            waiting = still
        for index in waiting:
            found[index] = self._refusal(jobs[index], failed[index])
        return found  # type: ignore[return-value]

    # ------------------------------------------------------------------ skeletons

    def _known(self, key: Any) -> list[Skeleton]:
        return self._skeletons.get(key, [])

    def _key(self, job: Job) -> tuple[Any, list[str]]:
        """Return the key of the job's structure, and the words for its slots."""
        name, messages, tools, documents, options = job
        tags = self._pattern(name)
        if not tools and not documents and not options:
            key: list[Any] = [name]
            cores = []
            for message in messages:
                content = message.get("content")
                if len(message) != 2 or not isinstance(content, str) or (tags is not None and tags.search(content)):
                    break
                core = content.strip()
                key.append(message.get("role"))
                if core:
                    cores.append(core)
                if len(core) != len(content) or not core:
                    at = content.index(core)
                    key.append((content[:at], content[at + len(core) :]))
            else:
                return tuple(key), cores
        marked = mark_chat(messages, tags, "cores", True, True)
        return json.dumps([name, marked.messages, tools, documents, options], default=str), marked.cores

    def _fill(self, index: int, keyed: Sequence[tuple[Any, list[str]]], texts: Sequence[str], found: list[Any]) -> bool:
        key, cores = keyed[index]
        for skeleton in self._known(key):
            spans = skeleton.fill(cores, texts[index])
            if spans is not None:
                found[index] = spans
                return True
        return False

    def _learn(self, indices: Sequence[int], jobs: Sequence[Job], keyed: Sequence[tuple[Any, list[str]]], edges: Edges) -> None:
        """Learn the skeletons of these jobs' structures; a structure that has none gets one that fits nothing."""
        marked = [mark_chat(jobs[index][1], self._pattern(jobs[index][0]), edges, True, True) for index in indices]
        changed = [_replaced(jobs[index], one.messages) for index, one in zip(indices, marked, strict=True)]
        renderings = self._render(changed)
        for index, one, rendering in zip(indices, marked, renderings, strict=True):
            skeleton = self._skeleton(jobs[index], one, rendering) if isinstance(rendering, str) else None
            known = self._skeletons.setdefault(keyed[index][0], [])
            known.append(skeleton or Skeleton((MARK_CLOSE,), (), (), ()))
            while len(self._skeletons) > _SKELETONS:
                self._skeletons.popitem(last=False)

    def _skeleton(self, job: Job, marked: Marked, rendering: str) -> Skeleton | None:
        text, events = parse(rendering, marked)
        spans = self._find(job, text, events, marked)
        if not isinstance(spans, list) or MARK_CLOSE in text:
            return None
        slots = [event for event in events if event.kind == "S"]
        if text.count(MARK_OPEN) != len(slots):
            return None
        literals = text.split(MARK_OPEN)
        parts = [piece for literal in literals for piece in (literal, "")][:-1]
        places = [event.place for event in slots]
        edges = tuple(
            (start, bisect_left(places, start), stop, bisect_left(places, stop), terminator, message)
            for start, stop, terminator, message in spans
        )
        return Skeleton(tuple(parts), tuple(event.first for event in slots), tuple(event.second for event in slots), edges)

    # ------------------------------------------------------------------ one marked rendering

    def _find(self, job: Job, text: str, events: Sequence[Any], marked: Marked) -> list[CharSpan] | int:
        assistants = [index for index, message in enumerate(job[1]) if message.get("role") in ("assistant", "model")]
        return find_spans(
            text,
            events,
            marked.leaves,
            marked.slots,
            assistants,
            lambda message: self._probe(job, message),
            lambda: self._prompt(job),
            self._special,
            self._eos,
        )

    def _probe(self, job: Job, message: int) -> Probe | None:
        """Return how the template writes this message when it has content and nothing else."""
        messages = list(job[1])
        messages[message] = {"role": messages[message].get("role"), "content": "x"}
        marked = mark_chat(messages, self._pattern(job[0]), "cores", True, True)
        key = json.dumps([message, job[0], marked.messages, *job[2:]], default=str)
        if key not in self._probes:
            rendering = self._render([_replaced(job, marked.messages)])[0]
            self._probes[key] = self._read_probe(rendering, marked, message) if isinstance(rendering, str) else None
            while len(self._probes) > _SKELETONS:
                self._probes.popitem(last=False)
        return self._probes[key]

    def _read_probe(self, rendering: str, marked: Marked, message: int) -> Probe | None:
        text, events = parse(rendering, marked)
        slot = next((index for index, (leaf, _) in enumerate(marked.slots) if marked.leaves[leaf].message == message), None)
        place = next((event.place for event in events if event.kind == "S" and event.first == slot), None)
        if place is None:
            return None
        marks = [(event.place, event.second if event.kind == "L" else None) for event in events if event.kind in "LE"]
        start = max((at for at, _ in marks if at <= place), default=0)
        stop = min((at for at, _ in marks if at > place), default=len(text))
        return Probe(text[start:place], text[place + 1 : stop])

    def _prompt(self, job: Job) -> str | None:
        """Return what the template adds for generation, or None where it adds nothing."""
        key = json.dumps([job[0], job[4]], default=str)
        if key not in self._prompts:
            asked = [{"role": "user", "content": "x"}]
            plain, longer = self._sandbox.render(
                [(job[0], asked, None, None, {**job[4], "add_generation_prompt": value}) for value in (False, True)]
            )
            adds = isinstance(plain, str) and isinstance(longer, str) and longer.startswith(plain)
            self._prompts[key] = (longer[len(plain) :] or None) if adds else None  # type: ignore[arg-type, index]
        return self._prompts[key]

    def _render(self, jobs: Sequence[Job]) -> list[Any]:
        self.renderings += len(jobs)
        return self._sandbox.render(jobs, marked=True)

    def _pattern(self, name: str) -> Any:
        if name not in self._tags:
            self._tags[name] = tag_pattern(self._sandbox.tags(name))
        return self._tags[name]

    def _refusal(self, job: Job, message: int) -> SpanError:
        role = job[1][message].get("role") if message >= 0 else None
        what = "a message" if message < 0 else f"message {message} ({role})"
        return SpanError(
            f"the trained characters of {what} must be found in the rendering.",
            f"Chat template {job[0]!r} writes the conversation in a way that no marking explains.",
            "Pass another chat_template, or tokenise such records yourself and give input_ids with labels.",
        )


def _replaced(job: Job, messages: list[dict[str, Any]]) -> Job:
    return (job[0], messages, job[2], job[3], job[4])


def special_texts(special: Mapping[str, str], added: Sequence[Any]) -> list[str]:
    """Return the texts of the special tokens: the named ones and those that the tokenizer marks as special."""
    return sorted({*special.values(), *(token.content for token in added if token.special)})
