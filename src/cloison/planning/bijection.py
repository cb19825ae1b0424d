"""The order of everything that is shuffled: keyed bijections of our own, the same on every machine and in every version.

`permute(i, n, key)` maps 0..n-1 onto itself, without a table, so that any place of a shuffled order is found by itself:

- n > 256: a Feistel network over Z_a x Z_b with a = ceil(sqrt(n)) and b = ceil(n / a): x = left * b + right; in turns
  ``left = left + f(right) mod a`` and ``right = right + f(left) mod b``, six rounds, f a 64-bit mixer of the round key;
  results of n and above (fewer than a of them) are mapped again until they fall below n.
- n <= 256: few rounds on few items are visibly uneven, so a Fisher-Yates shuffle of 0..n-1, whose i-th entry is the answer.

Randomness is splitmix64 (Steele, Lea, Flood 2014) of key and counter. Source of the construction: Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002. It serves mixing, not secrecy. Cost: about 10 ns an item for large n,
O(n) a call for n <= 256.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["derive", "permutation", "permute", "shuffle"]

SMALL = 256
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


@njit(cache=True)
def feistel(x: Any, n: Any, a: Any, b: Any, key: Any) -> Any:
    """Return the image of ``x`` under the Feistel network of the module docstring; (a, b) = sides(n)."""
    x = np.uint64(x)
    while True:
        left = x // b
        right = x - left * b
        for turn in range(3):
            k = key + np.uint64(2 * turn + 1) * _GAMMA
            left += ((mix(k ^ (right * _M2)) >> _S32) * a) >> _S32
            if left >= a:
                left -= a
            k += _GAMMA
            right += ((mix(k ^ (left * _M2)) >> _S32) * b) >> _S32
            if right >= b:
                right -= b
        x = left * b + right
        if x < n:
            return x


@njit(cache=True)
def shuffle(values: Any, key: Any) -> None:
    """Shuffle ``values`` in place (Fisher-Yates, from the end), at most 2**32 of them."""
    for i in range(values.size - 1, 0, -1):
        j = below(key, i, i + 1)
        values[i], values[j] = values[j], values[i]


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
        for i in range(out.size):
            out[i] = feistel(np.uint64(first + i), np.uint64(n), a, b, key)


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
