"""The options of commands that write a file beside what they say: a page where --html asks for one, and --force."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cloison.errors import InputError
from cloison.places import place, size

__all__ = ["add_html_option", "refuse_existing", "refuse_existing_page"]


def add_html_option(parser: ArgumentParser, said: str = "write a page too") -> None:
    """Add --html FILE and --force."""
    parser.add_argument("--html", metavar="FILE", help=said)
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


def refuse_existing_page(args: Namespace) -> None:
    """Raise an InputError where --html names a file that exists and --force is not given: before the work, not after it."""
    if args.html is not None:
        refuse_existing(args.html, replace=args.force)


def refuse_existing(path: str | Path, *, replace: bool) -> None:
    """Raise an InputError where ``path`` exists and may not be replaced."""
    at = place(path)
    there = at.exists() if isinstance(at, Path) else size(at) is not None
    if there and not replace:
        raise InputError(f"{path} was to be written.", "The file exists.", "Name another file, or pass --force.")
