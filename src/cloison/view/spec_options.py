"""The options that make a PackSpec, shared by the commands that need one."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from cloison.errors import InputError
from cloison.spec import AppendEos, OnEmpty, Order, Overflow, PackSpec, TrainOn
from cloison.view.whole_number import whole_number

__all__ = ["POLICY_WORDS", "add_source_arguments", "add_spec_arguments", "pairs", "spec_from"]

_PARTS = re.compile(r",(?=[A-Za-z_]\w*=)")
"""A comma before the next NAME= parts two pairs; a comma inside a value does not."""

POLICY_WORDS = "look_ahead, best_fit, optimal, auto, mixed, in_order or wrap"
"""The policies in words: the package that has them is not loaded to say so."""

_FLAGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("policy", {"help": f"how samples are put into blocks: {POLICY_WORDS} (default: look_ahead)"}),
    ("overflow", {"choices": get_args(Overflow), "help": "what happens to samples longer than a block (default: raise)"}),
    ("train-on", {"choices": get_args(TrainOn), "help": "whose tokens are targets (default: by the shape of the records)"}),
    ("max-sample-tokens", {"type": whole_number, "metavar": "N", "help": "overflow acts at this length already"}),
    ("max-segments", {"type": whole_number, "metavar": "N", "help": "segments a block holds at most"}),
    ("align", {"type": whole_number, "metavar": "N", "help": "a segment counts as its length rounded up to this multiple"}),
    ("order", {"choices": get_args(Order), "help": "shuffled by seed (default), or as in the input"}),
    ("seed", {"type": whole_number, "metavar": "S", "help": "of all shuffles (default: 0)"}),
    ("look-ahead", {"type": whole_number, "metavar": "K", "help": "samples that look_ahead looks ahead (default: 1024)"}),
    ("on-empty", {"choices": get_args(OnEmpty), "help": "what a sample with nothing to train does (default: drop, counted)"}),
    ("append-eos", {"choices": get_args(AppendEos), "help": "an end-of-document token (default: auto)"}),
    ("date", {"metavar": "YYYY-MM-DD", "help": "today, for templates that ask (default: the day of the first run)"}),
)


def add_source_arguments(parser: ArgumentParser, tokens: str = "tokens/ beside OUT") -> None:
    """Add SOURCE and what reading and tokenising need."""
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="files, folders, globs or URLs; - is standard input")
    parser.add_argument("--tokenizer", metavar="T", help="a folder with tokenizer.json (not needed for token ids)")
    parser.add_argument("--tokens", metavar="DIR", help=f"where tokens are kept for the next run (default: {tokens})")
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help="what a broken record does")
    parser.add_argument("--workers", type=whole_number, metavar="W", help="processes (default: the cores of this machine)")


def add_spec_arguments(parser: ArgumentParser) -> None:
    """Add one option for each field of PackSpec, and --spec FILE below them all."""
    parser.add_argument("--spec", metavar="FILE", help="a PackSpec as JSON; options on the command line win over it")
    parser.add_argument("--capacity", type=whole_number, metavar="N", help="tokens a block holds at most")
    for name, settings in _FLAGS:
        parser.add_argument(f"--{name}", **settings)
    parser.add_argument("--split-prompts", action="store_true", default=None, help="let overflow=split cut conversations too")
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="PART=NAME",
        help="which column plays which part (messages=dialog, or prompt=question completion=answer)",
    )
    parser.add_argument("--carry", nargs="+", metavar="NAME", help="further columns that go along")
    parser.add_argument("--chat-template", metavar="FILE", help="a template in place of the tokenizer's own")
    parser.add_argument("--template-option", nargs="+", metavar="NAME=VALUE", help="variables of the template (JSON values)")


def spec_from(args: Namespace) -> PackSpec:
    """Return the PackSpec that the options say.

    Raises:
        SpecError: an unknown field in the file, or a value out of range; no capacity.
    """
    plain: dict[str, Any] = {}
    if args.spec is not None:
        try:
            text = Path(args.spec).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"--spec {args.spec} must be readable.", f"{error.strerror}.", "Check the path.") from error
        plain = PackSpec.from_json(text).to_dict()
    names = ["capacity", "split_prompts", "carry", *(name.replace("-", "_") for name, _ in _FLAGS)]
    plain |= {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.columns:
        plain["columns"] = {**plain.get("columns", {}), **pairs(args.columns, "--columns")}
    if args.template_option:
        given = {name: _json_or_text(value) for name, value in pairs(args.template_option, "--template-option").items()}
        plain["template_options"] = {**plain.get("template_options", {}), **given}
    if args.chat_template is not None:
        try:
            plain["chat_template"] = Path(args.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"--chat-template {args.chat_template} must be a readable file.", f"{error.strerror}.", "Check the path."
            ) from error
    return PackSpec.from_dict(plain)


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Return the names and values of words like ``prompt=question``, several in one word where commas part them.

    Raises:
        InputError: a word of another form.
    """
    out = {}
    for word in (part for given in words for part in _PARTS.split(given)):
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InputError(f"{option} takes NAME=VALUE.", f"{word!r} is not of that form.", f"Write {option} name=value.")
        out[name] = value
    return out


def _json_or_text(value: str) -> Any:
    """Return a value in JSON's words or Python's (``False`` would be a text that templates take for true), else the text."""
    import json

    words = {"True": True, "False": False, "None": None}
    if value in words:
        return words[value]
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
