"""StepAudit: one optimizer step under audit, micro-batch by micro-batch, and the one report that all ranks share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import CloisonError
from cloison.findings import Finding
from cloison.proof import verdicts as say
from cloison.proof.boundaries_said import contract, unrecorded
from cloison.proof.certificate import certificate
from cloison.proof.fit import NOTHING
from cloison.proof.keep import Kept, dropout_of, eager, kept
from cloison.proof.live import Isolated, isolate, live_setup
from cloison.proof.loss_shapes import SOFT, LossShape
from cloison.proof.ranks import Lockstep, gathered, world
from cloison.proof.repeated import digests, repeated_rows, replicated
from cloison.proof.report import Verdict, VerifyReport
from cloison.proof.run import Subject
from cloison.proof.setup import FAILURES
from cloison.proof.stand_ins import StandIns, marked, put_on, standing
from cloison.proof.substitution import core, sites
from cloison.proof.target_findings import target_findings
from cloison.proof.target_verdict import TARGET_KINDS, targets_verdict
from cloison.proof.targets import INSIDE, NO_HEAD, OTHER_ROWS, UNNAMED, Reading, read_step
from cloison.proof.throughput import Throughput, counted
from cloison.proof.truth import SampleIndex, Truth, batch_rows, truth_of
from cloison.proof.weights import Claim, StepWeights, weigh, weights_verdict

__all__ = ["Known", "StepAudit", "recorded"]

_WORST = ("error", "leak", "wrong", "mismatch", "coupled", "exact", "right", "not tested")


@dataclass(frozen=True)
class Known:
    """What a trainer tells about its data.

    Attributes:
        row_lengths: (input_ids, seq_lengths) of rows of the data set; called when needed.
        samples: the samples; called once.
        seq_lengths: from the arguments of a call to the lengths of its rows, where someone states them.
        ends: ids that end a text.
        packed: whether the trainer says that rows hold several samples.
    """

    row_lengths: Callable[[], Iterable[tuple[Any, Any]] | None] = lambda: None
    samples: Callable[[], SampleIndex | None] = lambda: None
    seq_lengths: Callable[[Mapping[str, Any]], Sequence[Any] | None] = lambda _: None
    ends: tuple[int, ...] = ()
    packed: bool = False


@dataclass
class StepAudit:
    """Collects what micro-batches show; `report` ends the step.

    Attributes:
        known: see `Known`.
        claim: what the weights of the step ought to be, or None.
        seed: of everything drawn.
    """

    known: Known = field(default_factory=Known)
    claim: Claim | None = "token_mean"
    seed: int = 0
    _parts: list[StepWeights] = field(default_factory=list)
    _findings: list[Finding] = field(default_factory=list)
    _verdicts: list[Verdict] = field(default_factory=list)
    _form: str = "cross entropy"
    _unseen: bool = False
    _counts: Throughput = field(default_factory=Throughput)
    _isolated: Isolated | None = None
    _certificate: Mapping[str, Any] = field(default_factory=dict)
    _targets: list[tuple[Reading, Truth]] = field(default_factory=list)
    _rows: dict[str, int] = field(default_factory=dict)
    _replicated: bool = False

    def micro_batch(self, model: Any, step: Callable[[], Any]) -> None:
        """Look at one micro-batch before it is trained on. ``step`` runs it up to its loss and changes nothing lasting.

        Nothing that the model's own code raises gets out: it becomes a verdict.
        """
        first = not self._targets and self._isolated is None
        calls: list[dict[str, Any]] = []
        modes: list[tuple[Any, bool]] = []
        stand_ins: list[tuple[Any, Any]] = []
        with kept(core(model), as_it_is=True), eager(), recorded(model, calls, modes, stand_ins):
            reading = self._read(lambda: read_step(step, model, seed=self.seed, shape=first))
        self._add(model, calls, modes, stand_ins, reading, first)

    def watched(
        self,
        model: Any,
        calls: list[dict[str, Any]],
        modes: list[tuple[Any, bool]],
        stand_ins: StandIns,
        read: Callable[[], Reading],
    ) -> None:
        """Look at one micro-batch after it was trained on: its recorded ``calls``, and ``read``, what its gradients say."""
        first = not self._targets and self._isolated is None
        with kept(core(model), as_it_is=True), eager():
            reading = self._read(read)
        self._add(model, calls, modes, stand_ins, reading, first)

    def _add(
        self,
        model: Any,
        calls: list[dict[str, Any]],
        modes: list[tuple[Any, bool]],
        stand_ins: StandIns,
        reading: Reading | None,
        first: bool,
    ) -> None:
        call = next((c for c in calls if c.get("input_ids") is not None), None)
        if call is None:
            self._verdicts.append(Verdict("isolation", "not tested", "no call of the model passed input_ids"))
            return
        truth = self._truth(call)
        packed = self.known.packed or truth.declared
        self._rows |= digests(batch_rows(call["input_ids"]), truth.segment_ids > 0)
        self._replicated = replicated(model)
        if first:
            notes = self._isolate(model, call, modes, stand_ins, truth, packed)
            self._findings += [*say.notes_said(replace(notes, dropout=0.0)), *_dropout(notes), *contract(call, truth)]
            self._findings += unrecorded(batch_rows(call["input_ids"]), truth)
        if reading is None:
            return
        if not first and self._form == SOFT:
            reading = replace(reading, shape=LossShape(SOFT))  # the probes that name a loss run once
        self._targets.append((reading, truth))
        ids = batch_rows(call["input_ids"])
        found = target_findings(ids, reading, truth, sure=packed)
        self._findings += found
        trained = reading.tokens != NOTHING
        self._form = reading.shape.name if first else self._form
        smoothing = self._targets[0][0].shape.smoothing if reading.shape.name == UNNAMED else 0.0
        rank, _ = world()
        sure = trained if reading.unseen is None else trained & ~reading.unseen
        self._unseen |= reading.unseen is not None and bool(reading.unseen.any())
        numbers = _sample_numbers(truth)[sure]
        self._parts.append(StepWeights(reading.weights[sure] / (1 - smoothing), numbers, rank, reading.precision))
        self._counts += counted(truth, int(trained.sum()))

    def _read(self, read: Callable[[], Reading]) -> Reading | None:
        try:
            return read()
        except CloisonError as error:
            if error.asked == NO_HEAD:
                said = f"{error.found} A classifier or a reward model has no targets among tokens."
                self._verdicts.append(Verdict("targets", "not tested", said))
                return None
            if error.asked == INSIDE:
                said = f"the model computes its loss inside: {error.found} {error.remedy}"
                self._verdicts.append(Verdict("targets", "not tested", said))
                return None
            if error.asked == OTHER_ROWS:
                self._verdicts.append(Verdict("targets", "not tested", f"{error.asked} {error.found} {error.remedy}"))
                return None
            self._verdicts.append(Verdict("targets", "error", error.found or str(error)))
            self._findings.append(Finding("no_loss", "error", f"{error.asked} {error.found}", error.remedy))
        except FAILURES as error:
            verdict, findings = say.failed("targets", error)
            self._verdicts.append(verdict)
            self._findings += findings
        return None

    def _truth(self, call: Mapping[str, Any]) -> Truth:
        rows = self.known.row_lengths()
        return truth_of(
            call,
            seq_lengths=self.known.seq_lengths(call),
            row_lengths=rows,
            samples=None if rows is not None else self.known.samples(),
            ends=self.known.ends,
            packed=self.known.packed,
        )

    def _isolate(
        self,
        model: Any,
        call: Mapping[str, Any],
        modes: list[tuple[Any, bool]],
        stand_ins: StandIns,
        truth: Truth,
        sure: bool,
    ) -> Kept:
        import torch

        site = sites(model)

        def idle() -> None:
            with torch.no_grad(), put_on(stand_ins):
                model(**call)

        with kept(core(model), as_it_is=True) as notes, eager(), Lockstep(idle) as lockstep:
            for module, training in modes:
                module.training = training
            notes.dropout = dropout_of(core(model)) if core(model).training else 0.0
            try:
                setup = live_setup(model, site, call, truth, seed=self.seed, notes=notes, step=lockstep, stand_ins=stand_ins)
                self._isolated = isolate(setup, truth, sure=sure, call=call)
                subject: Subject | None = setup.subject
                blocks = setup.blocks
            except FAILURES as error:
                verdict, findings = say.failed("isolation", error)
                self._isolated, subject, blocks = Isolated((verdict,), tuple(findings), None), None, []
            if subject is not None:
                stated = certificate(subject, blocks, call, self._isolated.verdicts, self.seed)
                self._certificate = stated | {"wrapped": type(model).__name__, "ranks": world()[1]}
        return notes

    def report(self) -> VerifyReport:
        """Return what the step showed, the same on every rank. All ranks must call it."""
        _, ranks = world()
        verdicts, findings = list(self._verdicts), list(self._findings)
        influence: npt.NDArray[np.float64] | None = None
        if self._isolated is not None:
            verdicts += self._isolated.verdicts
            findings += self._isolated.findings
            influence = None if self._isolated.moved is None else self._isolated.moved.matrix
        if self._targets:
            verdicts.append(targets_verdict(self._targets, findings))
        elif not any(verdict.experiment == "targets" for verdict in verdicts):
            verdicts.append(Verdict("targets", "not tested", "no loss was seen"))
        verdicts = [replace(verdict, evidence=dict(verdict.evidence)) for verdict in verdicts]  # a proxy does not pickle
        mine = _Share(verdicts, _merged(findings), influence, self._parts, self._counts, self._form, self._rows)
        shares: list[_Share] = [pickle.loads(blob) for blob in gathered(pickle.dumps(mine))]
        parts = [part for share in shares for part in share.parts]
        explained = self._unseen or any(
            f.kind in TARGET_KINDS and f.severity == "error" for share in shares for f in share.findings
        )
        weighed, wrong = weights_verdict(weigh(parts, ranks), self.claim, form=shares[0].form, explained=explained)
        counts = sum((share.counts for share in shares), Throughput())
        chosen, matrix = _worst(shares)
        wrong += repeated_rows([share.rows for share in shares], self._replicated)
        every = _merged([finding for share in shares for finding in share.findings] + wrong)
        return VerifyReport((*chosen, weighed, counts.verdict()), tuple(every), matrix, self._certificate)


@dataclass(frozen=True, eq=False)
class _Share:
    """What one rank tells the others."""

    verdicts: list[Verdict]
    findings: list[Finding]
    influence: npt.NDArray[np.float64] | None
    parts: list[StepWeights]
    counts: Throughput
    form: str
    rows: dict[str, int]


@contextmanager
def recorded(
    model: Any,
    calls: list[dict[str, Any]],
    modes: list[tuple[Any, bool]] | None = None,
    stand_ins: list[tuple[Any, Any]] | None = None,
) -> Iterator[None]:
    """Record the keyword arguments with which ``model``, wrapped as it is, is called, the modes of its modules then, and the
    forwards that stand in for theirs. Calls inside a call are no calls of their own."""
    inside: list[None] = []

    @marked
    def keep(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inside.append(None)
        if len(inside) > 1:
            return
        if stand_ins is not None and not stand_ins:
            stand_ins.extend(standing(model))
        named = dict(kwargs)
        if args and "input_ids" not in named:
            named["input_ids"] = args[0]
        calls.append(named)
        if modes is not None and not modes:
            modes.extend((module, module.training) for module in model.modules())

    hooks = [
        model.register_forward_pre_hook(keep, with_kwargs=True, prepend=True),
        model.register_forward_hook(lambda *_: inside.pop() if inside else None, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _dropout(notes: Kept) -> list[Finding]:
    if not notes.dropout:
        return []
    said = f"dropout ({notes.dropout:g}) stayed on, and every forward was seeded alike."
    return [Finding("dropout_seeded", "note", said, "", {"rate": notes.dropout})]


def _sample_numbers(truth: Truth) -> npt.NDArray[np.int64]:
    """Return int64 [B, T]: the number of each position's sample in the batch, 0 for positions of none."""
    out = np.zeros(truth.segment_ids.shape, np.int64)
    number = 0
    for row, spans in enumerate(truth.spans()):
        for start, stop in spans:
            number += 1
            out[row, start:stop] = number
    return out


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding of each kind, the most severe and first, with how often it came; errors first."""
    order = ("error", "warning", "note")
    kept_by_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        kept_by_kind.setdefault(finding.kind, []).append(finding)
    out = []
    for listed in kept_by_kind.values():
        first = min(listed, key=lambda f: order.index(f.severity))
        times = sum(int(f.where.get("times", 1)) for f in listed)
        where = {**dict(first.where), "times": times} if times > 1 else dict(first.where)
        out.append(Finding(first.kind, first.severity, first.message, first.fix, where))
    return sorted(out, key=lambda f: order.index(f.severity))


def _worst(shares: list[_Share]) -> tuple[list[Verdict], npt.NDArray[np.float64] | None]:
    """Return of each experiment the worst verdict of any rank, and the influence matrix of the rank whose isolation it is."""
    names = list(dict.fromkeys(verdict.experiment for share in shares for verdict in share.verdicts))
    chosen, matrix = [], shares[0].influence
    for name in names:
        found = [(v, rank) for rank, share in enumerate(shares) for v in share.verdicts if v.experiment == name]
        verdict, rank = min(found, key=lambda pair: _WORST.index(pair[0].status))
        if name == "isolation":
            matrix = shares[rank].influence
        if len(shares) > 1:
            ranks = sum(v.status == verdict.status for v, _ in found)
            verdict = replace(verdict, summary=f"{verdict.summary} ({ranks} of {len(shares)} ranks)")
        chosen.append(verdict)
    return chosen, matrix
