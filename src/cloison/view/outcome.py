"""Outcome: what a command has to say, for the eye and for programs. The command line prints it; nothing else does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """The end of a command.

    Attributes:
        status: the exit status: 0 as it should be, 1 a finding, 2 nothing of what was asked could be done.
        shown: what a person reads: a string, or anything that rich renders; None for nothing.
        plain: the same as plain data, for ``--json``.
    """

    status: int
    shown: Any
    plain: Any
