"""Whole numbers as options of the command line take them."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["whole_number"]


def whole_number(word: str) -> int:
    """Return the number that ``word`` writes out, as 4096 or 4_096.

    Raises:
        ArgumentTypeError: it is none: "4k" may mean 4,000 or 4,096, and nobody guesses which.
    """
    try:
        return int(word)
    except ValueError:
        raise ArgumentTypeError(f"it takes a whole number, as 4096; {word!r} is none.") from None
