"""Shapes: what a record is, read from its columns, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloison.errors import RecordError

__all__ = ["Example", "Reading", "recognise"]


@dataclass(frozen=True)
class Reading:
    """How records of one kind are read.

    Attributes:
        shape: "messages", "pair", "text" or "tokens", as in `cloison.text.targets.SHAPES`.
        layout: how the record spells it: "messages", "sharegpt", "alpaca", "prompt/completion", "text", "input_ids".
        columns: which column plays which part, as {"messages": "conversations", "tools": "tools"}.
    """

    shape: str
    layout: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Example:
    """A record in the one form that encoding takes.

    Attributes:
        shape: one of `cloison.text.targets.SHAPES`.
        messages: of a chat (and of a pair of message lists: prompt and completion in one).
        completion_start: index of the first message that is completion; 0 for a chat.
        texts: the strings of a pair [prompt, completion] or of a document [text].
        tokens: input_ids and what masks them, by part name.
        weight: of the whole sample.
        extra: tools, documents and further variables of the template.
    """

    shape: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    completion_start: int = 0
    texts: tuple[str, ...] = ()
    tokens: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)


def recognise(record: Mapping[str, Any], columns: Mapping[str, str]) -> Reading:
    """Return how ``record`` is read."""
    if "messages" in record:
        return Reading("messages", "messages", {"messages": "messages"})
    raise RecordError("a record must have a known shape.", f"Its columns are {sorted(record)}.", "Name the columns.")
