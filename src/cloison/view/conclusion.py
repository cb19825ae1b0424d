"""The last word on a report, in one sentence: what is wrong, or that nothing is, and what was not tested."""

from __future__ import annotations

from cloison.proof.report import VerifyReport

__all__ = ["LEGEND", "conclusion"]

_MATTERS = ("isolation", "equality", "targets")

_MEANING = {
    "leak": "samples see each other",
    "gradient_leak": "gradients flow between samples",
    "look_ahead": "tokens see later ones of their own sample",
    "mismatch": "samples are not what they are alone",
    "gradient_mismatch": "gradients are not those of the samples alone",
    "boundary_target": "the loss asks for the next sample's first token",
    "shifted_twice": "every target is one token too far",
    "not_shifted": "every token is its own target",
    "prompt_trained": "prompts are trained",
    "padding_trained": "padding is trained",
    "terminator_never_trained": "the end of an answer is never trained",
    "nothing_trained": "nothing is trained",
    "weights": "targets do not weigh what they ought to",
    "error": "the set-up raises",
}
"""What findings mean to those who meet them for the first time."""

LEGEND = (
    "segment: a sample in the packed row, counted from 0. cell: one segment's tokens are changed, and the outputs of another "
    "are looked at. sigma: one standard deviation of the model's outputs."
)
"""What the words of a verdict mean."""


def conclusion(report: VerifyReport) -> str:
    """Return the sentence. It claims no more than was tested.

    >>> from cloison.proof.report import Verdict
    >>> conclusion(VerifyReport((Verdict("isolation", "exact", ""), Verdict("targets", "not tested", ""))))
    'As it should be: packed samples are treated as if each were alone. Not tested: targets.'
    >>> conclusion(VerifyReport((Verdict("isolation", "not tested", ""),)))
    'Nothing wrong was found. Not tested: isolation.'
    """
    if not report.ok:
        kinds = dict.fromkeys(finding.kind for finding in report.findings if finding.severity == "error")
        return f"Wrong: {'; '.join(f'{kind} ({_MEANING[kind]})' if kind in _MEANING else kind for kind in kinds)}."
    status = {verdict.experiment: verdict.status for verdict in report.verdicts}
    proven = status.get("isolation") in ("exact", "coupled")
    said = "As it should be: packed samples are treated as if each were alone." if proven else "Nothing wrong was found."
    untested = [name for name in _MATTERS if status.get(name) == "not tested"]
    return f"{said} Not tested: {', '.join(untested)}." if untested else said
