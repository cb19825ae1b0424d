"""Lengths as they come: arrays, sequences, iterators of integers or of chunks, one integer array of any type in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError

__all__ = ["MAX_LENGTH", "in_range", "length_array", "native"]

MAX_LENGTH = 2**31 - 1
"""Tokens that a sample may have."""


def length_array(seq_lengths: Any) -> npt.NDArray[Any]:
    """Return ``seq_lengths`` as an integer array [samples]: itself where it is one, else gathered from its chunks.

    Takes an array, a sequence of integers, or an iterator of integers or of arrays (chunks). Chunks are kept as uint16 where
    all lengths fit, else int32.

    Raises:
        InputError: floats, booleans, text or ragged lists.
    """
    if isinstance(seq_lengths, np.ndarray):
        array = seq_lengths
    elif isinstance(seq_lengths, Sequence) or hasattr(seq_lengths, "__array__"):
        try:
            array = np.asarray(seq_lengths)
        except (ValueError, OverflowError) as error:
            raise InputError("seq_lengths are one flat list of integers.", f"{error}.", "Pass one length a sample.") from error
    elif isinstance(seq_lengths, Iterable):
        array = _gathered(iter(seq_lengths))
    else:
        raise InputError("seq_lengths are integers.", f"A {type(seq_lengths).__name__} came.", "Pass a list or an array.")
    if array.size == 0:
        array = np.zeros(0, np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(
            "seq_lengths are integers, one a sample.",
            f"They have dtype {array.dtype} and shape {list(array.shape)}.",
            "Pass whole tokens as one flat list or array (astype(int) where the numbers are whole).",
        )
    return array


def _gathered(values: Iterator[Any]) -> npt.NDArray[Any]:
    first = next(values, None)
    if first is None:
        return np.zeros(0, np.int32)
    values = chain([first], values)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        try:
            return np.fromiter(values, np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError("seq_lengths are integers.", f"{error}.", "Pass one whole number a sample.") from error
    chunks: list[npt.NDArray[Any]] = []
    narrow = True
    for value in values:
        chunk = length_array(
            value if isinstance(value, np.ndarray) else list(value) if isinstance(value, Iterable) else [value]
        )
        low, high = (int(chunk.min()), int(chunk.max())) if chunk.size else (0, 0)
        in_range(low, high, chunk, sum(part.size for part in chunks))
        narrow = narrow and high < 2**16
        chunks.append(chunk.astype(np.uint16 if high < 2**16 else np.int32))
    out = np.empty(sum(chunk.size for chunk in chunks), np.uint16 if narrow else np.int32)
    at = 0
    for index, chunk in enumerate(chunks):
        out[at : at + chunk.size] = chunk
        at += chunk.size
        chunks[index] = chunk[:0]
    return out


def in_range(low: int, high: int, chunk: npt.NDArray[Any], first: int) -> None:
    if low < 0:
        bad = np.flatnonzero(chunk < 0)
        raise InputError(
            "lengths are 0 or more tokens.",
            f"Sample {first + int(bad[0]):,} has {int(chunk[bad[0]]):,} ({bad.size:,} are negative among the first read).",
            "Pass real lengths.",
        )
    if high > MAX_LENGTH:
        bad = np.flatnonzero(chunk > MAX_LENGTH)
        raise InputError(
            "a length fits int32.",
            f"Sample {first + int(bad[0]):,} has {int(chunk[bad[0]]):,} tokens.",
            "Check the unit, or cut the sample into documents first.",
        )


def native(lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``lengths`` as compiled code reads them: themselves, or a copy of a kind that it is compiled for."""
    kind = lengths.dtype.newbyteorder("=")
    return np.require(lengths, kind if kind.itemsize >= 4 or kind == np.uint16 else np.int32, ["C_CONTIGUOUS", "ALIGNED"])
