"""What an error advises, in the words of the command line: Python's arguments become options."""

from __future__ import annotations

import re
from collections.abc import Container

__all__ = ["as_options"]

_ARGUMENT = re.compile(r"(?<![\w.(-])(?P<name>[a-z_]+)=(?:[\"'](?P<quoted>[^\"']+)[\"']|(?P<bare>[\w./-]*\w))")
"""NAME="value" or NAME=value where it stands alone, not inside a call."""


_QUOTED = re.compile(r'"(\w+)"')


def as_options(remedy: str, options: Container[str]) -> str:
    """Return ``remedy`` with the arguments that are ``options`` of the command written as such.

    >>> as_options('Pass overflow="split", "truncate" or raise capacity.', {"overflow", "capacity"})
    'Pass --overflow split, truncate or raise capacity.'
    >>> as_options("Pass split_prompts=True, or PackSpec(capacity=8).", {"split_prompts", "capacity"})
    'Pass --split-prompts, or PackSpec(capacity=8).'
    """

    def option(found: re.Match[str]) -> str:
        name, value = found["name"], found["quoted"] or found["bare"]
        if name not in options or value == "False":
            return found[0]
        flag = f"--{name.replace('_', '-')}"
        return flag if value == "True" else f"{flag} {value}"

    said = _ARGUMENT.sub(option, remedy)
    return said if said == remedy else _QUOTED.sub(r"\1", said)
