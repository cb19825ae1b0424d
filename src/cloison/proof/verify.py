"""verify: every experiment on one set-up, each with its own verdict, and a model that is afterwards as it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError, InputError, require
from cloison.findings import Finding
from cloison.proof import verdicts as say
from cloison.proof.blocks import lengths_of, synthetic, vocabulary
from cloison.proof.certificate import certificate
from cloison.proof.comparing import BLUNT
from cloison.proof.equality import Equality, equality, twin_of
from cloison.proof.gradients import gradient_influence
from cloison.proof.isolation import Ahead, Influence, influence, look_ahead
from cloison.proof.judging import judge
from cloison.proof.keep import kept
from cloison.proof.likely import known_ids, likely_cause
from cloison.proof.mismatches import Mismatch, classify
from cloison.proof.positions import positions
from cloison.proof.remedies import remedy
from cloison.proof.report import VerifyReport
from cloison.proof.run import OF_SAMPLES, on_device, subject
from cloison.proof.setup import FAILURES, Setup, coupling, look_ahead_coupling, where
from cloison.proof.tracing import Place

__all__ = ["verify"]

UNWATCHED = "the modules could not be watched: repeats differ, the callable shows no module, or the batch has no tokens by name"

UNSTEADY = 1e-2
"""Where repeats differ by more standard deviations than this, a shift of positions proves nothing."""


def verify(
    model: Any,
    blocks: Sequence[Block] | None = None,
    *,
    collate: Callable[[Sequence[Block]], Mapping[str, Any]] | None = None,
    loss: Callable[..., Any] | None = None,
    alone: Callable[[Block], Mapping[str, Any]] | None = None,
    seed: int = 0,
    bidirectional: bool = False,
    gradients: bool = True,
    fix: bool = True,
) -> VerifyReport:
    """Return what experiments say of ``model`` on packed blocks, a verdict each.

    They are isolation, where a leak enters, look-ahead inside a sample, gradients, equality, positions and targets.

    The model is left as it was: mode, weights, buffers, hooks and every random state. A model in training mode with dropout is
    measured in eval mode, and a note says so. The report is the same for the same seed.

    Args:
        model: a torch module (called with the batch as keywords, without labels), a callable from batch to logits, or an
            Adapter.
        blocks: what to pack; all of them go into one batch. None: synthetic blocks of awkward lengths, some longer than the
            windows and chunks of the model as far as that is cheap (`affordable_tokens`); the report says how long.
        collate: blocks to the batch, the way in which the user signals packing; None: an Adapter's own, else `cloison.collate`.
        loss: from (output of the model, batch) to the loss; None: the model's own, where its output has one.
        alone: a block of one segment to the batch of that sample alone; None: the bare ids (for a callable: ``collate``).
        seed: of everything drawn.
        bidirectional: whether the model may look ahead inside a segment.
        gradients: run backwards too.
        fix: where something is wrong, try other signals until one is exact, and say which.

    Returns:
        A `VerifyReport`; what could not be tested is a verdict too ("not tested", with the reason).

    Raises:
        InputError: no callable, a callable without ``collate``, or no blocks.
        MissingDependencyError: torch is not installed.

    Cost: about 12 + 4 * log2 segments packed forwards and two alone for each segment; a model below 64 million parameters is
    copied in float64. Memory: the outputs of a few forwards.

    >>> from cloison.proof.tiny import tiny_model
    >>> model, config = tiny_model("llama")
    >>> verify(model).ok
    True
    """
    require("torch", "hf")
    tested = subject(model, collate, alone)
    config = getattr(tested.module, "config", None)
    known = None if hasattr(config, "to_dict") else known_ids(tested.module)
    drawn = blocks is None
    given = synthetic(config, vocab_size=known, seed=seed, module=tested.module) if blocks is None else _blocks(blocks)
    if not given or not sum(lengths_of(given)):
        raise InputError("verify needs blocks with tokens.", f"It got {len(given)}.", "Pass blocks, or leave them out.")
    ids = vocabulary(config, known) if drawn else _ids_of(given, config, known)
    with kept(tested.module) as notes:
        setup = Setup(tested, given, ids, seed, notes)
        said, matrix = _experiments(setup, bidirectional, gradients, fix)
        if drawn and any(verdict.status == "error" for verdict, _ in said):
            # A table of positions may end before the longest of them, and nothing said so.
            short = synthetic(config, vocab_size=known, seed=seed, short=True)
            if lengths_of(short) != lengths_of(given):
                setup = replace(setup, blocks=short)
                said, matrix = _experiments(setup, bidirectional, gradients, fix)
        said.append(_targets(setup, model, loss))
        verdicts = [verdict for verdict, _ in said]
        stated = certificate(tested, setup.blocks, _batch(setup), verdicts, seed)
    findings = [finding for _, found in said for finding in found] + say.notes_said(notes)
    return VerifyReport(tuple(verdicts), tuple(findings), matrix, stated)


def _experiments(setup: Setup, bidirectional: bool, gradients: bool, fix: bool) -> tuple[list[Any], Any]:
    """Run everything but the targets. Samples alone come first: a model that remembers must not have seen a packed row yet."""
    import torch

    with torch.no_grad():
        equal = _tried(
            lambda: equality(setup.subject, setup.blocks, twin=twin_of(setup.subject), gradients=gradients, run=setup.wrap)
        )
        several = len(lengths_of(setup.blocks)) > 1
        moved = _tried(lambda: influence(setup.logits, setup.blocks, setup.ids, seed=setup.seed, trials=2)) if several else None
        place, coupled = None, ""
        if isinstance(moved, Influence) and not moved.isolated:
            found = _tried(lambda: where(setup, moved))
            place = found if isinstance(found, Place) else None
            rounding = equal.allowed if isinstance(equal, Equality) and equal.equal else None
            control = _tried(lambda: coupling(setup, moved, place, rounding))
            coupled = control if isinstance(control, str) else ""
        of_samples = isinstance(equal, Equality) and equal.comparisons[0].quantity == OF_SAMPLES
        ahead: Any = InputError("look-ahead is of tokens.", "The model gives one output a sample.")
        if not of_samples:
            ahead = _tried(lambda: look_ahead(setup.logits, setup.blocks, setup.ids, seed=setup.seed))
    ahead_coupled = ""
    if isinstance(ahead, Ahead) and ahead.size > 0.0 and not bidirectional:
        rounding = equal.comparisons[0].allowed if isinstance(equal, Equality) else None
        with torch.no_grad():
            control = _tried(lambda: look_ahead_coupling(setup, ahead, rounding))
        ahead_coupled = control if isinstance(control, str) else ""
    back = _tried(lambda: gradient_influence(setup.subject, setup.run, setup.blocks)) if gradients and several else None
    if coupled and "batch statistics" not in coupled and isinstance(back, Influence) and not back.isolated:
        coupled = ""  # what only regroups tokens has no gradient from one to the other
    leaks = isinstance(moved, Influence) and not moved.isolated and not coupled
    mismatch = None
    with torch.no_grad():
        if isinstance(equal, Equality) and not equal.equal and not leaks and not coupled:
            kind = _tried(lambda: classify(setup, equal))
            mismatch = kind if isinstance(kind, Mismatch) else None
        wrong = leaks or mismatch is not None or isinstance(moved, Exception) or isinstance(equal, Exception)
        mend = _mend(setup, equal) if fix and wrong else ""
        noise = max(equal.allowed, 1e-12) if isinstance(equal, Equality) else 1e-4
        if isinstance(moved, Influence) and moved.noise > UNSTEADY:
            known: Any = InputError("positions are tried on outputs that repeat.", f"They differ by {moved.noise:.1e} sigma.")
        else:
            known = _tried(lambda: positions(setup.subject, setup.blocks, noise=noise, run=setup.wrap))
    return list(
        _said(setup, equal, moved, place, coupled, ahead, ahead_coupled, back, mismatch, mend, known, bidirectional, gradients)
    ), (moved.matrix if isinstance(moved, Influence) else None)


def _said(
    setup: Setup,
    equal: Any,
    moved: Any,
    place: Place | None,
    coupled: str,
    ahead: Any,
    ahead_coupled: str,
    back: Any,
    mismatch: Mismatch | None,
    mend: str,
    known: Any,
    bidirectional: bool,
    gradients: bool,
) -> Iterator[tuple[Any, list[Finding]]]:
    leaks = isinstance(moved, Influence) and not moved.isolated and not coupled
    threshold = moved.threshold if isinstance(moved, Influence) else 0.0
    if moved is None:
        yield say.not_tested("isolation", "there is only one segment")
    elif isinstance(moved, Exception):
        yield say.failed("isolation", moved, mend or likely_cause(setup.subject.module, setup.blocks))
    else:
        yield say.isolation_said(moved, coupled, place, mend)
    if leaks:
        yield say.where_said(place, UNWATCHED)
    if isinstance(ahead, Exception):
        yield say.not_tested("look-ahead", _first(ahead))
    else:
        yield say.look_ahead_said(ahead, threshold, bidirectional, ahead_coupled)
    if not gradients:
        yield say.not_tested("gradients", "gradients=False")
    elif back is None:
        yield say.not_tested("gradients", "there is only one segment")
    elif isinstance(back, Exception):
        yield say.not_tested("gradients", _first(back))
    else:
        yield say.gradients_said(back, coupled, leaks, mend)
    if isinstance(equal, Exception):
        unmeasured = setup.subject.module is None and isinstance(equal, InputError)
        yield (
            say.not_tested("equality", _first(equal))
            if isinstance(moved, Exception) or coupled or unmeasured
            else say.failed("equality", equal, mend or likely_cause(setup.subject.module, setup.blocks))
        )
    else:
        yield say.equality_said(equal, mismatch, leaks, coupled, mend)
    if isinstance(known, Exception):
        yield say.not_tested("positions", _first(known))
    else:
        yield say.positions_said(known, equal.equal if isinstance(equal, Equality) else None)


def _tried(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or what it raised where a model's own code may raise that."""
    try:
        return call()
    except FAILURES as error:
        return error


