"""The command line: finds the command, runs it, prints what it says. The only file of cloison that prints.

A command is a module with ``add_arguments(parser)`` and ``run(args) -> Outcome``; it is imported when it is
called for, so that ``cloison --help`` is instant. Exit status 0: as it should be; 1: a finding; 2: wrong use or unreadable
input; 130: interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from cloison.errors import CloisonError, FindingsError, InputError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "pack": ("cloison.view.pack_command", "sources to a packed data set"),
    "plan": ("cloison.view.plan_command", "what packing would give, by capacity and policy; writes nothing"),
    "show": ("cloison.view.show_command", "look at packed blocks, token by token"),
    "check": ("cloison.view.check_command", "the static contract of any packed data set, ours or another's"),
    "verify": ("cloison.view.verify_command", "prove by experiment that a model keeps packed samples apart"),
    "audit": ("cloison.view.audit_command", "run a training command unchanged for one step, audited"),
    "unpack": ("cloison.view.unpack_command", "the samples of a packed data set, as JSON lines"),
    "export": ("cloison.view.export_command", "a packed data set in another system's format"),
    "import": ("cloison.view.import_command", "another system's packed data set in ours"),
    "demo": ("cloison.story.demo_command", "the main job on data that every machine has"),
}
"""Command to its module and its one line of help, in the order of use."""

_WIDE = 120
"""Columns where standard output is no terminal, and COLUMNS does not say how many there are."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        _top().print_help(sys.stderr)
        return 2
    if words[0] not in COMMANDS:
        _top().parse_args(words)  # --help, --version, or a complaint; each ends here
        return 2
    name = words[0]
    module = import_module(COMMANDS[name][0])
    asks = not {"-h", "--help"}.isdisjoint(words)
    usage = None if asks else f"cloison {name} ... (all its options: cloison {name} --help)"  # what an error is printed below
    command = argparse.ArgumentParser(prog=f"cloison {name}", description=module.__doc__, usage=usage)
    module.add_arguments(command)
    command.add_argument("--json", action="store_true", help="say it as JSON on standard output")
    args = command.parse_args(words[1:])
    _open_closed_streams()
    try:
        _refuse_no_folder()
        outcome = module.run(args)
        return _told(name, int(outcome.status), lambda: _print(outcome, as_json=args.json))
    except CloisonError as error:
        from cloison.view.option_words import as_options

        if args.json:
            plain = json.dumps({"error": _plain(error)}, ensure_ascii=True)
            _told(name, 2, lambda: print(plain, flush=True))
        _complain(f"cloison {name}: {error.asked}", error.found, as_options(error.remedy, vars(args)))
        return 1 if isinstance(error, FindingsError) else 2
    except KeyboardInterrupt:
        _complain(f"cloison {name}: interrupted. Run the same command again to go on where it stopped.")
        return 130


def _open_closed_streams() -> None:
    """Give a process that was started without standard streams ones to nowhere.

    Else the first files that it opens have their numbers, and what a library prints goes into a data set.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = os.O_WRONLY if number else os.O_RDONLY
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, mode)  # the lowest number that is free
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115 (to the end)


def _refuse_no_folder() -> None:
    """Return when the folder that paths are named from is there; without it compilers of what is called fail too."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            "a command starts in a folder.", "That one is gone.", "Go to another one, and run it there."
        ) from error


def _told(name: str, status: int, tell: Callable[[], None]) -> int:
    """Tell the answer and return ``status``: a reader (head, less) who has seen enough changes nothing in what was done."""
    try:
        tell()
        sys.stdout.flush()
        return status
    except (BrokenPipeError, SystemExit):  # the second is what rich makes of the first
        pass
    except OSError as error:
        found = f"The system says: {os.strerror(error.errno or 0)}. What was asked for is done."
        _complain(f"cloison {name}: standard output must take the answer.", found)
        status = 2
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
    return status


def _complain(*lines: str) -> None:
    with suppress(OSError):  # nobody listens; the exit status tells
        for line in filter(None, lines):
            print(_safe(line), file=sys.stderr, flush=True)


def _top() -> argparse.ArgumentParser:
    from importlib.metadata import version

    listed = "\n".join(f"  {name:8} {help_text}" for name, (_, help_text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="cloison",
        description="Exact sequence packing for language-model training, and the proof that it is.",
        epilog=f"commands:\n{listed}\n\nexit status: 0 as it should be, 1 a finding, 2 wrong use or unreadable input",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cloison {version('cloison')}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below; COMMAND --help says more")
    parser.add_argument("rest", nargs="*", metavar="...", help=argparse.SUPPRESS)
    return parser


def _print(outcome: Any, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.plain, sort_keys=True, indent=2, ensure_ascii=True))
        sys.stdout.flush()
        return
    if outcome.shown is None:
        return
    from rich.console import Console

    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _WIDE
    Console(highlight=False, soft_wrap=False, width=wide).print(outcome.shown)


def _plain(error: CloisonError) -> dict[str, str]:
    return {"type": type(error).__name__, "asked": error.asked, "found": error.found, "remedy": error.remedy}


def _safe(text: str) -> str:
    from cloison.view.pieces import visible

    return visible(text)


if __name__ == "__main__":
    sys.exit(main())
