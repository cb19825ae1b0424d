"""Put the samples of SOURCE into blocks, with nothing lost in silence: a packed data set at --out, and what it is."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from cloison.errors import InputError
from cloison.places import place
from cloison.view.outcome import Outcome
from cloison.view.progress import ProgressLine
from cloison.view.spec_options import add_source_arguments, add_spec_arguments, spec_from

__all__ = ["add_arguments", "default_workers", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison pack``."""
    add_source_arguments(parser)
    parser.add_argument("--out", metavar="DIR", help="the data set's folder, new or empty; needed unless --dry-run")
    add_spec_arguments(parser)
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="where the work runs (default: local)")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="the Ray cluster, or auto (default: RAY_ADDRESS, else one on this machine)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would come out; write nothing but --tokens")


def run(args: Namespace) -> Outcome:
    """Pack, or with --dry-run plan, and say what came out."""
    spec = spec_from(args)
    if args.out is None and not args.dry_run:
        raise InputError("cloison pack writes a data set.", "There is no --out.", "Add --out DIR, or --dry-run.")
    common: dict[str, Any] = {
        "tokenizer": args.tokenizer,
        "workers": default_workers() if args.workers is None and args.engine == "local" else args.workers,
        "engine": args.engine,
        "address": args.address,
        "on_error": args.on_error,
    }
    if args.dry_run:
        return _dry_run(args, spec, common)
    from cloison.packing.job import run_job
    from cloison.view.terminal_summary import packed_summary

    with ProgressLine() as progress:
        packed, tokens = run_job(args.source, args.out, spec, tokens=args.tokens, progress=progress, **common)
    plain = {"path": str(packed.path), "read": tokens.described, **packed.manifest.to_dict()}
    return Outcome(0, packed_summary(packed, tokens), plain)


def default_workers() -> int:
    """Return how many cores this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _dry_run(args: Namespace, spec: Any, common: dict[str, Any]) -> Outcome:
    from cloison.packing.engines import starting
    from cloison.packing.planned import plan_tokens, refuse_unplannable
    from cloison.packing.tokens import ensure_tokens
    from cloison.view.terminal_summary import planned_facts, planned_summary

    refuse_unplannable(spec)
    with tempfile.TemporaryDirectory(prefix="cloison-") as scratch, ProgressLine() as progress:
        home = place(args.tokens) if args.tokens is not None else Path(scratch)
        with starting(common.pop("engine"), workers=common.pop("workers"), address=common.pop("address")) as engine:
            planned = plan_tokens(ensure_tokens(args.source, spec, home, engine=engine, progress=progress, **common))
        return Outcome(0, planned_summary(planned), planned_facts(planned))
