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
            "Wrong: leak (samples see each other).",
        ]
    )


def test_no_line_is_longer_than_the_terminal() -> None:
    for width in (40, 80, 120):
        assert max(map(len, shown(report_view(LEAKS, "a title that is long " * 9), width).splitlines())) <= width


def test_the_last_word_claims_no_more_than_was_tested() -> None:
    exact, untested = Verdict("isolation", "exact", ""), Verdict("isolation", "not tested", "")
    targets = Verdict("targets", "not tested", "")
    note = Finding("note", "note", "something")
    assert conclusion(LEAKS) == "Wrong: leak (samples see each other)."
    assert conclusion(VerifyReport((exact,), (note,))) == ("As it should be: packed samples are treated as if each were alone.")
    assert conclusion(VerifyReport((exact, targets))).endswith("alone. Not tested: targets.")
    assert conclusion(VerifyReport((untested, targets))) == "Nothing wrong was found. Not tested: isolation, targets."
    assert conclusion(VerifyReport(())) == "Nothing wrong was found."


MISMATCH = VerifyReport(
    (
        Verdict("isolation", "exact", "0 of 2 cells moved (no sample sees another; bit-equal when repeated)"),
        Verdict(
            "equality",
            "mismatch",
            "logits of segment 1 differ by 0.5 sigma from the sample alone; rounding may do 1.2e-05; cause: window",
            {
                "comparisons": {
                    "logits": {"error": 0.5, "floor": 4e-6, "allowed": 1.2e-5, "equal": False, "where": "segment 1"},
                    "loss per token": {"error": 2.3e-6, "floor": 4e-6, "allowed": 1.2e-5, "equal": True, "where": ""},
                }
            },
        ),
    ),
    (Finding("mismatch", "error", "samples are isolated and yet not what they are alone: ...", "Build the window in."),),
    None,
    {"seq_lengths": [[7, 1], [139]], "not_reached": {"sliding_window": 4096}},
)


def test_a_mismatch_shows_what_differs_on_what_and_what_the_words_mean() -> None:
    lines = [line.rstrip() for line in shown(report_view(MISMATCH, "a model"), 100).splitlines()]
    assert lines == snapshot(
        [
            "a model",
            "isolation  exact     0 of 2 cells moved (no sample sees another; bit-equal when repeated)",
            "equality   mismatch  logits of segment 1 differ by 0.5 sigma from the sample alone; rounding may do",
            "                     1.2e-05; cause: window",
            "",
            "packed against alone (sigma; gradients: of their largest entry)",
            "what            differs by  rounding may do  verdict   most in",
            "logits                 0.5          1.2e-05  differs   segment 1",
            "loss per token     2.3e-06          1.2e-05  rounding",
            "",
            "error [mismatch] samples are isolated and yet not what they are alone: ...",
            "  fix: Build the window in.",
            "Wrong: mismatch (samples are not what they are alone).",
            "Measured on 3 samples of 1 to 139 tokens, 147 in all; none is longer than sliding_window=4,096: what",
            "begins there was not seen.",
            "segment: a sample in the packed row, counted from 0. cell: one segment's tokens are changed, and the",
            "outputs of another are looked at. sigma: one standard deviation of the model's outputs.",
        ]
    )


def test_page_and_notebook_say_the_same_as_the_terminal() -> None:
    """Lengths, limits that were not reached, the comparisons and the legend: in each of the three."""
    from cloison.view.conclusion import LEGEND
    from cloison.view.notebook import html_of
    from cloison.view.verdict import verdict_page

    page, fragment = verdict_page(MISMATCH, "a model"), html_of(MISMATCH)
    terminal = " ".join(shown(report_view(MISMATCH, "a model"), 100).split())
    measured = "3 samples of 1 to 139 tokens, 147 in all; none is longer than sliding_window=4,096"
    legend = LEGEND.replace("'", "&#39;")
    for text, said in ((terminal, LEGEND), (page, legend), (fragment, legend)):
        assert measured in text and said in text
        assert "Wrong: mismatch (samples are not what they are alone)." in text
        assert "rounding may do 1.2e-05" in text
    for text in (terminal, page):
        assert "loss per token" in text and "2.3e-06" in text and "most in" in text
    assert f"measured on {measured}" in str(MISMATCH)
