"""Check packed data, ours or another system's: boundaries, targets, masks, positions, ids, samples and files."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from types import MappingProxyType

from cloison.checking.check import check
from cloison.checking.conventions import CONVENTIONS
from cloison.checking.report import CheckReport
from cloison.view.option_words import as_options
from cloison.view.outcome import Outcome
from cloison.view.pieces import visible
from cloison.view.whole_number import whole_number

__all__ = ["add_arguments", "run"]

_RENAMED = MappingProxyType({"eos_token_id": "eos", "terminators": "terminator", "convention": "as"})


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison check``."""
    parser.add_argument("source", metavar="DIR|FILE", help="a packed data set, or Parquet, Arrow or JSON lines of packed rows")
    parser.add_argument("--tokenizer", metavar="T", help="its folder: gives the vocabulary and the ids that end a text")
    parser.add_argument(
        "--capacity", type=whole_number, metavar="N", help="tokens a row may hold (our own data sets know theirs)"
    )
    parser.add_argument("--vocab-size", type=whole_number, metavar="N", help="ids must be below it")
    parser.add_argument("--eos", type=whole_number, metavar="ID", help="the id that ends a text")
    parser.add_argument(
        "--terminator", type=whole_number, metavar="ID", action="append", default=[], help="an id that ends a message"
    )
    parser.add_argument("--labels", choices=("same", "shifted"), help="whether labels are shifted already (default: by format)")
    parser.add_argument("--as", dest="convention", choices=sorted(CONVENTIONS), help="the reader's convention, not recognised")


def run(args: Namespace) -> Outcome:
    """Check, and say what was found; status 1 when there is an error."""
    report = check(
        args.source,
        tokenizer=args.tokenizer,
        capacity=args.capacity,
        vocab_size=args.vocab_size,
        eos_token_id=args.eos,
        terminators=args.terminator,
        labels=args.labels,
        convention=args.convention,
    )
    return Outcome(0 if report.ok else 1, visible(str(_in_options(report))), report.to_dict())


def _in_options(report: CheckReport) -> CheckReport:
    """Return ``report`` with its advice in the words of this command."""

    def said(advice: str) -> str:
        return as_options(advice, {"tokenizer", "capacity", "vocab_size", "labels"}, _RENAMED)

    findings = tuple(replace(finding, fix=said(finding.fix)) for finding in report.findings)
    return replace(report, findings=findings, not_checked=tuple(map(said, report.not_checked)))
