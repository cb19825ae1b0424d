"""A block in the terminal: its text token by token, a colour and a wall for each segment, targets strong, context dim.

Without colour nothing is lost: walls are drawn, and trained stretches stand between ⟦ and ⟧.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from cloison.blocks import Block
from cloison.segments import IGNORE
from cloison.view.pieces import pieces, visible

__all__ = ["block_facts", "block_view"]

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


class _BlockView:
    """Renders itself with or without colour, as the console can."""

    def __init__(self, block: Block, index: int, count: int, tokenizer: Any) -> None:
        self.block, self.index, self.count, self.tokenizer = block, index, count, tokenizer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        yield Group(*_lines(self.block, self.index, self.count, self.tokenizer, coloured))


def block_view(block: Block, index: int, count: int, tokenizer: Any | None = None) -> _BlockView:
    """Return ``block``, the ``index``-th of ``count``, as something that rich renders.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``; None shows ids.
    """
    return _BlockView(block, index, count, tokenizer)


def block_facts(block: Block, index: int, tokenizer: Any | None = None) -> dict[str, Any]:
    """Return the block as plain data: ids, labels, lengths, sources, and with a tokenizer each token's text."""
    facts = {
        "block": index,
        "capacity": block.segments.capacity,
        "input_ids": block.input_ids.tolist(),
        "labels": block.labels.tolist(),
        "seq_lengths": block.segments.seq_lengths.tolist(),
        "sample_ids": block.sample_ids.tolist(),
        "starts": block.starts.tolist(),
        "num_targets": block.num_targets,
    }
    if tokenizer is not None:
        facts["pieces"] = pieces(block.input_ids.tolist(), tokenizer)
    return facts


def _lines(block: Block, index: int, count: int, tokenizer: Any, coloured: bool) -> list[Text]:
    capacity = block.segments.capacity or block.num_tokens
    out = [
        Text(
            f"block {index} of {count}: {len(block)} segments, {block.num_tokens:,} of {capacity:,} tokens, "
            f"{block.num_targets:,} targets",
            style="bold",
        ),
        Text("trained: strong   context: dim" if coloured else "trained: between ⟦ and ⟧", style="dim" if coloured else ""),
    ]
    if tokenizer is None:
        out.append(Text("token ids: the tokenizer is not at hand, pass --tokenizer to see text"))
    texts = pieces(block.input_ids.tolist(), tokenizer)
    begin = 0
    for number, (length, sample_id, start) in enumerate(
        zip(block.segments.seq_lengths.tolist(), block.sample_ids.tolist(), block.starts.tolist(), strict=True)
    ):
        end = begin + length
        trained = (block.labels[begin:end] != IGNORE).tolist()
        colour = _COLOURS[number % len(_COLOURS)] if coloured else ""
        head = f"▌ segment {number}: sample {sample_id}"
        head += f" from token {start:,}" if start else ""
        head += f", {length:,} tokens, {sum(trained):,} trained"
        carried = [f"{visible(name)}={visible(str(column[number]))}" for name, column in block.segment_columns.items()]
        out.append(Text("  ".join([head, *carried]), style=f"bold {colour}".strip()))
        out.append(_segment(texts[begin:end], trained, colour, coloured, ids=tokenizer is None))
        begin = end
    if begin < capacity:
        out.append(Text(f"▌ padding: {capacity - begin:,} token positions", style="dim" if coloured else ""))
    return out


def _segment(texts: list[str], trained: list[bool], colour: str, coloured: bool, *, ids: bool) -> Text:
    text = Text()
    strong = False
    for piece, target in zip(texts, trained, strict=True):
        if not coloured and target != strong:
            text.append("⟦" if target else "⟧")
        strong = target
        text.append(piece + (" " if ids else ""), style=(f"bold {colour}" if target else f"dim {colour}") if coloured else "")
    if strong and not coloured:
        text.append("⟧")
    wall = Text("▌ ", style=colour)
    lines = text.split("\n", allow_blank=True)
    out = Text()
    for number, line in enumerate(lines):
        if number:
            out.append("\n")
        out.append_text(wall)
        out.append_text(line)
    return out
