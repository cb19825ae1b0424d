"""A set of small integers as bits, with a summary level: the next member at or above, at or below, in a few steps.

Layout: one uint64 array; words 0..w-1 are the members, the rest the summary (bit i: word i is not empty). For 131,072 integers
that is 2,048 words and 32 of summary: two levels, the summary walked word by word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

__all__ = ["add", "at_least", "at_most", "discard", "leading_zeros", "words"]

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_63 = np.uint64(63)
_6 = np.uint64(6)


def _count_zeros(instruction: str) -> Any:
    """Return a function of one uint64, not 0, that is the LLVM instruction of that name ("cttz": from the lowest bit)."""

    def typed(typing_context: Any, word: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(args[0], ir.Constant(ir.IntType(1), 1))

        return types.uint64(types.uint64), build

    return intrinsic(typed)


_lowest = _count_zeros("cttz")
leading_zeros = _count_zeros("ctlz")


@njit(cache=True)
def words(size: int) -> Any:
    """Return the empty set for members 0..size-1 and the index where its summary begins."""
    members = (size + 63) // 64
    return np.zeros(members + (members + 63) // 64, np.uint64), members


@njit(cache=True, inline="always")
def add(bits: Any, summary: int, member: int) -> None:
    """Put ``member`` in."""
    m = np.uint64(member)
    w = m >> _6
    bits[w] |= _ONE << (m & _63)
    bits[np.uint64(summary) + (w >> _6)] |= _ONE << (w & _63)


@njit(cache=True, inline="always")
def discard(bits: Any, summary: int, member: int) -> None:
    """Take ``member`` out."""
    m = np.uint64(member)
    w = m >> _6
    bits[w] &= ~(_ONE << (m & _63))
    if bits[w] == np.uint64(0):
        bits[np.uint64(summary) + (w >> _6)] &= ~(_ONE << (w & _63))


@njit(cache=True)
def at_least(bits: Any, summary: int, member: int) -> Any:
    """Return the smallest member of ``member`` or more, or -1."""
    if member >= summary * 64:
        return -1
    m = np.uint64(member)
    w = m >> _6
    word = bits[w] & (_ALL << (m & _63))
    if word != np.uint64(0):
        return np.int64((w << _6) + _lowest(word))
    w += _ONE
    s = w >> _6
    if np.int64(s) + summary >= bits.size:
        return -1
    word = bits[np.uint64(summary) + s] & (_ALL << (w & _63))
    while word == np.uint64(0):
        s += _ONE
        if np.int64(s) + summary >= bits.size:
            return -1
        word = bits[np.uint64(summary) + s]
    w = (s << _6) + _lowest(word)
    return np.int64((w << _6) + _lowest(bits[w]))


@njit(cache=True)
def at_most(bits: Any, summary: int, member: int) -> Any:
    """Return the largest member of ``member`` or less, or -1."""
    if member < 0:
        return -1
    m = np.uint64(member)
    w = m >> _6
    word = bits[w] & (_ALL >> (_63 - (m & _63)))
    if word != np.uint64(0):
        return np.int64((w << _6) + _63 - leading_zeros(word))
    if w == np.uint64(0):
        return -1
    w -= _ONE
    s = w >> _6
    word = bits[np.uint64(summary) + s] & (_ALL >> (_63 - (w & _63)))
    while word == np.uint64(0):
        if s == np.uint64(0):
            return -1
        s -= _ONE
        word = bits[np.uint64(summary) + s]
    w = (s << _6) + _63 - leading_zeros(word)
    return np.int64((w << _6) + _63 - leading_zeros(bits[w]))
