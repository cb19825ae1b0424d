"""xformers: block-diagonal attention biases, for q, k, v of [1, B * T, heads, dim]."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from cloison.errors import InputError, MissingDependencyError
from cloison.forms.intervals import cut_into_chunks
from cloison.segments import Segments

__all__ = ["attn_bias", "seqlens"]


def seqlens(segments: Segments, *, chunk: int | None = None) -> list[int]:
    """Return the lengths that ``from_seqlens`` takes: all segments of all rows, each row's padding tail as one more.

    >>> seqlens(Segments.from_lengths([[3, 2], [4]], capacity=6))
    [3, 2, 1, 4, 2]
    """
    pieces = segments if chunk is None else cut_into_chunks(segments, chunk)
    lengths: list[int] = np.diff(pieces.cu_seqlens(covering=True)).tolist()
    return lengths


def attn_bias(segments: Segments, *, causal: bool = True, window: int | None = None, chunk: int | None = None) -> Any:
    """Return the ``attn_bias`` of ``memory_efficient_attention`` for ``segments``.

    Args:
        causal, window, chunk: as in `Segments.dense_mask`; a window needs ``causal``.

    Raises:
        MissingDependencyError: xformers is not installed (no extra brings it: each build fits one version of torch).
        InputError: a window without causality, which xformers has no block-diagonal form for.
    """
    if window is not None and not causal:
        raise InputError("xformers has local block-diagonal masks for causal attention only.", "causal is False.", "Use flex.")
    try:
        biases = import_module("xformers.ops.fmha.attn_bias")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "this needs xformers.", "It is not installed.", "Install the build that fits your torch: pip install xformers"
        ) from error
    lengths = seqlens(segments, chunk=chunk)
    if not causal:
        return biases.BlockDiagonalMask.from_seqlens(lengths)
    bias = biases.BlockDiagonalCausalMask.from_seqlens(lengths)
    return bias if window is None else bias.make_local_attention(window)
