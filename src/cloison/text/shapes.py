"""Shapes: what a record is, recognised from its columns or named by the user, and the one form that encoding takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloison.errors import RecordError
from cloison.parts import check_columns
from cloison.text.marks import has_marks
from cloison.text.packed_rows import why_packed

__all__ = ["Example", "Reading", "read_record", "recognise", "refuse_marks"]

_LAYOUTS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("tokens", "input_ids", ("input_ids",), ("labels", "completion_mask", "assistant_masks")),
    ("messages", "messages", ("messages",), ("tools", "system", "documents", "chat_template_kwargs")),
    ("messages", "sharegpt", ("conversations",), ("tools", "system", "documents", "chat_template_kwargs")),
    ("pair", "prompt/completion", ("prompt", "completion"), ("tools", "documents", "chat_template_kwargs")),
    ("messages", "alpaca", ("instruction", "output"), ("input", "system", "history")),
    ("text", "text", ("text",), ()),
)
"""Shape, layout, the parts that it must have and those that it may have; the first that fits is taken."""

_MOST_DEEP = 64

_LEAST_WEIGHT, _MOST_WEIGHT = 1e-18, 1e18
"""Of a weight that is not 0: a message's times its sample's is still a float32, neither 0 nor infinite."""

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "function_call": "call",
    "tool_call": "call",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}


@dataclass(frozen=True)
class Reading:
    """How records are read.

    Attributes:
        shape: "messages", "pair", "text" or "tokens", as in `cloison.text.targets.SHAPES`.
        layout: how the records spell it: "messages", "sharegpt", "alpaca", "prompt/completion", "text" or "input_ids".
        columns: which column plays which part, as {"messages": "dialog", "tools": "tools"}.
        unused: the other columns.
    """

    shape: str
    layout: str
    columns: Mapping[str, str]
    unused: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return one line for the user.

        >>> recognise({"prompt": "a", "completion": "b", "id": 3}).describe()
        'prompt/completion records: prompt=prompt, completion=completion; not used: id'
        """
        used = ", ".join(f"{part}={column}" for part, column in self.columns.items())
        rest = f"; not used: {', '.join(self.unused)}" if self.unused else ""
        return f"{self.layout} records: {used}{rest}"


@dataclass(frozen=True, eq=False, slots=True)
class Example:
    """A record in the one form that encoding takes.

    Attributes:
        shape: one of `cloison.text.targets.SHAPES`.
        messages: of a chat, and of a pair of message lists (prompt and completion in one list); without weights.
        weights: of the messages.
        completion_start: index of the first message of the completion; 0 for a chat.
        texts: a pair of strings (prompt, completion), or a document (text,).
        tokens: of a tokenised record, by part: input_ids, labels, completion_mask, assistant_masks.
        weight: of the whole sample.
        tools, documents, options: what else the template is given.
    """

    shape: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    weights: list[float] | None = None
    completion_start: int = 0
    texts: tuple[str, ...] = ()
    tokens: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def recognise(record: Mapping[str, Any], columns: Mapping[str, str] | None = None, carry: Sequence[str] = ()) -> Reading:
    """Return how ``record`` is read.

    Args:
        record: columns by name.
        columns: part (a name in `PARTS`) to column, where the user names them; the other parts keep their own names.
        carry: columns that are carried along: they are not among the unused.

    Raises:
        RecordError: no shape fits, or it is a block of several samples.
        SpecError: ``columns`` names a part that there is not.
    """
    columns = columns or {}
    check_columns(columns)
    named = [layout for layout in _LAYOUTS if any(part in columns for part in layout[2])]
    for shape, layout, must, may in named or _LAYOUTS:
        have = {part: columns.get(part, part) for part in (*must, *may)}
        if all(record.get(have[part]) is not None for part in must):
            found = {part: column for part, column in have.items() if column and record.get(column) is not None}
            if shape == "tokens":
                _refuse_blocks(record)
            if "weight" in columns:
                found["weight"] = columns["weight"]
            return Reading(shape, layout, found, tuple(name for name in record if name not in {*found.values(), *carry}))
    have_ = ", ".join(f"{name} ({type(value).__name__})" for name, value in record.items()) or "none"
    wanted = " or ".join(" + ".join(columns.get(part, part) for part in must) for _, _, must, _ in named or _LAYOUTS)
    raise RecordError(f"a record must have the columns {wanted}.", f"It has {have_}.", _naming(record))


