"""A verdict in the terminal at 80 columns: one line a verdict, who reaches whom, the fix set in, and the last word."""

from __future__ import annotations

import numpy as np
from inline_snapshot import snapshot

from cloison.findings import Finding
from cloison.proof.report import Verdict, VerifyReport
from cloison.view.conclusion import conclusion
from cloison.view.terminal_verdict import report_view
from tests.terminal import shown

LEAKS = VerifyReport(
    (
        Verdict("isolation", "leak", "1 of 2 cells moved, towards later segments only; worst: segment 0 moves segment 1 by 3"),
        Verdict("targets", "not tested", "the model has no loss of its own"),
    ),
    (Finding("leak", "error", "samples see each other: 1 of 2 cells moved.", "Pass position_ids that start anew. " * 3),),
    np.array([[np.nan, 3.0], [0.0, np.nan]]),
)


def test_a_leak_at_80_columns() -> None:
    lines = [line.rstrip() for line in shown(report_view(LEAKS, "a model; eager [red]attention[/red]"), 80).splitlines()]
    assert lines == snapshot(
        [
            "a model; eager [red]attention[/red]",
            "isolation  leak        1 of 2 cells moved, towards later segments only; worst:",
            "                       segment 0 moves segment 1 by 3",
            "targets    not tested  the model has no loss of its own",
            "",
            "who reaches whom: row = the segment that changed, column = how far another moved",
            "(sigma)",
            "   0  1",
            "0  ·  3",
            "1  0  ·",
            "",
            "error [leak] samples see each other: 1 of 2 cells moved.",
            "  fix: Pass position_ids that start anew. Pass position_ids that start anew.",
            "  Pass position_ids that start anew.",
            "Wrong: leak.",
        ]
    )


def test_no_line_is_longer_than_the_terminal() -> None:
    for width in (40, 80, 120):
        assert max(map(len, shown(report_view(LEAKS, "a title that is long " * 9), width).splitlines())) <= width


def test_the_last_word_claims_no_more_than_was_tested() -> None:
    exact, untested = Verdict("isolation", "exact", ""), Verdict("isolation", "not tested", "")
    targets = Verdict("targets", "not tested", "")
    note = Finding("note", "note", "something")
    assert conclusion(LEAKS) == "Wrong: leak."
    assert conclusion(VerifyReport((exact,), (note,))) == ("As it should be: packed samples are treated as if each were alone.")
    assert conclusion(VerifyReport((exact, targets))).endswith("alone. Not tested: targets.")
    assert conclusion(VerifyReport((untested, targets))) == "Nothing wrong was found. Not tested: isolation, targets."
    assert conclusion(VerifyReport(())) == "Nothing wrong was found."
