"""Write a packed data set in another system's format: boundaries and targets as that system reads them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from cloison.formats.exporting import LOSSES, TARGETS, export
from cloison.view.outcome import Outcome
from cloison.view.whole_number import whole_number

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison export``."""
    parser.add_argument("source", metavar="DIR", help="a packed data set, its folder or URL")
    parser.add_argument("dest", metavar="DEST", help="a new or empty folder, or its URL")
    parser.add_argument("--to", required=True, choices=sorted(TARGETS), help="the format")
    parser.add_argument(
        "--lose", nargs="+", default=[], choices=sorted(LOSSES), help="what the format cannot hold, and may be lost"
    )
    parser.add_argument(
        "--pad-token-id", type=whole_number, default=0, metavar="ID", help="padding of formats of fixed width (0)"
    )


def run(args: Namespace) -> Outcome:
    """Export, and say what was written and how it is read."""
    done = export(args.source, args.dest, args.to, lose=args.lose, pad_token_id=args.pad_token_id)
    lines = [
        f"wrote {done.path} for {done.to}: {len(done.files):,} file{'s' * (len(done.files) != 1)}",
        f"  {done.blocks:,} blocks, {done.segments:,} segments, {done.tokens:,} tokens, {done.targets:,} targets",
        *(f"  lost: {name}, {LOSSES[name]}" for name in done.lost),
        f"  read it as: {done.usage}",
    ]
    return Outcome(0, "\n".join(lines), done.to_dict())
