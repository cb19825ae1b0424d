"""Look at the packed blocks of DIR, token by token: segments with their walls, what is trained, what is context."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from cloison.errors import InputError
from cloison.view.outcome import Outcome
from cloison.view.output_option import add_html_option, refuse_existing_page
from cloison.view.whole_number import whole_number

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison show``."""
    parser.add_argument("path", metavar="DIR", help="a packed data set, its folder or URL")
    parser.add_argument("--block", type=whole_number, metavar="I", help="which block; negative from the end (default: 0)")
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="show text by this tokenizer (default: the one of the token store beside DIR; else token ids)",
    )
    add_html_option(parser, "write a page instead, with the first blocks, those with findings, and the one of --block")


def run(args: Namespace) -> Outcome:
    """Show one block in the terminal, or write a page."""
    from cloison.packing.tokens import tokenizer_of
    from cloison.store.packed import open

    refuse_existing_page(args)
    packed = open(args.path)
    backend = _backend(args.tokenizer or tokenizer_of(packed))
    if args.html is not None:
        return _page(args, packed, backend)
    from cloison.view.terminal_block import block_facts, block_view

    if not len(packed):
        kinds = ", ".join(f"{entry.samples:,} {kind}" for kind, entry in packed.ledger.entries.items() if entry.samples)
        raise InputError(
            "cloison show looks at blocks.",
            f"{args.path} has none: {packed.ledger.samples_in:,} records were read{f' ({kinds})' if kinds else ''}.",
            "Look at the sources, and pack them into a new folder.",
        )
    index = 0 if args.block is None else args.block
    if not -len(packed) <= index < len(packed):
        raise InputError(
            f"--block {index} must be a block of {args.path}.",
            f"It has {len(packed):,}, numbered from 0.",
            "Pick another.",
        )
    index = range(len(packed))[index]
    block = packed[index]
    return Outcome(0, block_view(block, index, len(packed), backend), block_facts(block, index, backend))


def _backend(tokenizer: str | None) -> Any:
    if tokenizer is None:
        return None
    from cloison.text.tokenizer import load_tokenizer

    return load_tokenizer(tokenizer).backend


def _page(args: Namespace, packed: Any, backend: Any) -> Outcome:
    from cloison.view.packed_page import packed_page
    from cloison.view.page import write_page

    page = packed_page(packed, backend, asked=() if args.block is None else [args.block])
    path = write_page(page, args.html, replace=args.force)
    return Outcome(0, f"wrote {path}", {"path": str(path)})
