"""Put the samples of SOURCE into blocks, with nothing lost in silence: a packed data set at --out, and what it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError
from cloison.view.outcome import Outcome
from cloison.view.progress import ProgressLine
from cloison.view.spec_options import add_source_arguments, add_spec_arguments, spec_from

if TYPE_CHECKING:
    from cloison.packing.worker import Done

__all__ = ["add_arguments", "default_workers", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison pack``."""
    add_source_arguments(parser)
    parser.add_argument("--out", metavar="DIR", help="the data set's folder or URL, new or empty; needed unless --dry-run")
    add_spec_arguments(parser)
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where the work runs (default: local); on ray, --workers are tasks at once (default: all)",
    )
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="the Ray cluster, or auto (default: RAY_ADDRESS, else one on this machine)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and how long it would take; write nothing"
    )


def run(args: Namespace) -> Outcome:
    """Pack, or with --dry-run plan, and say what came out."""
    spec = spec_from(args)
    if args.out is None and not args.dry_run:
        raise InputError("cloison pack must be told where to write.", "There is no --out.", "Add --out DIR, or --dry-run.")
    common: dict[str, Any] = {
        "tokenizer": args.tokenizer,
        "workers": default_workers() if args.workers is None and args.engine == "local" else args.workers,
        "engine": args.engine,
        "address": args.address,
        "on_error": args.on_error,
    }
    if args.dry_run:
        return _dry_run(args, spec, common)
    from rich.console import Group

    from cloison.packing.job import run_job
    from cloison.packing.whereabouts import ledger_places
    from cloison.view.terminal_summary import packed_summary
    from cloison.view.work_summary import work_summary

    done: list[Done] = []
    with ProgressLine() as progress:
        packed, tokens = run_job(
            args.source, args.out, spec, tokens=args.tokens, progress=progress, report=done.append, **common
        )
    manifest = packed.manifest
    places = ledger_places(tokens, manifest.ledger)
    plain = {"path": str(packed.path), "read": tokens.described, "places": places, **manifest.to_dict()}
    summary = packed_summary(packed, tokens)
    if args.engine == "local":
        return Outcome(0, summary, plain)
    return Outcome(0, Group(summary, work_summary(packed, done)), {**plain, "work": [asdict(one) for one in done]})


def default_workers() -> int:
    """Return how many cores this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _dry_run(args: Namespace, spec: Any, common: dict[str, Any]) -> Outcome:
    from cloison.packing.engines import starting
    from cloison.packing.trial import try_job
    from cloison.places import beside, place
    from cloison.view.trial_summary import trial_facts, trial_summary

    choice = {name: common.pop(name) for name in ("engine", "workers", "address")}
    tokens = None if args.out is None else beside(place(args.out), "tokens")
    with starting(choice["engine"], workers=choice["workers"], address=choice["address"]) as engine:
        workers = engine.workers
    with ProgressLine() as progress:
        trial = try_job(
            args.source,
            spec,
            tokens=tokens if args.tokens is None else place(args.tokens),
            workers=workers,
            at_once=min(workers, default_workers()),
            progress=progress,
            **common,
        )
    return Outcome(0, trial_summary(trial), trial_facts(trial))
