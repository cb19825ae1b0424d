"""The parts that a column of the sources can play, and the check of what is said of them."""

from __future__ import annotations

from collections.abc import Mapping

from cloison.errors import SpecError

__all__ = ["PARTS", "check_columns"]

PARTS = {
    "messages": "a chat: a list of {role, content, ...}",
    "conversations": "a chat in ShareGPT's words: a list of {from, value}",
    "prompt": "what comes before the completion: a string or a list of messages",
    "completion": "what is to be learnt: a string or a list of messages",
    "text": "a document",
    "instruction": "the task of an alpaca record",
    "input": "the input of an alpaca record",
    "output": "the answer of an alpaca record",
    "history": "earlier [question, answer] pairs of an alpaca record",
    "input_ids": "token ids",
    "labels": "targets of input_ids, -100 where none",
    "completion_mask": "1 where a token of input_ids is to be learnt",
    "assistant_masks": "1 where a token of input_ids is the assistant's",
    "tools": "tools that the template shows: a list, or its JSON",
    "system": "a system message before a chat or alpaca record",
    "documents": "documents that the template shows",
    "weight": "the weight of the record in the loss (named only, never recognised)",
    "chat_template_kwargs": "further variables of the template",
}
"""What a column can be: the names on the left side of ``columns={"messages": "dialog"}``."""


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise a SpecError if ``columns`` names a part that there is not, or one by something else than a name."""
    unknown = sorted(repr(part) for part in columns if part not in PARTS)
    if unknown:
        raise SpecError(f"columns names the part {', '.join(unknown)}.", f"There are {', '.join(PARTS)}.", "Use one of these.")
    for part, name in columns.items():
        if not isinstance(name, str):
            raise SpecError(
                f"columns names the column that is {part!r}.", f"It is {name!r}.", f'Pass columns={{"{part}": "NAME"}}.'
            )
