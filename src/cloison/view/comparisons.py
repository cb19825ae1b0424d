"""Packed against alone, quantity by quantity: how far samples differ, and what rounding may do."""

from __future__ import annotations

from cloison.proof.report import Verdict

__all__ = ["COMPARED", "comparisons"]

COMPARED = ("what", "differs by", "rounding may do", "verdict", "most in")
"""The heads of the columns."""


def comparisons(equality: Verdict) -> list[tuple[str, ...]]:
    """Return a row for each comparison of an equality verdict, by `COMPARED`; none where nothing was compared.

    Sizes are standard deviations of the quantity; of parameter gradients, shares of each parameter's largest entry.
    """
    rows = []
    for quantity, numbers in (equality.evidence.get("comparisons") or {}).items():
        sizes = (f"{numbers[name]:.2g}" if numbers[name] is not None else "–" for name in ("error", "allowed"))
        rows.append((str(quantity), *sizes, "rounding" if numbers["equal"] else "differs", str(numbers["where"] or "")))
    return rows