def _first(error: BaseException) -> str:
    if isinstance(error, CloisonError):
        return f"{error.asked} {error.found}".strip()
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]


def _mend(setup: Setup, equal: Any) -> str:
    if not isinstance(equal, Equality):
        alone_only = _tried(
            lambda: equality(setup.subject, setup.blocks, twin=None, gradients=False, run=setup.wrap, packed=False)
        )
        equal = alone_only
    if not isinstance(equal, Equality) or equal.reference is None:
        return ""
    kind = equal.comparisons[0].quantity
    allowed = max(comparison.allowed for comparison in equal.comparisons if comparison.quantity.startswith(kind))
    said, exact = remedy(setup.subject, setup.blocks, setup.ids, equal.reference, allowed, setup.seed, setup.wrap)
    tried = "exact" if allowed <= BLUNT else "no sample sees another"
    return f"{said} (Tried here: {tried}.)" if exact else said


def _batch(setup: Setup) -> Mapping[str, Any] | None:
    made = _tried(lambda: setup.subject.collate(setup.blocks))
    return made if isinstance(made, Mapping) else None


def _targets(setup: Setup, model: Any, loss: Callable[..., Any] | None) -> Any:
    batch = _batch(setup)
    if batch is None:
        return say.not_tested("targets", "there is no batch")
    if loss is None and batch.get("labels") is None:
        return say.not_tested("targets", "the batch has no labels, and no loss= was given")
    placed = on_device(batch, setup.subject.module)
    called = model
    if hasattr(model, "collate") and setup.subject.module is not None:
        called = _called(model, setup.subject.module)
        if _tried(lambda: _inner_shape(model, setup.subject.module, placed)) != placed["input_ids"].shape:
            # Samples run in rows of their own: what is substituted are the outputs, put into packed order again.
            called, loss = _whole(model), loss or getattr(model, "loss_of", None)
    said = _tried(lambda: judge(called, placed, setup.blocks, loss, seed=setup.seed))
    return say.not_tested("targets", _first(said)) if isinstance(said, Exception) else said


