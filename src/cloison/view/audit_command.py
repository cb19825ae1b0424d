"""Run a training COMMAND unchanged up to the end of its first step, and say what that step feeds, leaks and trains.

The command may be python, accelerate launch, torchrun, axolotl or anything that ends in a transformers Trainer (TRL's trainers
are). Options of cloison come before the --.
"""

from __future__ import annotations

import shlex
from argparse import REMAINDER, ArgumentParser, Namespace

from cloison.view.outcome import Outcome
from cloison.view.output_option import add_html_option, refuse_existing_page

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison audit``."""
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds after which the command is ended (default: never)")
    add_html_option(parser)
    parser.usage = "cloison audit [-h] [--timeout S] [--html FILE] [--force] [--json] -- COMMAND..."
    parser.add_argument("command", nargs=REMAINDER, metavar="-- COMMAND...", help="as you run it, as: -- python train.py")


def run(args: Namespace) -> Outcome:
    """Audit one command."""
    from cloison.proof.launching import launch
    from cloison.view.page import write_page
    from cloison.view.terminal_verdict import report_view
    from cloison.view.verdict import verdict_page

    refuse_existing_page(args)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    launched = launch(command, timeout_s=args.timeout)
    report = launched.report
    title = f"the first step of: {shlex.join(command)}"
    if args.html is not None:
        write_page(verdict_page(report, title), args.html, replace=args.force)
    plain = {"title": title, "command": command, "command_status": launched.status, **report.to_dict()}
    return Outcome(0 if report.ok else 1, report_view(report, title), plain)
