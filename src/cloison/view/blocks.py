"""The block section of a page: the real text token by token, as plain data that the page's script draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloison.blocks import Block
from cloison.view.pieces import pieces

__all__ = ["block_data", "block_section", "choose_blocks"]

TOKEN_BUDGET = 40_000
"""Tokens whose text a page holds: about 1 MB."""


def choose_blocks(
    capacity: int, num_blocks: int, asked: Sequence[int] = (), found: Sequence[int] = (), budget: int = TOKEN_BUDGET
) -> list[int]:
    """Return the numbers of the blocks whose text the page holds, in order.

    First those that were ``asked`` for, then those with findings (``found``), then the first ones, as far as ``budget`` tokens
    go; never none.
    """
    room = max(1, budget // capacity)
    wanted = dict.fromkeys([*asked, *found, *range(min(num_blocks, room))])
    return sorted([number for number in wanted if 0 <= number < num_blocks][: max(room, len(set(asked)))])


def block_data(
    numbered: Sequence[tuple[int, Block]],
    tokenizer: Any | None,
    capacity: int,
    num_blocks: int,
    findings: Mapping[int, Sequence[str]] | None = None,
    wrong: Mapping[int, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Return what the script reads: ``blocks``, ``capacity``, and a sentence about what is left out.

    Args:
        numbered: (number, block) pairs.
        tokenizer: a ``tokenizers.Tokenizer``, or None to show ids.
        capacity: tokens a block holds.
        num_blocks: of the whole data set.
        findings: block number to messages.
        wrong: block number to the indices of tokens whose target is wrong.
    """
    shown = []
    for number, block in numbered:
        entry = {
            "block": number,
            "ids": block.input_ids.tolist(),
            "text": pieces(block.input_ids.tolist(), tokenizer),
            "labels": block.labels.tolist(),
            "lengths": block.segments.seq_lengths.tolist(),
            "samples": block.sample_ids.tolist(),
            "findings": list((findings or {}).get(number, ())),
        }
        if block.starts.any():
            entry["starts"] = block.starts.tolist()
        if wrong and number in wrong:
            entry["wrong"] = list(wrong[number])
        shown.append(entry)
    return {"blocks": shown, "capacity": capacity, "left_out": _left_out(len(shown), num_blocks)}


def block_section(data: Mapping[str, Any], tokenizer: Any | None) -> dict[str, Any]:
    """Return the section that goes with `block_data`."""
    said = data["left_out"]
    if tokenizer is None:
        said += " The tokenizer is not there, so token ids are shown in place of text (pass --tokenizer)."
    return {"id": "blocks", "title": "Blocks", "template": "blocks.html.j2", "count": len(data["blocks"]), "said": said}


def _left_out(shown: int, total: int) -> str:
    if shown == total:
        return f"All {total:,} blocks are on this page."
    return (
        f"{shown:,} of {total:,} blocks are on this page with their text: asked for, with findings, or first. "
        "For another: cloison show DIR --html FILE --block N."
    )
