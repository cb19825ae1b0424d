"""The sums that some lengths can be added up to, as bits: bit s of a row of uint64 words is set where s can be reached."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cloison.planning.bitset import leading_zeros

__all__ = ["add_length", "has", "last"]

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_63 = np.uint64(63)


@njit(cache=True, nogil=True, inline="always")
def has(bits: Any, member: int) -> Any:
    """Return whether ``member`` is in."""
    return (bits[member >> 6] >> (np.uint64(member) & _63)) & _ONE != np.uint64(0)


@njit(cache=True, nogil=True)
def last(bits: Any, member: int) -> Any:
    """Return the largest member of ``member`` or less, or -1."""
    if member < 0:
        return -1
    w = member >> 6
    word = bits[w] & (_ALL >> (_63 - (np.uint64(member) & _63)))
    while word == np.uint64(0):
        w -= 1
        if w < 0:
            return -1
        word = bits[w]
    return (w << 6) + np.int64(_63 - leading_zeros(word))


@njit(cache=True, nogil=True)
def add_length(bits: Any, out: Any, length: int, size: int) -> None:
    """Let ``out`` be what ``bits`` holds and the same ``length`` higher, over ``size`` words; the two are not one array."""
    w, s = min(length >> 6, size), np.uint64(length & 63)
    for j in range(w):
        out[j] = bits[j]
    if s == np.uint64(0):
        for j in range(w, size):
            out[j] = bits[j] | bits[j - w]
    elif w < size:
        back = np.uint64(64) - s
        out[w] = bits[w] | (bits[0] << s)
        for j in range(w + 1, size):
            out[j] = bits[j] | (bits[j - w] << s) | (bits[j - w - 1] >> back)
