"""adapt: try the ways from cheap to costly on awkward blocks, and keep the first that is exact."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError, NotExactError, require
from cloison.exact.adapter import Adapter
from cloison.exact.below_limit import short_blocks
from cloison.exact.certificate import Certificate, compiled, set_up
from cloison.exact.ladder import climb, named
from cloison.exact.probe import Measured, Reference, measure, reference
from cloison.exact.twin import SHORT_TOKENS, stand_in
from cloison.exact.ways import RUNGS, Way
from cloison.proof.blocks import synthetic, vocabulary
from cloison.proof.report import Verdict, VerifyReport
from cloison.proof.verify import verify

if TYPE_CHECKING:
    import torch

__all__ = ["adapt"]

ORDER = "adbcefg"
"""The rungs from cheap to costly: our own attention is linear in the tokens of a row, where b and c make dense masks."""

_CHOICES: dict[str, dict[str, Any]] = {}
"""Key of a certificate to the choice that was proven: it is tried first the next time, and proven again."""


def adapt(
    model: torch.nn.Module,
    blocks: Sequence[Block] | None = None,
    *,
    rungs: str = ORDER,
    bidirectional: bool = False,
    seed: int = 0,
    cache: str | Path | None = None,
    show: bool = True,
) -> Adapter:
    """Return an Adapter that runs packed blocks on ``model`` so that each sample gets what it would get alone.

    The ways are tried from cheap to costly on blocks of awkward lengths: (a) lengths to a varlen kernel, (d) our own attention,
    (b) ``position_ids``, (c) masks of our own, (e) the mixers that cannot see boundaries wrapped, (f) the batch unpacked to
    right-padded rows, (g) one segment at a time. The first that passes a trial against the samples alone, within a floor that
    is measured on the same model, and then `cloison.verify`, is kept and shown on standard error. Names of models decide
    nothing.

    Call it when the model is as it will be trained: after PEFT, after ``gradient_checkpointing_enable``, in its dtype and mode,
    on its device, before it is wrapped for many devices. A model of more than 20 million parameters, or with windows longer
    than the trial's samples, is tried as a *twin* (one layer of each kind, see `exact.twin`), and the way that the twin chose
    is then tried on the model itself with short blocks.

    Args:
        model: a transformers causal model, or any module that takes ``input_ids`` [B, T] and returns logits.
        blocks: what to try it on; None: synthetic blocks. With blocks given there is no twin.
        rungs: the letters to try, in order.
        bidirectional: whether the model may look ahead inside a sample; else one that does is refused.
        seed: of the synthetic blocks.
        cache: a folder for certificates by key; a choice found there is tried first, and proven again.
        show: write the certificate's line to standard error.

    Raises:
        NotExactError: no way is exact, with the table of what was tried and what each missed by; or the model looks ahead.
        InputError: no module, unknown rungs, or outputs that are not finite.

    Cost: some dozens of forwards and a few backwards of a small model on about 70 tokens; 0.3 to 2 s.

    >>> from cloison.proof.tiny import tiny_model
    >>> adapter = adapt(tiny_model("gpt_oss")[0], show=False)
    >>> adapter.way.rung
    'd'
    """
    require("torch", "hf")
    _check(model, rungs)
    trial = _trial(model, blocks, seed)
    key = Certificate(set_up(model), "", "", {}, {}, {}, (), "", ()).key
    ahead = trial.against.look_ahead(trial.model)
    if ahead and not bidirectional:
        raise NotExactError(
            f"adapt makes causal models exact on packed blocks, and {type(model).__name__} is none.",
            f"Alone, the first half of a sample moves by {ahead:.2g} standard deviations when its second half changes: "
            "it is told its own targets.",
            "Pass bidirectional=True if that is meant.",
        )
    if compiled(model):
        rungs = "".join(rung for rung in rungs if rung in "bc")
    tried: list[dict[str, Any]] = []
    remembered = _remembered(key, cache)
    for way in _candidates(trial, rungs, remembered):
        missed = _try(trial, way, seed)
        if isinstance(missed, _Proof):
            own = way if trial.model is model else named(model, trial.sample, trial.against.floor, way.choice)
            found = _adapter(model, own, trial, missed, tried) if own is not None else "the model has no such way"
            if isinstance(found, Adapter):
                _remember(key, cache, found)
                if show:
                    sys.stderr.write(f"cloison: {found.certificate.line()}\n" if found.certificate else "")
                return found
            missed = {"way": way.name, "error": f"{trial.twin}, and not exact on the model itself: {found}"}
        tried.append(missed)
    raise NotExactError(
        f"adapt looked for a way to run {type(model).__name__} on packed blocks exactly.",
        "None is exact:\n" + "\n".join(_line(entry) for entry in tried) + "\n",
        "Train it unpacked" + ("." if "g" in rungs else ", or allow more rungs (g runs one segment at a time)."),
    )


# ---------------------------------------------------------------------- the trial


@dataclass(frozen=True)
class _Trial:
    """What ways are tried on: the model or its twin, and its samples alone."""

    model: torch.nn.Module
    twin: str
    blocks: Sequence[Block]
    sample: torch.Tensor
    against: Reference
    synthetic: bool


@dataclass(frozen=True)
class _Proof:
    measured: Measured
    report: VerifyReport


def _check(model: Any, rungs: str) -> None:
    import torch

    unknown = sorted(set(rungs) - set(RUNGS))
    if unknown or not rungs:
        raise InputError(f"rungs are among {', '.join(RUNGS)}.", f"{rungs!r} has others or none.", 'Pass for example "adbc".')
    if not isinstance(model, torch.nn.Module):
        raise InputError("adapt takes a torch module.", f"It got a {type(model).__name__}.", "Pass the model itself.")


def _trial(model: torch.nn.Module, blocks: Sequence[Block] | None, seed: int) -> _Trial:
    import torch

    tried, twin = stand_in(model, seed, cut=blocks is None)
    config = getattr(tried, "config", None)
    given = list(synthetic(config, seed=seed) if blocks is None else blocks)
    longest = max((sample.input_ids for block in given for sample in block.samples()), key=len)
    device = next(tried.parameters()).device
    sample = torch.from_numpy(longest.astype(np.int64))[None].to(device)
    with _eval(tried):
        return _Trial(tried, twin, given, sample, reference(tried, given, vocabulary(config), seed), blocks is None)


def _candidates(trial: _Trial, rungs: str, remembered: dict[str, Any] | None) -> Iterator[Way]:
    """Yield the remembered way, then those of the rungs."""
    if remembered is not None:
        with _eval(trial.model):
            way = named(trial.model, trial.sample, trial.against.floor, remembered)
        if way is not None and way.rung in rungs:
            yield way
    ways = climb(trial.model, trial.sample, rungs, trial.against)
    while True:
        with _eval(trial.model):
            way = next(ways, None)
        if way is None:
            return
        yield way


def _try(trial: _Trial, way: Way, seed: int) -> _Proof | dict[str, Any]:
    """Return the proof that ``way`` is exact, or what it missed by."""
    with _eval(trial.model):
        found = measure(trial.model, way, trial.against)
    missed = {"way": way.name, "leak": found.leak, "equality": found.equality, "error": found.error}
    if max(found.leak, found.equality) > trial.against.floor:
        return missed
    adapter = Adapter(trial.model, way)
    report = verify(adapter, trial.blocks, seed=seed, bidirectional=True, fix=False)
    wrong = _wrong(report, way)
    if wrong and _within_reach(report, wrong):
        other = synthetic(getattr(trial.model, "config", None), seed=seed + 1) if trial.synthetic else trial.blocks
        report = verify(adapter, other, seed=seed + 1, bidirectional=True, fix=False)
        wrong = _wrong(report, way)
    if not wrong and "below" in way.choice:  # the other half of this way: batches in which no sample passes the limit
        few = short_blocks(trial.blocks, SHORT_TOKENS)
        wrong = _wrong(verify(adapter, few, seed=seed, bidirectional=True, fix=False), way)
    if wrong:
        return missed | {"error": "; ".join(f"{verdict.experiment}: {verdict.summary}" for verdict in wrong)}
    return _Proof(found, report)


def _wrong(report: VerifyReport, way: Way) -> list[Verdict]:
    """Return the verdicts that speak against ``way``.

    Looking ahead was tested on the samples alone. The gradients to the input embeddings count where they could be taken: where
    a way unpacks to rows, embeddings have another index than the batch, and the parameters' gradients (in equality) stand for
    them.
    """
    decide = {"isolation": _WRONG, "equality": _WRONG, "gradients": () if way.rung in "fg" else ("leak",)}
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


def _adapter(model: torch.nn.Module, way: Way, trial: _Trial, proof: _Proof, tried: list[dict[str, Any]]) -> Adapter | str:
    """Return the adapter with its certificate, or what the way misses by on the model itself where a stand-in chose it."""
    untested, own = list(proof.report.certificate.get("not_tested", ())), None
    if trial.model is not model:
        short = synthetic(None, vocab_size=int(vocabulary(getattr(model, "config", None)).max()) + 1)
        own = verify(Adapter(model, way), short, bidirectional=True, fix=False, gradients=False)
        wrong = _wrong(own, way)
        if wrong:
            return "; ".join(f"{verdict.experiment}: {verdict.summary}" for verdict in wrong)
        untested.append("on the model itself: samples of more than 29 tokens, gradients (tested where the way was chosen)")
    certificate = Certificate(
        set_up(model),
        way.rung,
        way.name,
        dict(way.choice),
        {"leak": proof.measured.leak, "equality": proof.measured.equality, "floor": trial.against.floor},
        _said(proof.report) | _said(own, " on the model itself"),
        tuple(tried),
        trial.twin,
        tuple(untested),
    )
    return Adapter(model, way, certificate)


def _said(report: VerifyReport | None, where: str = "") -> dict[str, str]:
    verdicts = () if report is None else report.verdicts
    return {f"{verdict.experiment}{where}": f"{verdict.experiment}: {verdict.summary}" for verdict in verdicts}


class _eval:
    """Hold a model in eval mode, and put every module's own mode back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        for module, mode in self.modes:
            module.training = mode


# ---------------------------------------------------------------------- choices remembered


def _remembered(key: str, cache: str | Path | None) -> dict[str, Any] | None:
    if key in _CHOICES:
        return _CHOICES[key]
    if cache is None:
        return None
    try:
        found = json.loads((Path(cache) / f"{key}.json").read_text(encoding="utf-8"))["choice"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _remember(key: str, cache: str | Path | None, adapter: Adapter) -> None:
    assert adapter.certificate is not None
    _CHOICES[key] = dict(adapter.way.choice)
    if cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
        (Path(cache) / f"{key}.json").write_text(adapter.certificate.to_json(), encoding="utf-8")


def _line(entry: dict[str, Any]) -> str:
    missed = entry["error"] or f"leak {entry['leak']:.2g}, equality {entry['equality']:.2g} (standard deviations)"
    return f"  {entry['way']}: {missed}"
