"""Columns that must be integers and are not: floats of a table library, booleans, numbers of a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cloison.checking.hits import Hit, Place
from cloison.checking.ragged import Ragged
from cloison.findings import Severity

__all__ = ["as_integers"]

_LOOKED_UP = ("input_ids", "labels", "targets")
"""What an embedding or a loss takes as indices: these it refuses, whatever their value."""

_COUNTED = ("seq_lengths", "seq_start_id", "cu_seqlens", "segment_ids", "sequence_id", "position_ids", "sample_ids", "starts")
"""What numpy and most kernels cast where the numbers are whole."""


def as_integers(columns: Mapping[str, Ragged], at: Callable[[int], Place]) -> tuple[dict[str, Ragged], list[Hit]]:
    """Return ``columns`` (by our names) with integers where there must be some, and a hit for each column that had none.

    What is no whole number is cut to one, and NaN and infinities to 0, so that the other rules can go on.
    """
    out, hits = dict(columns), []
    for name in (*_LOOKED_UP, *_COUNTED):
        column = columns.get(name)
        if column is None or column.values.dtype.kind in "iu" or not column.values.size:
            continue
        values = column.values
        finite = np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.size, bool)
        whole = finite & (np.trunc(values) == values) if values.dtype.kind == "f" else finite
        broken = np.flatnonzero(~whole)
        first = int(broken[0]) if broken.size else 0
        severity: Severity = "error" if name in _LOOKED_UP or broken.size else "warning"
        details = {
            "column": name,
            "variant": name,
            "dtype": str(values.dtype),
            "reason": f"; {broken.size:,} are no whole numbers, as {values[first]}" if broken.size else "",
        }
        row = int(np.searchsorted(column.offsets, first, "right")) - 1
        hits.append(Hit("not_integer", values.size, values.size, at(row), severity, details))
        out[name] = Ragged(np.trunc(np.where(finite, values, 0)).astype(np.int64), column.offsets)
    return out, hits