def _naming(record: Mapping[str, Any]) -> str:
    """Return how the user may name columns, by what the record has: a list of messages, a text, or two."""
    texts = [name for name, value in record.items() if isinstance(value, str)]
    chats = [name for name, value in record.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    named = {"prompt": "question", "completion": "answer"}
    if chats:
        named = {"conversations" if "from" in record[chats[0]][0] else "messages": chats[0]}
    elif len(texts) == 1:
        named = {"text": texts[0]}
    elif len(texts) == 2:
        named = dict(zip(named, texts, strict=True))
    return f"Name them, as columns={named}, or --columns {' '.join(f'{part}={column}' for part, column in named.items())}."


def _refuse_blocks(record: Mapping[str, Any]) -> None:
    if why := why_packed(record):
        raise RecordError(
            "a record of input_ids must be one sample.",
            f"It is a packed block: {why}.",
            "Pack the samples that it was made from: cloison unpack gives those of our blocks, cloison import those of token "
            "stores; cut the rows of other blocks at their boundaries first.",
        )


def read_record(record: Mapping[str, Any], reading: Reading) -> Example:
    """Return the Example of ``record``.

    Raises:
        RecordError: a part that is missing or of the wrong kind; it says which, and what was found.
    """
    parts: dict[str, Any] = {part: record.get(column) for part, column in reading.columns.items()}
    weight = _weight(parts["weight"], "weight") if parts.get("weight") is not None else 1.0
    if reading.shape == "tokens":
        _refuse_blocks(record)
        return Example("tokens", tokens={part: parts[part] for part in parts if part != "weight"}, weight=weight)
    if reading.shape == "text":
        return Example("text", texts=(_string(parts["text"], "text"),), weight=weight)
    extra: dict[str, Any] = {
        "tools": _shallow(_listed(parts.get("tools"), "tools"), "tools"),
        "documents": _shallow(_listed(parts.get("documents"), "documents"), "documents"),
        "options": _shallow(_options(parts.get("chat_template_kwargs")), "chat_template_kwargs"),
        "weight": weight,
    }
    if reading.layout == "prompt/completion":
        prompt, completion = parts["prompt"], parts["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            return Example("pair", texts=(_string(prompt, "prompt"), _string(completion, "completion")), weight=weight)
        head, tail = (
            [{"role": role, "content": part}] if isinstance(part, str) else part
            for part, role in ((prompt, "user"), (completion, "assistant"))
        )
        before, weights = _messages(head, "prompt")
        after, more = _messages(tail, "completion")
        joined = (
            None if weights is None and more is None else [*(weights or [1.0] * len(before)), *(more or [1.0] * len(after))]
        )
        return Example("pair", [*before, *after], joined, len(before), **extra)
    listed: Any
    if reading.layout == "sharegpt":
        listed = _sharegpt(parts["conversations"])
    elif reading.layout == "alpaca":
        listed = _alpaca(parts)
    else:
        listed = parts["messages"]
        if isinstance(listed, str):
            listed = _listed(listed, "messages")
    messages, weights = _messages(listed, reading.columns.get("messages", reading.layout))
    if isinstance(parts.get("system"), str) and parts["system"] and messages[0].get("role") != "system":
        messages = [{"role": "system", "content": parts["system"]}, *messages]
        weights = None if weights is None else [1.0, *weights]
    return Example("messages", messages, weights, **extra)


# ---------------------------------------------------------------------- parts


def _messages(value: Any, name: str) -> tuple[list[dict[str, Any]], list[float] | None]:
    """Return messages as templates take them (no null fields, reasoning under its usual names), and their weights."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        raise RecordError(f"{name} must be a list of messages.", f"It is {_shown(value)}.", "Give at least one message.")
    messages: list[dict[str, Any]] = []
    weights: list[float] = []
    for index, message in enumerate(value):
        if type(message) is dict and len(message) == 2 and type(message.get("content")) is type(message.get("role")) is str:
            messages.append(dict(message))  # nearly all of them; the checks below cost four times as much
            weights.append(1.0)
            continue
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RecordError(
                f"{name}[{index}] must be a message with a role.",
                f"It is {_shown(message)}.",
                "Give {'role': ..., 'content': ...}.",
            )
        weight = 1.0
        if len(message) == 2 and type(message.get("content")) is str:
            messages.append(dict(message))
        else:
            kept = {key: item for key, item in message.items() if item is not None}
            _shallow(kept, f"{name}[{index}]")
            if "weight" in kept:
                weight = _weight(kept.pop("weight"), f"{name}[{index}].weight")
            for key in ("train", "training"):
                if isinstance(kept.get(key), bool):
                    weight *= float(kept.pop(key))
            reasoning = next((kept[key] for key in ("reasoning_content", "thinking", "reasoning") if key in kept), None)
            if reasoning is not None:
                kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
            messages.append(kept)
        weights.append(weight)
    return messages, None if all(weight == 1 for weight in weights) else weights


def _sharegpt(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        raise RecordError("conversations must be a list of turns.", f"It is {_shown(value)}.", "Give at least one turn.")
    out: list[dict[str, Any]] = []
    for index, turn in enumerate(value):
        speaker = turn.get("from", turn.get("role")) if isinstance(turn, Mapping) else None
        words = turn.get("value", turn.get("content")) if isinstance(turn, Mapping) else None
        role = _SPEAKERS.get(speaker) if isinstance(speaker, str) else None
        if role is None or not isinstance(words, str):
            raise RecordError(
                f"conversations[{index}] must be a turn with 'from' and 'value'.",
                f"It is {_shown(turn)}.",
                f"Speakers are {', '.join(_SPEAKERS)}.",
            )
        marks = {key: turn[key] for key in ("weight", "train", "training") if key in turn}
        if role != "call":
            out.append({"role": role, "content": words, **marks})
            continue
        try:
            call = json.loads(words)
        except (ValueError, RecursionError):
            call = None
        calls = call if isinstance(call, list) else [call]
        if all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in calls):
            listed = [
                {"type": "function", "function": {"name": one["name"], "arguments": one.get("arguments", {})}} for one in calls
            ]
            out.append({"role": "assistant", "content": "", "tool_calls": listed, **marks})
        else:
            out.append({"role": "assistant", "content": words, **marks})
    return out


def _alpaca(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for index, turn in enumerate(parts.get("history") or []):
        if not isinstance(turn, Sequence) or len(turn) != 2:
            raise RecordError(f"history[{index}] must be [question, answer].", f"It is {_shown(turn)}.", "Give two strings.")
        out += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    asked = _string(parts["instruction"], "instruction")
    given = parts.get("input")
    asked = f"{asked}\n\n{given}" if isinstance(given, str) and given.strip() else asked
    return [*out, {"role": "user", "content": asked}, {"role": "assistant", "content": _string(parts["output"], "output")}]


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{name} must be a string.", f"It is {_shown(value)}.", "Give text.")
    return value


def _listed(value: Any, name: str) -> list[Any] | None:
    """Return a list, also from its JSON; an empty one is None, as templates test it."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{name} must be a list or its JSON.", f"It does not parse: {error}.", "Mend it.") from error
    if value is None or (isinstance(value, Sequence) and not len(value)):
        return None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise RecordError(f"{name} must be a list.", f"It is {_shown(value)}.", "Give a list.")
    return list(value)


def _options(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RecordError("chat_template_kwargs must be an object.", f"It is {_shown(value)}.", "Give names and values.")
    return {str(name): item for name, item in value.items()}


def _weight(value: Any, name: str) -> float:
    number = isinstance(value, (int, float)) and (value == 0 or _LEAST_WEIGHT <= value <= _MOST_WEIGHT)
    if not number:
        raise RecordError(
            f"{name} must be 0, or a number from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}.",
            f"It is {_shown(value)}.",
            "Give a finite weight of usual size.",
        )
    return float(value)


def _shallow(value: Any, name: str, left: int = _MOST_DEEP) -> Any:
    """Return ``value``, or raise where it nests so deep that a renderer could not take it."""
    if value is None or type(value) is str:
        return value
    if left < 0:
        raise RecordError(f"{name} may nest {_MOST_DEEP} levels deep.", "It nests deeper.", "Flatten it.")
    if isinstance(value, Mapping):
        for item in value.values():
            _shallow(item, name, left - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _shallow(item, name, left - 1)
    return value


def _shown(value: Any) -> str:
    """Return a short text of what was found."""
    try:
        text = repr(value)
    except RecursionError:
        text = "something that nests too deep"
    return f"{text[:80]}... ({type(value).__name__})" if len(text) > 80 else f"{text} ({type(value).__name__})"


def refuse_marks(texts: Sequence[str]) -> None:
    """Raise a RecordError if a text holds what cannot be tokenised or marked: a lone surrogate, or our own mark characters."""
    for text in texts:
        if text.isascii():
            continue
        if has_marks(text):
            raise RecordError(
                "a text must not hold characters of the private planes, U+F0000 to U+10FDFF.",
                "It does.",
                "Remove them: they are kept for marks.",
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RecordError(
                "a text must be valid Unicode.", f"It has a lone surrogate at {error.start}.", "Mend it."
            ) from error
