"""Guard: the check of isolation, cheap, again and again while training runs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any, Literal

from cloison.errors import FindingsError, InputError, require
from cloison.proof.keep import eager, kept
from cloison.proof.live import isolate, live_setup
from cloison.proof.ranks import Lockstep, gathered, world
from cloison.proof.report import Verdict
from cloison.proof.setup import FAILURES
from cloison.proof.stand_ins import put_on
from cloison.proof.step import recorded
from cloison.proof.substitution import core, sites
from cloison.proof.trainers import known_of_trainer, trainer_of
from cloison.proof.truth import truth_of

require("transformers", "hf")
from transformers import TrainerCallback  # noqa: E402

__all__ = ["Guard"]

logger = logging.getLogger("cloison")


class Guard(TrainerCallback):
    """Every ``every`` steps: do the samples of the batch that was just trained on see each other?

    The call of the model is recorded as it goes by, and repeated with other tokens once its step is over: no gradients, no
    trace. All ranks run as many forwards and share the verdict.

    Args:
        every: optimizer steps between checks; the first step is checked too.
        samples: as for `Audit`.
        on_findings: "raise" a `FindingsError` (training stops), or "warn".
        seed: of the tokens drawn.

    Attributes:
        verdicts: step to verdict, the same on every rank.

    Cost of a check: 2 + 2 * log2 segments forwards without gradients.
    """

    def __init__(
        self,
        every: int,
        *,
        samples: Iterable[Any] | None = None,
        on_findings: Literal["raise", "warn"] = "raise",
        seed: int = 0,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            found = repr(every) if isinstance(every, (int, float, str)) else f"a {type(every).__name__}"
            raise InputError("every must be at least 1 step.", f"It is {found}.", "Pass a number of steps, such as 500.")
        if on_findings not in ("warn", "raise"):
            raise InputError('on_findings must be "warn" or "raise".', f"It is {on_findings!r}.", "Pass one of them.")
        self.verdicts: dict[int, Verdict] = {}
        self._every, self._samples, self._on_findings, self._seed = every, samples, on_findings, seed
        self._trainer: Any = None
        self._known: Any = None
        self._recording: Any = None
        self._calls: list[dict[str, Any]] = []
        self._stand_ins: list[tuple[Any, Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the trainer."""
        self._trainer = trainer_of(self)
        if self._trainer is None:
            warnings.warn("cloison.Guard found no trainer that calls it: nothing is checked.", stacklevel=2)
            return
        self._known = known_of_trainer(self._trainer, self._samples)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the calls of a step that is to be checked."""
        if self._trainer is None or state.global_step % self._every:
            return
        self._calls.clear()
        self._stand_ins.clear()
        self._recording = recorded(self._trainer.model_wrapped, self._calls, None, self._stand_ins)
        self._recording.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check it."""
        if self._recording is None:
            return
        self._recording.__exit__(None, None, None)
        self._recording = None
        step = int(state.global_step) - 1
        verdict = self._checked(self._trainer.model_wrapped)
        self._calls.clear()
        self.verdicts[step] = verdict
        if verdict.status in ("leak", "error"):
            said = f"step {step}: {verdict.status}: {verdict.summary}"
            if self._on_findings == "raise":
                raise FindingsError(
                    "packed samples must not see each other.", said, "Run cloison.Audit for the place and a fix."
                )
            if world()[0] == 0:
                logger.warning("guard: %s", said)

    def _checked(self, model: Any) -> Verdict:
        import torch

        call = next((c for c in self._calls if c.get("input_ids") is not None), None)
        if call is None:
            verdict = Verdict("isolation", "not tested", "no call of the model passed input_ids")
            return _worst(gathered(verdict.to_dict()))

        def idle() -> None:
            with torch.no_grad(), put_on(self._stand_ins):
                model(**call)

        rows = self._known.row_lengths()
        samples = None if rows is not None else self._known.samples()
        with kept(core(model), as_it_is=True) as notes, eager(), Lockstep(idle) as lockstep:
            try:
                truth = truth_of(call, row_lengths=rows, samples=samples, ends=self._known.ends, packed=self._known.packed)
                site = sites(model)
                setup = live_setup(
                    model, site, call, truth, seed=self._seed, notes=notes, step=lockstep, stand_ins=self._stand_ins
                )
                verdict = isolate(setup, truth, full=False, sure=self._known.packed or truth.declared).verdicts[0]
            except FAILURES as error:
                verdict = Verdict("isolation", "error", f"{type(error).__name__}: {error}")
        if verdict.status == "leak" and verdict.evidence["size"] < COUPLED and _has_experts(model):
            said = f"moves of up to {verdict.evidence['size']:.1e} sigma, as expert groups of other sizes make them"
            verdict = Verdict("isolation", "coupled", said, verdict.evidence)
        return _worst(gathered(verdict.to_dict()))


COUPLED = 1e-3
"""Moves below this many standard deviations of a mixture of experts are rounding of its groups (1e-6 measured, leaks 1e-1)."""


def _has_experts(model: Any) -> bool:
    from cloison.proof.coupling import has_experts

    return has_experts(core(model))


def _worst(plain: list[dict[str, Any]]) -> Verdict:
    """Return the worst verdict of all ranks."""
    order = ("error", "leak", "coupled", "exact", "not tested")
    worst = min(plain, key=lambda verdict: order.index(verdict["status"]))
    return Verdict(worst["experiment"], worst["status"], worst["summary"], worst["evidence"])
