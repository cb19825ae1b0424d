"""The order of everything that is shuffled: keyed bijections of our own, the same on every machine and in every version.

`permute(i, n, key)` maps 0..n-1 onto itself, without a table, so that any place of a shuffled order is found by itself:

- n > 256: a Feistel network over Z_a x Z_b with a = ceil(sqrt(n)) and b = ceil(n / a): x = left * b + right; in turns
  ``left = left + f(right) mod a`` and ``right = right + f(left) mod b``, six rounds, f a 64-bit mixer of the round key;
  results of n and above (fewer than a of them) are mapped again until they fall below n.
- n <= 256: few rounds on few items are visibly uneven, so a Fisher-Yates shuffle of 0..n-1, whose i-th entry is the answer.

Randomness is splitmix64 (Steele, Lea, Flood 2014) of key and counter. Source of the construction: Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002. It serves mixing, not secrecy. Cost: about 20 ns for one item of large n,
2-4 ns an item of a range (the rounds of many items run in vector registers), O(n) a call for n <= 256.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["DRAWN", "derive", "permutation", "permute", "shuffle", "shuffle_with"]

SMALL = 256
DRAWN = 256
"""Random numbers that a shuffle draws at once."""
_LANES = 64
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@njit(cache=True, inline="always")
def mix(value: Any) -> Any:
    """Return splitmix64's output function of ``value`` (uint64)."""
    value = (value ^ (value >> _S30)) * _M1
    value = (value ^ (value >> _S27)) * _M2
    return value ^ (value >> _S31)


@njit(cache=True, inline="always")
def below(key: Any, counter: Any, n: Any) -> Any:
    """Return a number in 0..n-1 (n < 2**32), the counter-th of the key's stream; uneven by at most n / 2**32."""
    return ((mix(key + np.uint64(counter) * _GAMMA) >> _S32) * np.uint64(n)) >> _S32


@njit(cache=True)
def sides(n: int) -> Any:
    """Return (a, b) with a * b >= n, both about sqrt(n)."""
    a = np.uint64(np.ceil(np.sqrt(n)))
    a = max(a, np.uint64(1))
    b = (np.uint64(n) + a - np.uint64(1)) // a
    return a, b


@njit(cache=True, inline="always")
def _rounds(left: Any, right: Any, a: Any, b: Any, key: Any) -> Any:
    """Return (left, right) after the six rounds; without a branch, so that a loop over it is vectorised."""
    key += _GAMMA
    for _ in range(3):
        left += ((mix(key ^ (right * _M2)) >> _S32) * a) >> _S32
        left = min(left, left - a)  # unsigned: what is below a wraps round to more
        key += _GAMMA
        right += ((mix(key ^ (left * _M2)) >> _S32) * b) >> _S32
        right = min(right, right - b)
        key += _GAMMA
    return left, right


@njit(cache=True)
def feistel(x: Any, n: Any, a: Any, b: Any, key: Any) -> Any:
    """Return the image of ``x`` under the Feistel network of the module docstring; (a, b) = sides(n)."""
    x = np.uint64(x)
    while True:
        left, right = _rounds(x // b, x % b, a, b, key)
        x = left * b + right
        if x < n:
            return x


@njit(cache=True)
def shuffle(values: Any, key: Any) -> None:
    """Shuffle ``values`` in place (Fisher-Yates, from the end), at most 2**32 of them."""
    shuffle_with(values, key, np.empty(min(values.size, DRAWN), np.uint32))


@njit(cache=True, nogil=True)
def shuffle_with(values: Any, key: Any, drawn: Any) -> None:
    """Do the same, with ``drawn`` uint32 [1 or more] to draw into, for those who shuffle many small arrays."""
    for last in range(values.size - 1, 0, -max(drawn.size, 1)):
        size = min(drawn.size, last)
        for i in range(size):  # apart from the swaps, so that it is vectorised
            drawn[i] = below(key, last - i, last - i + 1)
        for i in range(size):
            j = drawn[i]
            values[last - i], values[j] = values[j], values[last - i]


@njit(cache=True)
def permute(x: int, n: int, key: Any) -> Any:
    """Return where the bijection of ``key`` over 0..n-1 takes ``x``."""
    if n <= SMALL:
        table = np.empty(n, np.uint16)
        for i in range(n):
            table[i] = i
        shuffle(table, key)
        return np.int64(table[x])
    a, b = sides(n)
    return np.int64(feistel(np.uint64(x), np.uint64(n), a, b, key))


@njit(cache=True, nogil=True)
def permute_range(first: int, n: int, key: Any, out: Any) -> None:
    """Write permute(first), permute(first + 1), ... to ``out``."""
    if n <= SMALL:
        table = np.empty(n, np.uint16)
        for i in range(n):
            table[i] = i
        shuffle(table, key)
        for i in range(out.size):
            out[i] = table[first + i]
    else:
        a, b = sides(n)
        left, right = np.uint64(first) // b, np.uint64(first) % b
        lefts, rights = np.empty(_LANES, np.uint64), np.empty(_LANES, np.uint64)
        for at in range(0, out.size, _LANES):
            for i in range(_LANES):
                lefts[i], rights[i] = left, right
                right += np.uint64(1)
                if right == b:
                    left, right = left + np.uint64(1), np.uint64(0)
            for i in range(_LANES):
                x, y = _rounds(lefts[i], rights[i], a, b, key)
                lefts[i] = x * b + y
            for i in range(min(_LANES, out.size - at)):
                image = lefts[i]
                out[at + i] = image if image < np.uint64(n) else feistel(image, np.uint64(n), a, b, key)


def derive(seed: int, *labels: int) -> np.uint64:
    """Return the key of a purpose: ``seed`` and each label absorbed in turn. Seeds may be any non-negative integer."""
    mask = (1 << 64) - 1

    def scramble(value: int) -> int:
        value = ((value ^ (value >> 30)) * int(_M1)) & mask
        value = ((value ^ (value >> 27)) * int(_M2)) & mask
        return value ^ (value >> 31)

    state, rest = 0, seed
    while True:
        state = scramble((state + (rest & mask) + int(_GAMMA)) & mask)
        rest >>= 64
        if not rest:
            break
    for label in labels:
        state = scramble((state ^ scramble((label + int(_GAMMA)) & mask)) + int(_GAMMA) & mask)
    return np.uint64(state)


def permutation(n: int, key: np.uint64, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
    """Return permute(start..stop-1, n, key), uint32 where n fits, else int64.

    >>> permutation(5, derive(0)).tolist() == [int(permute(i, 5, derive(0))) for i in range(5)]
    True
    """
    stop = n if stop is None else stop
    out = np.empty(stop - start, np.uint32 if n <= 2**32 else np.int64)
    if out.size:
        permute_range(start, n, key, out)
    return out
