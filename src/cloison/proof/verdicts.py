"""From measurements to words: the Verdict and the Findings of each experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloison.errors import CloisonError
from cloison.findings import Finding
from cloison.proof.comparing import BLUNT
from cloison.proof.equality import Equality
from cloison.proof.isolation import Ahead, Influence
from cloison.proof.keep import Kept
from cloison.proof.mismatches import Mismatch
from cloison.proof.positions import Positions
from cloison.proof.report import Verdict
from cloison.proof.tracing import Place

__all__ = [
    "equality_said",
    "failed",
    "gradients_said",
    "isolation_said",
    "look_ahead_said",
    "not_tested",
    "notes_said",
    "positions_said",
    "where_said",
]

Said = tuple[Verdict, list[Finding]]


def not_tested(experiment: str, why: str) -> Said:
    """Say that ``experiment`` did not run, and why."""
    return Verdict(experiment, "not tested", why), []


def failed(experiment: str, error: BaseException, fix: str = "") -> Said:
    """Say that the model, or what it was given, raised."""
    if isinstance(error, CloisonError):
        said, fix = f"{error.asked} {error.found}".strip(), fix or error.remedy
        message = f"{experiment}: {said}"
    else:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        said = f"{type(error).__name__}: {first}"
        message = f"{experiment}: the set-up raises {said}"
    finding = Finding("error", "error", message, fix, {"experiment": experiment})
    return Verdict(experiment, "error", said, {"error": type(error).__name__}), [finding]


def isolation_said(moved: Influence, coupled: str, place: Place | None, fix: str) -> Said:
    """Say what moved. ``coupled`` is the control that explains it away, or ""."""
    count = moved.matrix.shape[0]
    cells, all_cells = int(moved.cells.sum()), count * (count - 1)
    source, destination, size = moved.worst
    evidence: dict[str, Any] = {
        "cells_moved": cells,
        "cells": all_cells,
        "noise": moved.noise,
        "threshold": moved.threshold,
        "forwards": moved.forwards,
        "own_smallest": float(np.nanmin(np.diag(moved.matrix))) if count else None,
    }
    noise = (
        "bit-equal when repeated"
        if moved.noise == 0.0
        else f"repeats differ by {moved.noise:.1e} sigma: nothing below {moved.threshold:.1e} would show"
    )
    if cells == 0:
        return Verdict("isolation", "exact", f"0 of {all_cells} cells moved (no sample sees another; {noise})", evidence), []
    evidence |= {"source": source, "destination": destination, "size": size, "control": coupled}
    if coupled:
        said = f"{cells} of {all_cells} cells moved by up to {size:.1e} sigma, no leak: {coupled}"
        return Verdict("isolation", "coupled", said, evidence), [Finding("coupled", "note", said, "", {"size": size})]
    directed = "also towards earlier segments" if bool(np.tril(moved.cells, -1).any()) else "towards later segments only"
    worst = f"segment {source} moves segment {destination} by {size:.2g} sigma"
    said = f"{cells} of {all_cells} cells moved, {directed}; worst: {worst}"
    entry = f"; it enters at {place}" if place is not None else ""
    finding = Finding(
        "leak",
        "error",
        f"samples see each other: {said}{entry}.",
        fix,
        {
            "source": source,
            "destination": destination,
            "size": size,
            "module": None if place is None else place.module,
            "nature": None if place is None else place.nature,
        },
    )
    return Verdict("isolation", "leak", said, evidence), [finding]


def where_said(place: Place | None, why: str) -> Said:
    """Say where a leak enters."""
    if place is None:
        return not_tested("where", why)
    evidence = {"module": place.module, "class": place.kind, "nature": place.nature, "reach_tokens": place.reach_tokens}
    said = f"enters at {place}, reaching {place.reach_tokens} of {place.of_tokens} tokens there"
    return Verdict("where", "leak", said, evidence), []


def look_ahead_said(ahead: Ahead, threshold: float, bidirectional: bool, coupled: str = "") -> Said:
    """Say whether tokens see later ones of their own segment."""
    evidence = {"size": ahead.size, "segment": ahead.segment, "first_tokens": ahead.kept[ahead.segment]}
    if ahead.size <= threshold:
        return Verdict("look-ahead", "exact", "no token moves with later tokens of its sample", evidence), []
    kept = ahead.kept[ahead.segment]
    said = f"the first {kept} tokens of segment {ahead.segment} move by {ahead.size:.2g} sigma when the later ones change"
    if bidirectional:
        return Verdict("look-ahead", "right", f"{said}, as the model is declared bidirectional", evidence), []
    if coupled:
        return Verdict("look-ahead", "coupled", f"{said}; {coupled}", evidence), []
    fix = "Pass bidirectional=True if the model may look ahead; else give it a causal mask."
    return Verdict("look-ahead", "wrong", said, evidence), [Finding("look_ahead", "error", f"{said}.", fix, evidence)]


def gradients_said(moved: Influence, coupled: str, forward_leaks: bool, fix: str) -> Said:
    """Say whether gradients of one segment reach another."""
    count = moved.matrix.shape[0]
    cells, all_cells = int(moved.cells.sum()), count * (count - 1)
    source, destination, size = moved.worst
    evidence = {"cells": cells, "of": all_cells, "source": source, "destination": destination, "size": size}
    if not cells:
        return Verdict(
            "gradients", "exact", f"exactly zero in all {all_cells} cells: none flows from one sample to another", evidence
        ), []
    said = (
        f"{cells} of {all_cells} cells are not zero; worst: the outputs of segment {destination} send a gradient to segment "
        f"{source}, {size:.2g} of the largest own one"
    )
    if coupled:
        return Verdict("gradients", "coupled", f"{said}; {coupled}", evidence), []
    verdict = Verdict("gradients", "leak", said, evidence)
    if forward_leaks:
        return verdict, []
    message = f"the forward isolates samples and the backward does not: {said}."
    return verdict, [Finding("gradient_leak", "error", message, fix or "Correct the backward of the kernel.", evidence)]


def equality_said(equal: Equality, mismatch: Mismatch | None, leaks: bool, coupled: str, fix: str) -> Said:
    """Say whether packed samples are what they are alone."""
    numbers = {
        c.quantity: {"error": c.error, "floor": c.floor, "allowed": c.allowed, "equal": c.equal, "where": c.where}
        for c in equal.comparisons
    }
    evidence: dict[str, Any] = {"comparisons": numbers, "floor": equal.floor_source, "notes": list(equal.notes)}
    worst = equal.worst
    if equal.equal and equal.blunt > BLUNT:
        said = f"rounding alone may move these outputs by {equal.blunt:.2g} sigma in this precision: a mismatch would not show"
        return Verdict("equality", "not tested", said, evidence), []
    if equal.equal:
        untested = f"; not tested: {'; '.join(equal.notes)}" if equal.notes else ""
        names = list(dict.fromkeys(c.quantity.removesuffix(" (float64)") for c in equal.comparisons))
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        share = f"{worst.error / worst.allowed:.0%}" if worst.allowed else "0%"
        said = f"within rounding: packed, samples get the {listed} that they get alone, up to {share} of what rounding may do"
        return Verdict("equality", "exact", said + untested, evidence), []
    what = f"{worst.quantity} of {worst.where}" if worst.where else worst.quantity
    unit = "of its largest entry" if worst.quantity == "parameter gradients" else "sigma"
    differ = "differs" if worst.quantity.startswith("loss") else "differ"
    said = f"{what} {differ} by {worst.error:.2g} {unit} from the sample alone; rounding may do {worst.allowed:.2g}"
    if leaks:
        return Verdict("equality", "mismatch", f"{said}; the leak accounts for that", evidence), []
    if coupled:
        return Verdict("equality", "coupled", f"{said}; {coupled}", evidence), []
    only_backward = all(c.equal for c in equal.comparisons if c.quantity != "parameter gradients")
    if only_backward:
        message = f"packed outputs are right and packed gradients are not: {said}."
        finding = Finding(
            "gradient_mismatch",
            "error",
            message,
            "Correct the backward of the layer that owns this parameter.",
            {"parameter": worst.where, "error": worst.error},
        )
        return Verdict("equality", "mismatch", said, evidence), [finding]
    cause = mismatch.kind if mismatch is not None else "unexplained"
    why = f" {mismatch.said[:1].upper()}{mismatch.said[1:]}" if mismatch is not None else ""
    finding = Finding(
        "mismatch",
        "error",
        f"samples are isolated and yet not what they are alone: {said}.{why}",
        " Or: ".join(dict.fromkeys(part for part in (mismatch.fix if mismatch is not None else "", fix) if part)),
        {"cause": cause, "error": worst.error},
    )
    return Verdict("equality", "mismatch", f"{said}; cause: {cause}", evidence | {"cause": cause}), [finding]


def positions_said(found: Positions, held: bool | None) -> Said:
    """Say what positions reach the model. ``held``: whether equality was exact, None where it was not tested."""
    evidence = {
        "passed": found.passed,
        "starts": list(found.starts),
        "reads": found.reads,
        "shifts": found.shifts,
        "start_alone": found.start_alone,
    }
    if found.right or held:
        return Verdict("positions", "right", found.said, evidence), []
    severity: Any = "error" if held is None else "warning"
    wanted = found.start_alone or 0
    fix = (
        f"Pass position_ids that start at {wanted} in each segment: cloison.collate(blocks"
        f"{f', position_start={wanted}' if wanted else ''})."
    )
    return Verdict("positions", "wrong", found.said, evidence), [
        Finding("positions", severity, f"{found.said}.", fix, evidence)
    ]


def notes_said(notes: Kept) -> list[Finding]:
    """Say what was noticed about the model itself."""
    out = []
    if notes.dropout:
        said = f"dropout ({notes.dropout:g}) was off: the model was measured in eval mode."
        out.append(Finding("dropout_off", "note", said, "", {"rate": notes.dropout}))
    if notes.changed_weights:
        names = ", ".join(notes.changed_weights[:3])
        put = "They were put back." if notes.restored else "They are too large to have been copied, and were not put back."
        out.append(
            Finding(
                "weights_changed",
                "warning",
                f"the forward changes {len(notes.changed_weights)} parameters ({names}). {put}",
                "Keep such state in buffers, and switch it off while verifying.",
                {"parameters": notes.changed_weights},
            )
        )
    if notes.drew_random:
        out.append(
            Finding("random_forward", "note", "the forward draws random numbers or sets a seed; every run was seeded alike.")
        )
    return out
