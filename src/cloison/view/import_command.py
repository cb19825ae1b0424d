"""Take in a token store of another system as samples, so that packing them tokenises nothing."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from cloison.formats.importing import FORMATS, import_tokens
from cloison.formats.olmo_core import DTYPES
from cloison.view.outcome import Outcome
from cloison.view.whole_number import whole_number

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison import``."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a Megatron prefix, .npy or .ds files or their folder, an MDS folder; or a URL"
    )
    parser.add_argument("dest", metavar="DEST", help="a new or empty folder, or its URL; then a source for cloison pack")
    parser.add_argument("--from", dest="format", required=True, choices=FORMATS, help="the format")
    parser.add_argument("--dtype", choices=DTYPES, help="the type of the ids in raw .npy arrays (olmo-core)")
    parser.add_argument(
        "--eos", type=whole_number, metavar="ID", help="documents end in it, where nothing else says where they end"
    )
    parser.add_argument("--lose", nargs="+", default=[], choices=["weights"], help="what samples cannot hold, and may be lost")


def run(args: Namespace) -> Outcome:
    """Import, and say what was read."""
    done = import_tokens(args.source, args.dest, args.format, dtype=args.dtype, eos_token_id=args.eos, lose=args.lose)
    says = "with the targets that it states" if done.masked else "every token a target (it states none)"
    lines = [
        f"wrote {done.path}: {done.samples:,} samples, {done.tokens:,} tokens, {says}",
        *([f"  columns left out: {', '.join(done.left_out)}"] if done.left_out else []),
        f"  pack it: cloison pack {done.path} --out DIR --capacity N",
    ]
    return Outcome(0, "\n".join(lines), done.to_dict())
