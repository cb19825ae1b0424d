"""Audit: a TrainerCallback that audits the first step inside the real ``train()``, and leaves no trace in it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any, Literal

from cloison.errors import FindingsError, InputError, require
from cloison.proof.ranks import world
from cloison.proof.report import VerifyReport
from cloison.proof.step import StepAudit
from cloison.proof.trainers import known_of_trainer, loss_of, trainer_of
from cloison.proof.verdicts import failed
from cloison.proof.weights import Claim

require("transformers", "hf")
from transformers import TrainerCallback  # noqa: E402

__all__ = ["Audit"]

logger = logging.getLogger("cloison")


class Audit(TrainerCallback):  # a subclass: the one way in that trainers offer
    """Audits step 0 of ``transformers.Trainer``, ``trl.SFTTrainer`` and their kin: what it feeds, leaks and trains.

    Every micro-batch of the first step is looked at just before it is trained on, by the trainer's own ``training_step`` up to
    the loss that would go to ``backward``: in its precision, mode, wrapping and loss. Then the step runs as if nothing had
    been: random states, gradients, buffers, counts and metrics are put back.

    After the first step `report` holds the `VerifyReport`, the same on every rank. It is logged by the logger "cloison", as a
    warning where something is wrong.

    Args:
        samples: the samples as they are before packing (a data set with ``input_ids``, lists of ids, or `Sample`s with their
            labels): what is truly known of boundaries and prompts. Left out, the trainer's data set is asked.
        weights: what the weights of the step ought to be: "token_mean", "sample_mean", or None for no claim.
        on_findings: "warn", or "raise" a `FindingsError` before the first step is trained.
        seed: of everything drawn.

    Cost: for the first micro-batch 4 forwards for its targets and 2 + 2 * log2 segments for isolation (and about one a segment
    where there is a leak); one forward for each other micro-batch. Memory: as a forward without activations.

    A subclass of Trainer whose step keeps counts elsewhere than in plain attributes of the trainer sees more calls.
    """

    def __init__(
        self,
        *,
        samples: Iterable[Any] | None = None,
        weights: Claim | None = "token_mean",
        on_findings: Literal["warn", "raise"] = "warn",
        seed: int = 0,
    ) -> None:
        if on_findings not in ("warn", "raise"):
            raise InputError('on_findings must be "warn" or "raise".', f"It is {on_findings!r}.", "Pass one of them.")
        self.report: VerifyReport | None = None
        self._samples, self._weights, self._on_findings, self._seed = samples, weights, on_findings, seed

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand before the trainer's ``training_step`` until the first step is through."""
        trainer = trainer_of(self)
        if trainer is None:
            warnings.warn("cloison.Audit found no trainer that calls it: nothing was audited.", stacklevel=2)
            return
        self.report = None
        audit = StepAudit(known_of_trainer(trainer, self._samples), self._weights, self._seed)
        original = trainer.training_step
        before = vars(trainer).get("training_step")

        def put_back() -> None:
            if before is None:
                vars(trainer).pop("training_step", None)
            else:
                trainer.training_step = before

        def training_step(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            try:
                audit.micro_batch(model, lambda: loss_of(trainer, original, model, inputs, rest, named))
                if getattr(trainer.accelerator, "sync_gradients", True):
                    put_back()
                    self._finish(audit.report())
            except FindingsError:
                raise
            except Exception as error:
                put_back()
                logger.exception("the audit itself failed; training goes on")
                verdict, findings = failed("audit", error)
                self._finish(VerifyReport((verdict,), tuple(findings)))
            return original(model, inputs, *rest, **named)

        trainer.training_step = training_step

    def _finish(self, report: VerifyReport) -> None:
        self.report = report
        if world()[0] == 0:
            logger.log(logging.INFO if report.ok else logging.WARNING, "audit of the first step:\n%s", report)
        if self._on_findings == "raise":
            report.raise_for_findings()
