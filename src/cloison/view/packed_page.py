"""The page of a packed data set: overview, and blocks token by token with what `check` finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloison.checking.check import check
from cloison.findings import Finding
from cloison.places import absolute
from cloison.store.packed import Packed
from cloison.view.blocks import block_data, block_section, choose_blocks
from cloison.view.overview import overview_section, stale_notice
from cloison.view.page import render_page

__all__ = ["packed_page"]


def packed_page(packed: Packed, tokenizer: Any | None, asked: Sequence[int] = ()) -> str:
    """Return the HTML of ``packed``.

    Args:
        packed: an opened data set; its files are read once, for the hashes and for `check`.
        tokenizer: a ``tokenizers.Tokenizer``, or None to show ids.
        asked: numbers of blocks that the page must hold, beside those with findings and the first ones.
    """
    found: dict[int, list[str]] = {}
    for finding in check(packed).findings:
        row = finding.where.get("row")
        if isinstance(row, int) and finding.severity != "note":
            found.setdefault(row, []).append(_line(finding))
    chosen = choose_blocks(packed.capacity, len(packed), asked, list(found))
    data = block_data([(number, packed[number]) for number in chosen], tokenizer, packed.capacity, len(packed), found)
    sections = [overview_section(packed, stale_notice(packed)), block_section(data, tokenizer)]
    m = packed.manifest
    kept = f"{m.ledger.samples_kept:,} samples in {m.num_blocks:,} blocks of {packed.capacity:,} tokens"
    subtitle = f"{kept}; fingerprint {m.fingerprint[:16]}"
    return render_page(f"Packed data: {absolute(packed.path).name}", subtitle, sections, data)


def _line(finding: Finding) -> str:
    return f"{finding.severity}: {finding.message} {finding.fix}".strip()
