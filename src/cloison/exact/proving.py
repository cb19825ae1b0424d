"""Whether a way is exact: a quick trial first, then what `cloison.verify` says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloison.exact.adapter import Adapter
from cloison.exact.below_limit import short_blocks
from cloison.exact.labels import Asks
from cloison.exact.probe import Measured, measure
from cloison.exact.trial import Trial, in_eval
from cloison.exact.twin import SHORT_TOKENS
from cloison.exact.ways import Way
from cloison.proof.blocks import synthetic, vocabulary
from cloison.proof.report import Verdict, VerifyReport
from cloison.proof.verify import verify

if TYPE_CHECKING:
    import torch

__all__ = ["Proof", "holds_on", "prove", "said"]


@dataclass(frozen=True)
class Proof:
    """That a way is exact on a trial: what the quick trial measured, and the report of the experiments."""

    measured: Measured
    report: VerifyReport


def prove(trial: Trial, way: Way, seed: int) -> Proof | dict[str, Any]:
    """Return the proof that ``way`` is exact, or what it missed by."""
    with in_eval(trial.model):
        found = measure(trial.model, way, trial.against)
    missed = {"way": way.name, "leak": found.leak, "equality": found.equality, "error": found.error}
    if max(found.leak, found.equality) > trial.against.floor:
        return missed
    adapter = Adapter(trial.model, way, asks=trial.asks)
    report = verify(adapter, trial.blocks, seed=seed, bidirectional=True, fix=False)
    wrong = _wrong(report)
    if wrong and _within_reach(report, wrong):
        other = synthetic(getattr(trial.model, "config", None), seed=seed + 1) if trial.synthetic else trial.blocks
        report = verify(adapter, other, seed=seed + 1, bidirectional=True, fix=False)
        wrong = _wrong(report)
    if not wrong and "below" in way.choice:  # the other half of this way: batches in which no sample passes the limit
        few = short_blocks(trial.blocks, SHORT_TOKENS)
        wrong = _wrong(verify(adapter, few, seed=seed, bidirectional=True, fix=False))
    if wrong:
        return missed | {"error": "; ".join(f"{verdict.experiment}: {verdict.summary}" for verdict in wrong)}
    return Proof(found, report)


def _wrong(report: VerifyReport) -> list[Verdict]:
    """Return the verdicts that speak against a way.

    Looking ahead was tested on the samples alone. The gradients to the input embeddings count where they could be taken; the
    parameters' gradients, in equality, always.
    """
    decide = {"isolation": _WRONG, "equality": _WRONG, "gradients": ("leak",)}
    return [verdict for verdict in report.verdicts if verdict.status in decide.get(verdict.experiment, ())]


_WRONG = ("leak", "mismatch", "wrong", "error", "not tested")

_REACH = 3.0


def _within_reach(report: VerifyReport, wrong: Sequence[Verdict]) -> bool:
    """Whether all that is wrong are differences of at most `_REACH` times what rounding may do: measured again on other tokens.

    The floor is an extreme of one draw; a real fault is 100 times larger and is found on any tokens.
    """
    if [verdict.experiment for verdict in wrong] != ["equality"]:
        return False
    comparisons = wrong[0].evidence.get("comparisons", {})
    return bool(comparisons) and all(entry["error"] <= _REACH * entry["allowed"] for entry in comparisons.values())


def holds_on(model: torch.nn.Module, way: Way, asks: Asks) -> tuple[VerifyReport, str]:
    """Return (report, what is wrong or "") of short blocks on ``model`` itself, where a stand-in chose the way.

    Where rounding in the model's own precision hides what the stand-in showed, equality within it is no objection.
    """
    ids = vocabulary(getattr(model, "config", None))
    blocks = synthetic(None, vocab_size=int(ids.max()) + 1)
    report = verify(Adapter(model, way, asks=asks), blocks, bidirectional=True, fix=False, gradients=False)
    wrong = [
        verdict for verdict in _wrong(report) if not (verdict.status == "not tested" and verdict.evidence.get("comparisons"))
    ]
    return report, "; ".join(f"{verdict.experiment}: {verdict.summary}" for verdict in wrong)


def said(report: VerifyReport | None, where: str = "") -> dict[str, str]:
    """Return each experiment's summary, by its name and ``where``."""
    verdicts = () if report is None else report.verdicts
    return {f"{verdict.experiment}{where}": f"{verdict.experiment}: {verdict.summary}" for verdict in verdicts}
