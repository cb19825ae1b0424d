"""A block in the terminal: its text token by token, a colour and a wall for each segment, targets strong, context dim.

Without colour nothing is lost: walls are drawn, and trained stretches stand between ⟦ and ⟧.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from cloison.blocks import Block
from cloison.segments import IGNORE
from cloison.view.pieces import pieces, visible
from cloison.view.tables import counted

__all__ = ["block_facts", "block_view"]

_WALL = "▌ "
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


class _BlockView:
    """Renders itself with or without colour, as the console can."""

    def __init__(self, block: Block, index: int, count: int, tokenizer: Any) -> None:
        self.block, self.index, self.count, self.tokenizer = block, index, count, tokenizer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        yield Group(*_parts(self.block, self.index, self.count, self.tokenizer, coloured))


class _Walled:
    """Text with the wall of its segment before every line, also where a line had to be wrapped."""

    def __init__(self, text: Text, colour: str) -> None:
        self.text, self.colour = text, colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - len(_WALL), 1)
        for line in self.text.wrap(console, width, tab_size=4):
            line.rstrip()
            yield Text.assemble((_WALL, self.colour), line)


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


def _parts(block: Block, index: int, count: int, tokenizer: Any, coloured: bool) -> list[Any]:
    capacity = block.segments.capacity or block.num_tokens
    out: list[Any] = [
        Text(
            f"block {index} of {count}: {counted(len(block), 'segment')}, {block.num_tokens:,} of {capacity:,} tokens, "
            f"{counted(block.num_targets, 'target')}",
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
        head = f"segment {number}: sample {sample_id}"
        head += f" from token {start:,}" if start else ""
        head += f", {counted(length, 'token')}, {sum(trained):,} trained"
        carried = [f"{visible(name)}={visible(str(column[number]))}" for name, column in block.segment_columns.items()]
        out.append(_Walled(Text("  ".join([head, *carried]), style=f"bold {colour}".strip()), colour))
        out.append(_Walled(_segment(texts[begin:end], trained, colour, coloured, ids=tokenizer is None), colour))
        begin = end
    if begin < capacity:
        out.append(_Walled(Text(f"padding: {counted(capacity - begin, 'token position')}"), "dim" if coloured else ""))
    return out


def _segment(texts: list[str], trained: list[bool], colour: str, coloured: bool, *, ids: bool) -> Text:
    text = Text()
    for target, run in groupby(zip(texts, trained, strict=True), key=itemgetter(1)):
        said = "".join(piece + (" " if ids else "") for piece, _ in run)
        if coloured:
            text.append(said, style=f"bold {colour}" if target else f"dim {colour}")
        else:
            text.append(f"⟦{said}⟧" if target else said)
    return text
