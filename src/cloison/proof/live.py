"""Isolation of a batch in training: the model as it is wrapped, in its mode and precision, with the call as it came.

Only the tokens change; every other argument of the recorded call stays. Forwards without gradients; the same number on every
rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import CloisonError, InputError
from cloison.findings import Finding
from cloison.proof import verdicts as say
from cloison.proof.blocks import lengths_of, vocabulary
from cloison.proof.isolation import Influence, influence
from cloison.proof.keep import Kept
from cloison.proof.live_equality import live_equality
from cloison.proof.remedies import remedy
from cloison.proof.report import Verdict
from cloison.proof.run import Subject, logits_of, single_batch
from cloison.proof.setup import FAILURES, Setup, coupling, where
from cloison.proof.stand_ins import StandIns, put_on
from cloison.proof.substitution import Site
from cloison.proof.targets import NO_LOSS_KEYS
from cloison.proof.truth import Truth, batch_rows

__all__ = ["Isolated", "isolate", "live_setup"]

MOST_SEGMENTS = 256
"""More segments than these in one batch are tested row by row, as far as they go."""


@dataclass(frozen=True, eq=False)
class Isolated:
    """What isolation says of a live batch.

    Attributes:
        verdicts: isolation, and where it enters if it leaks.
        findings: the leak.
        moved: the measurement, or None where it was not made.
    """

    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    moved: Influence | None


def live_setup(
    model: Any,
    site: Site,
    call: Mapping[str, Any],
    truth: Truth,
    *,
    seed: int,
    notes: Kept,
    step: Callable[..., Any],
    stand_ins: StandIns = (),
) -> Setup:
    """Return the `Setup` of a recorded ``call`` of ``model`` (wrapped as it is): blocks to the same call with other tokens.

    Args:
        step: wraps every forward (see `Lockstep`).
        stand_ins: the forwards that stood in while the call was recorded.

    Raises:
        InputError: the call has no ids.
    """
    import torch

    if call.get("input_ids") is None:
        raise InputError("a call to audit passes input_ids.", f"It passes {', '.join(call)}.", "Pass ids, not embeddings.")
    ids = batch_rows(call["input_ids"])
    blocks, places = truth.blocks(ids)[:MOST_SEGMENTS], truth.places()
    places = places[: sum(lengths_of(blocks))]

    asked = _without_loss(site, call)

    def collate(parts: Sequence[Block]) -> Mapping[str, Any]:
        like = call["input_ids"]
        tokens = like.reshape(-1).clone()
        changed = np.concatenate([part.input_ids for part in parts]).astype(np.int64)
        at = torch.from_numpy(places[: changed.size]).to(like.device)
        tokens[at] = torch.from_numpy(changed).to(like.device, like.dtype)
        return {**asked, "input_ids": tokens.reshape(like.shape)}

    def forward(batch: Mapping[str, Any]) -> Any:
        with torch.no_grad(), put_on(stand_ins) as other:
            # What stands before the model may run other rows inside: only what it returns has the index of the call.
            return logits_of(model(**batch)) if other else _hidden(model, site, batch)

    run = step(forward)
    with put_on(stand_ins) as other:
        single = _unknown if other else single_batch(site.top)
    subject = Subject(run, collate, site.top, single, run, type(site.top).__name__)
    usable = np.setdiff1d(np.unique(ids), [*truth.ends, 0])
    pool = usable if usable.size >= 8 else vocabulary(getattr(site.top, "config", None))
    return Setup(subject, blocks, pool.astype(np.int64), seed, notes)


def _unknown(_: Block) -> Mapping[str, Any]:
    raise InputError("a sample alone is passed to the model itself.", "Here an adapter stands in for it.", "Use verify.")


def _without_loss(site: Site, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``call`` without what asks for a loss, which is no part of isolation and dearer than a small model itself."""
    parameters = inspect.signature(site.top.forward).parameters
    needed = {name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    if site.base is None or needed.intersection(NO_LOSS_KEYS):
        return call
    return {name: value for name, value in call.items() if name not in NO_LOSS_KEYS}


def _hidden(model: Any, site: Site, batch: Mapping[str, Any]) -> Any:
    """Return the last hidden state [B, T, width] of one call, or the logits where the model names no base."""
    import torch

    seen: list[Any] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        found = output if isinstance(output, torch.Tensor) else getattr(output, "last_hidden_state", None)
        if found is None and isinstance(output, (tuple, list)) and output:
            found = output[0]
        if isinstance(found, torch.Tensor) and found.dim() == 3:
            seen.append(found)

    def first(_: Any, args: tuple[Any, ...]) -> Any:
        return (args[0][:, :1], *args[1:]) if seen and args and args[0].dim() == 3 else None

    hooks = [] if site.base is None else [site.base.register_forward_hook(keep)]
    if site.base is not None and site.head is not None and not any(key in batch for key in NO_LOSS_KEYS):
        hooks.append(site.head.register_forward_pre_hook(first))  # logits of one token: the rest would be thrown away
    try:
        output = model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    found = seen[-1] if seen else logits_of(output)
    tokens = int(batch["input_ids"].shape[-1])
    return found[:, found.shape[1] - tokens :] if found.dim() == 3 and found.shape[1] > tokens else found


def isolate(
    setup: Setup, truth: Truth, *, full: bool = True, sure: bool = False, call: Mapping[str, Any] | None = None
) -> Isolated:
    """Return whether the segments of a live batch see each other, where it enters and what mends it.

    Run it inside the `Lockstep` that ``setup`` was made with: ranks need different numbers of forwards.

    Args:
        full: look for the place, the controls and a remedy too (more forwards); else the codes alone.
        sure: boundaries that are a guess are as good as known.
        call: the recorded call, for equality with samples alone where nothing leaks.
    """
    guess = truth.guessed and not sure
    count = len(lengths_of(setup.blocks))
    if count < 2:
        said = "the batch holds one sample" if not truth.guessed else "nothing says that the batch holds several samples"
        single = (Verdict("isolation", "not tested", said, {"boundaries": truth.source}),)
        return Isolated(single, (), None)
    try:
        moved = influence(setup.logits, setup.blocks, setup.ids, seed=setup.seed)
        place, coupled, mend = None, "", ""
        if full and not moved.isolated:
            place = where(setup, moved)
            coupled = coupling(setup, moved, place, None)
            mend = "" if coupled else _mend(setup, moved)
    except FAILURES as error:
        verdict, findings = say.failed("isolation", error)
        return Isolated((verdict,), tuple(findings), None)
    verdict, findings = say.isolation_said(moved, coupled, place, mend)
    known = f"; boundaries from {truth.source}"
    verdict = Verdict(
        verdict.experiment, verdict.status, verdict.summary + known, {**verdict.evidence, "boundaries": truth.source}
    )
    if guess:
        findings = [Finding(f.kind, _weaker(f), f"{f.message} (The boundaries are a guess.)", f.fix, f.where) for f in findings]
    verdicts = [verdict]
    if verdict.status == "leak" and full:
        verdicts.append(say.where_said(place, "the modules could not be watched")[0])
    elif full and call is not None:
        equal, unequal = _equal(setup, truth, call)
        verdicts.append(equal)
        findings += unequal
    return Isolated(tuple(verdicts), tuple(findings), moved)


def _equal(setup: Setup, truth: Truth, call: Mapping[str, Any]) -> tuple[Verdict, list[Finding]]:
    try:
        return live_equality(setup, truth, call)
    except FAILURES as error:
        said = error.asked + " " + error.found if isinstance(error, CloisonError) else f"{type(error).__name__}: {error}"
        return Verdict("equality", "not tested", said.strip()[:300]), []


def _weaker(finding: Finding) -> Any:
    return "warning" if finding.severity == "error" else finding.severity


def _mend(setup: Setup, moved: Influence) -> str:
    said, tried = remedy(setup.subject, setup.blocks, setup.ids, None, max(moved.threshold, 1e-6), setup.seed, setup.wrap)
    return f"{said} (Tried here: no sample sees another.)" if tried else said
