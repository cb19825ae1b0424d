"""What an error advises, in the words of the command line: Python's arguments become options."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType

__all__ = ["as_options"]

_ARGUMENT = re.compile(r"(?<![\w.(-])(?P<name>[a-z_]+)=(?:[\"'](?P<quoted>[^\"']+)[\"']|(?P<bare>[\w./-]*\w)|(?=[\s).,;:]|$))")
"""NAME="value", NAME=value or NAME= where it stands alone, not inside a call."""

_TWICE = re.compile(r"(--[a-z-]+) \(\1\)")
"""An argument that names its option behind it, for those who read it in Python."""

_NONE: Mapping[str, str] = MappingProxyType({})

_QUOTED = re.compile(r'"(\w+)"')


def as_options(remedy: str, options: Container[str], renamed: Mapping[str, str] = _NONE) -> str:
    """Return ``remedy`` with the arguments that are ``options`` of the command written as such.

    Args:
        renamed: arguments whose option has another name, to that name.

    >>> as_options('Pass overflow="split", "truncate" or raise capacity.', {"overflow", "capacity"})
    'Pass --overflow split, truncate or raise capacity.'
    >>> as_options("Pass split_prompts=True, or PackSpec(capacity=8).", {"split_prompts", "capacity"})
    'Pass --split-prompts, or PackSpec(capacity=8).'
    >>> as_options("Pass tokenizer= or eos_token_id=.", {"tokenizer"}, {"eos_token_id": "eos"})
    'Pass --tokenizer or --eos.'
    >>> as_options("Pass dtype= (--dtype), one of uint16, uint32.", {"dtype"})
    'Pass --dtype, one of uint16, uint32.'
    """

    def option(found: re.Match[str]) -> str:
        name, value = found["name"], found["quoted"] or found["bare"]
        if (name not in options and name not in renamed) or value == "False":
            return found[0]
        flag = f"--{renamed.get(name, name).replace('_', '-')}"
        return flag if value in ("True", None) else f"{flag} {value}"

    said = _TWICE.sub(r"\1", _ARGUMENT.sub(option, remedy))
    return said if said == remedy else _QUOTED.sub(r"\1", said)
