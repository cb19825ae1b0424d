"""What packing would give, for capacities and policies side by side. Nothing is written but --tokens, where that is given."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.places import place
from cloison.spec import Order, Overflow, PackSpec
from cloison.view.outcome import Outcome
from cloison.view.output_option import add_html_option, refuse_existing_page
from cloison.view.progress import ProgressLine
from cloison.view.spec_options import POLICY_WORDS, add_source_arguments, pairs
from cloison.view.whole_number import whole_number

if TYPE_CHECKING:
    from cloison.packing.tokens import Tokens

__all__ = ["add_arguments", "run"]

_DEFAULT_POLICIES = "look_ahead,best_fit"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison plan``."""
    add_source_arguments(parser, tokens="not kept")
    parser.add_argument(
        "--capacity", action="append", required=True, metavar="N[,N...]", help="tokens a block holds at most; one or more"
    )
    parser.add_argument(
        "--policy", action="append", metavar="P[,P...]", help=f"{POLICY_WORDS}, or all (default: {_DEFAULT_POLICIES})"
    )
    parser.add_argument("--overflow", choices=get_args(Overflow), default="raise", help="samples longer than a block")
    parser.add_argument(
        "--blocks-per-step", type=whole_number, default=64, metavar="B", help="the global batch, in blocks (64)"
    )
    parser.add_argument("--order", choices=get_args(Order), default="shuffled", help="shuffled by seed, or as in the input")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="S", help="of all shuffles")
    parser.add_argument(
        "--look-ahead", type=whole_number, default=1024, metavar="K", help="samples that look_ahead looks ahead"
    )
    parser.add_argument("--max-segments", type=whole_number, metavar="N", help="segments a block holds at most")
    parser.add_argument(
        "--align", type=whole_number, default=1, metavar="N", help="a segment counts as its length rounded up to this"
    )
    parser.add_argument("--max-sample-tokens", type=whole_number, metavar="N", help="overflow acts at this length already")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds a searching policy may take")
    add_html_option(parser)
    parser.add_argument("--columns", nargs="+", metavar="PART=NAME", help="which column plays which part (messages=dialog)")


def run(args: Namespace) -> Outcome:
    """Plan every capacity with every policy, and say what each gives. Where each of them is refused, the status is 2."""
    from cloison.packing.whereabouts import placed
    from cloison.planning import POLICIES
    from cloison.view.page import write_page
    from cloison.view.plan_page import plan_page
    from cloison.view.plan_table import length_summary, plan_rows, plan_table

    refuse_existing_page(args)
    asked = ",".join(args.policy or [_DEFAULT_POLICIES])
    policies = list(POLICIES) if asked == "all" else [word for word in asked.split(",") if word]
    capacities = _numbers(",".join(args.capacity))
    names = ("overflow", "order", "seed", "look_ahead", "max_segments", "align", "max_sample_tokens", "time_limit")
    options = {name: getattr(args, name) for name in names}
    with ProgressLine() as progress:
        lengths, tokens = _lengths(args, capacities[0], progress)
        rows = plan_rows(
            lengths,
            capacities,
            policies,
            blocks_per_step=args.blocks_per_step,
            progress=progress,
            placed=None if tokens is None else lambda error: placed(error, tokens),
            **options,
        )
    summary = length_summary(lengths)
    if args.html is not None:
        write_page(plan_page(lengths, rows, " ".join(args.source)), args.html, replace=args.force)
    status = 2 if all("refused" in row for row in rows) else 0
    return Outcome(status, plan_table(summary, rows), {"lengths": summary, "plans": rows})


def _numbers(words: str) -> list[int]:
    try:
        return [int(word) for word in words.replace("_", "").split(",") if word] or [int("")]
    except ValueError as error:
        raise InputError("--capacity takes whole numbers.", f"{words!r} is not such a list.", "Write 2048,4096.") from error


def _lengths(args: Namespace, capacity: int, progress: Any) -> tuple[npt.NDArray[Any], Tokens | None]:
    """The lengths: of a .npy file as they are, else of the samples of the sources, tokenised, and what was read."""
    if len(args.source) == 1 and args.source[0].endswith(".npy"):
        try:
            return np.asarray(np.load(args.source[0], mmap_mode="r", allow_pickle=False)), None
        except Exception as error:  # numpy parses the head of the file as Python, and raises what that raises
            raise InputError(
                f"{args.source[0]} holds an array of lengths.", f"{error}.", "Write it with numpy.save."
            ) from error
    from cloison.packing.engines import starting
    from cloison.packing.tokens import ensure_tokens
    from cloison.view.pack_command import default_workers

    spec = PackSpec(capacity=capacity, columns=pairs(args.columns or (), "--columns"))
    workers = default_workers() if args.workers is None else args.workers
    with tempfile.TemporaryDirectory(prefix="cloison-") as scratch, starting("local", workers=workers) as engine:
        tokens = ensure_tokens(
            args.source,
            spec,
            place(args.tokens) if args.tokens is not None else Path(scratch),
            tokenizer=args.tokenizer,
            engine=engine,
            on_error=args.on_error,
            progress=progress,
        )
        return np.array(tokens.store.lengths()), tokens
