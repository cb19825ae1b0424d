"""The last word on a report, in one sentence: what is wrong, or that nothing is, and what was not tested."""

from __future__ import annotations

from cloison.proof.report import VerifyReport

__all__ = ["conclusion"]

_MATTERS = ("isolation", "equality", "targets")


def conclusion(report: VerifyReport) -> str:
    """Return the sentence. It claims no more than was tested.

    >>> from cloison.proof.report import Verdict
    >>> conclusion(VerifyReport((Verdict("isolation", "exact", ""), Verdict("targets", "not tested", ""))))
    'As it should be: packed samples are treated as if each were alone. Not tested: targets.'
    >>> conclusion(VerifyReport((Verdict("isolation", "not tested", ""),)))
    'Nothing wrong was found. Not tested: isolation.'
    """
    if not report.ok:
        return f"Wrong: {', '.join(dict.fromkeys(f.kind for f in report.findings if f.severity == 'error'))}."
    status = {verdict.experiment: verdict.status for verdict in report.verdicts}
    proven = status.get("isolation") in ("exact", "coupled")
    said = "As it should be: packed samples are treated as if each were alone." if proven else "Nothing wrong was found."
    untested = [name for name in _MATTERS if status.get(name) == "not tested"]
    return f"{said} Not tested: {', '.join(untested)}." if untested else said
