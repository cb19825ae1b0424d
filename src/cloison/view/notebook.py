"""Packed, Block, Plan and VerifyReport in a notebook: a few numbers and a picture, as one escaped fragment of HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cloison.blocks import Block
from cloison.planning.plans import Plan
from cloison.proof.report import VerifyReport
from cloison.store.packed import Packed
from cloison.view.conclusion import LEGEND, conclusion
from cloison.view.page import environment
from cloison.view.picture import rows_picture
from cloison.view.tables import number, percent
from cloison.view.verdict import heat_map

__all__ = ["html_of"]

_ROWS = 12


def html_of(value: Any) -> str:
    """Return the fragment of ``value``.

    Raises:
        TypeError: it is none of the four.
    """
    for kind, facts in _FACTS.items():
        if isinstance(value, kind):
            return str(environment().get_template("notebook.html.j2").render(facts(value)))
    raise TypeError(f"there is no picture of a {type(value).__name__}")


def _packed(packed: Packed) -> dict[str, Any]:
    m, segments = packed.manifest, packed.segments()
    numbers = [
        ("blocks", f"{number(m.num_blocks)} of {number(m.spec.capacity)} tokens"),
        ("samples", f"{number(m.ledger.samples_kept)} of {number(m.ledger.samples_in)} kept"),
        ("tokens", f"{number(m.num_tokens)}, {number(m.ledger.lost_tokens)} lost"),
        ("targets", number(m.num_targets)),
        ("utilization", f"{percent(m.utilization)} (padded: {percent(m.padding_utilization)})"),
    ]
    rows = [segments[b].seq_lengths.tolist() for b in range(min(len(packed), _ROWS))]
    return _facts(f"packed data: {packed.path}", numbers, rows, packed.capacity, len(packed))


def _block(block: Block) -> dict[str, Any]:
    capacity = block.segments.capacity or block.num_tokens
    numbers = [
        ("segments", number(len(block))),
        ("tokens", f"{number(block.num_tokens)} of {number(capacity)}"),
        ("targets", number(block.num_targets)),
        ("samples", ", ".join(map(str, block.sample_ids[:16].tolist())) + (", ..." if len(block) > 16 else "")),
    ]
    return _facts("block", numbers, [block.segments.seq_lengths.tolist()], capacity, 1)


def _plan(plan: Plan) -> dict[str, Any]:
    numbers = [
        ("blocks", f"{number(plan.num_blocks)} of {number(plan.capacity)} tokens"),
        ("utilization", percent(plan.utilization)),
        ("proven bound", f"{number(plan.lower_bound)} blocks; gap {percent(plan.gap)}"),
        ("samples", f"{number(plan.ledger.samples_kept)} of {number(plan.ledger.samples_in)} kept"),
    ]
    rows = [plan[b][2].tolist() for b in range(min(len(plan), _ROWS))]
    return _facts(f"plan: {plan.policy}", numbers, rows, plan.capacity, len(plan))


def _report(report: VerifyReport) -> dict[str, Any]:
    return {
        "title": conclusion(report),
        "numbers": [(verdict.experiment, f"{verdict.status}: {verdict.summary}") for verdict in report.verdicts],
        "picture": "",
        "said": f"Measured on {report.measured_on}. {LEGEND}" if report.measured_on else LEGEND,
        "findings": [finding.to_dict() for finding in report.findings],
        "heat": heat_map(report.influence, 260) if report.influence is not None and report.influence.size else None,
    }


def _facts(
    title: str, numbers: list[tuple[str, str]], rows: Sequence[Sequence[int]], capacity: int, total: int
) -> dict[str, Any]:
    from markupsafe import Markup

    picture = Markup(rows_picture([("", rows)], capacity)) if rows else ""
    said = f"the first {len(rows)} of {total:,} blocks" if total > len(rows) else ""
    return {"title": title, "numbers": numbers, "picture": picture, "said": said, "findings": [], "heat": None}


_FACTS: dict[type, Callable[[Any], dict[str, Any]]] = {Packed: _packed, Block: _block, Plan: _plan, VerifyReport: _report}
