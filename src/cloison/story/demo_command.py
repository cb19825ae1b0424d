"""The main job and its proof, on data that every machine has: the sources of Python's own standard library."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloison.view.outcome import Outcome
from cloison.view.progress import ProgressLine

if TYPE_CHECKING:
    from cloison.story.demo import Demo

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison demo``."""
    parser.add_argument("--out", metavar="DIR", default="demo", help="where everything is written (default: demo)")
    parser.add_argument(
        "--story",
        action="store_true",
        help="train a small model under five set-ups and show what is true (5 to 6 minutes on 2 cores)",
    )


def run(args: Namespace) -> Outcome:
    """Run the demo, write its pages, and say what was seen."""
    if args.story:
        return _story(Path(args.out))
    from cloison.story.demo import run_demo

    out = Path(args.out)
    with ProgressLine() as progress:
        demo = run_demo(out, progress)
    _write_pages(demo)
    found = {judged.model_type: judged.report.to_dict() for judged in demo.judged}
    plain = {"path": str(out), "manifest": demo.packed.manifest.to_dict(), "check": demo.checked.to_dict(), "verify": found}
    return Outcome(0 if demo.checked.ok else 1, _shown(demo), plain)


def _story(out: Path) -> Outcome:
    from cloison.story.story import spot_the_fault, tell
    from cloison.story.story_page import story_page
    from cloison.story.telling import told_plainly, told_view
    from cloison.view.page import write_page

    with ProgressLine() as progress:
        story = tell(out / "story", progress)
    page = write_page(story_page(story), out / "story.html", replace=True)
    write_page(spot_the_fault()[0], out / "spot-the-fault.html", replace=True)
    return Outcome(0, told_view(story, str(page)), told_plainly(story))


def _write_pages(demo: Demo) -> None:
    from tokenizers import Tokenizer

    from cloison.story.demo import TOKENIZER
    from cloison.view.packed_page import packed_page
    from cloison.view.page import write_page
    from cloison.view.verdict import verdict_page

    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    write_page(packed_page(demo.packed, tokenizer), demo.folder / "packed.html", replace=True)
    if demo.judged:
        first = demo.judged[0]
        page = verdict_page(first.report, f"TRL's packed batches on a tiny {first.model_type}")
        write_page(page, demo.folder / "verdict.html", replace=True)


def _shown(demo: Demo) -> Any:
    from rich.console import Group
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    from cloison.view.tables import number, percent
    from cloison.view.terminal_summary import packed_summary
    from cloison.view.terminal_verdict import report_view

    m = demo.packed.manifest
    plans = Table(box=None, pad_edge=False)
    for head in ("policy", "blocks", "utilization", "between-block variance", "at random"):
        plans.add_column(head, justify="left" if head == "policy" else "right")
    plans.add_row("one sample a row", number(m.ledger.samples_kept), percent(m.padding_utilization), "", "")
    for name, plan in demo.plans.items():
        c = plan.composition
        plans.add_row(
            name,
            number(plan.num_blocks),
            percent(plan.utilization),
            number(c.length_variance_share),
            number(c.random_variance_share),
        )
    parts: list[Any] = [
        Rule("1. pack", align="left"),
        packed_summary(demo.packed, demo.tokens),
        Text(f"in {demo.seconds:.1f} s, first use of compiled code included"),
        Rule("2. plan: how full, and how well mixed", align="left"),
        plans,
        Rule("3. check: the static contract", align="left"),
        Text(_checked(demo)),
        Rule("4. verify: the same packed batches of TRL on two models", align="left"),
    ]
    for judged in demo.judged:
        title = f"TRL's packed batches on a tiny {judged.model_type} ({judged.seconds:.1f} s)"
        parts += [report_view(judged.report, title), Text()]
    if demo.missing:
        parts.append(Text(f"not run: {demo.missing} is not installed (pip install 'cloison[trl]')"))
    leaks = [judged.model_type for judged in demo.judged if not judged.report.ok]
    clean = [judged.model_type for judged in demo.judged if judged.report.ok]
    parts.append(Rule("what to take from it", align="left"))
    said = [
        f"{number(m.ledger.samples_kept)} of {number(m.ledger.samples_in)} samples are in {number(m.num_blocks)} blocks, "
        f"{percent(m.utilization)} full where padding would give {percent(m.padding_utilization)}; "
        f"{number(m.ledger.lost_tokens)} tokens lost.",
    ]
    if leaks and clean:
        said.append(
            f"The same batches are exact on {', '.join(clean)} and leak on {', '.join(leaks)}. "
            "No exception fired, and a loss would have looked fine."
        )
    said += [
        f"Look: {demo.folder}/packed.html (every token, every boundary)"
        + (f", {demo.folder}/verdict.html (who sees whom)" if demo.judged else ""),
        f"Next: cloison show {demo.folder}/packed --block 3",
        "      cloison verify YOUR_MODEL, cloison audit -- YOUR TRAINING COMMAND",
    ]
    parts += [Text(line) for line in said]
    return Group(*parts)


def _checked(demo: Demo) -> str:
    """What check says in two lines; whole where something is wrong."""
    report = demo.checked
    if report.kinds("error") or report.kinds("warning"):
        return str(report)
    counts = report.counts
    looked = f"{counts['rows']:,} blocks, {counts['segments']:,} segments, {counts['tokens']:,} tokens"
    notes = "".join(f"\nnote: {finding.message.split('. ')[0]}." for finding in report.findings)
    return f"ok: {looked}; hashes and ledger agree{notes}"