def _called(adapter: Any, inner: Any) -> Any:
    """Return an Adapter as a module around its model, as wrappers of models are."""
    import torch

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = inner

        def forward(self, **batch: Any) -> Any:
            return adapter(**batch)

    return Called()


def _whole(adapter: Any) -> Any:
    """Return an Adapter as a module that shows nothing of its inside."""
    import torch

    class Whole(torch.nn.Module):
        def forward(self, **batch: Any) -> Any:
            return adapter(**batch)

    return Whole()


def _inner_shape(adapter: Any, inner: Any, batch: Mapping[str, Any]) -> Any:
    """Return the shape of the ids that reach the model inside an Adapter."""
    import torch

    seen: list[Any] = []
    hook = inner.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs.get("input_ids")), with_kwargs=True)
    try:
        with torch.no_grad():
            adapter(**{key: value for key, value in batch.items() if key != "labels"})
    finally:
        hook.remove()
    return seen[-1].shape if seen and seen[-1] is not None else None


def _blocks(blocks: Any) -> list[Block]:
    """Return what the caller passed as blocks.

    Raises:
        InputError: bare samples, rows or texts.
    """
    given = [blocks] if isinstance(blocks, Block) else list(blocks)
    wrong = [type(one).__name__ for one in given if not isinstance(one, Block)]
    if wrong:
        raise InputError(
            "blocks must be Blocks.",
            f"{len(wrong)} of {len(given)} are {wrong[0]}.",
            "Make them of samples: cloison.pack_samples(samples, capacity=4096).",
        )
    return given


def _ids_of(blocks: Sequence[Block], config: Any, known: int | None) -> npt.NDArray[np.int64]:
    """Return the ids that occur in ``blocks``, or the vocabulary where they are too few to change anything."""
    found = np.unique(np.concatenate([block.input_ids for block in blocks])).astype(np.int64)
    return found if found.size >= 8 else vocabulary(config, known)
