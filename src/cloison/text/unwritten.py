"""Messages of roles that a chat template does not know: it writes nothing of them, and says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloison.errors import RecordError

__all__ = ["refuse_unwritten"]

_KNOWN = frozenset({"system", "user", "assistant", "tool"})
"""Roles that every template knows; where it leaves one of their messages out, it means to."""


def refuse_unwritten(messages: Sequence[Mapping[str, Any]], rendered: str) -> None:
    """Raise a RecordError if a message of another role has content of which nothing stands in ``rendered``.

    >>> refuse_unwritten([{"role": "critic", "content": " Good. "}], "<critic>Good.</critic>")
    """
    for index, message in enumerate(messages):
        role, content = str(message.get("role")), message.get("content")
        if role in _KNOWN or not isinstance(content, str) or not content.strip() or content.strip() in rendered:
            continue
        near = {"human": "user", "gpt": "assistant", "bot": "assistant", "developer": "system"}.get(role.lower(), role.lower())
        raise RecordError(
            f"the chat template must write every message: messages[{index}] has the role {role!r}.",
            "It writes nothing of it.",
            f"{f'Name the role {near!r}' if near in _KNOWN else 'Name a role that it knows'}, or pass another chat_template.",
        )
