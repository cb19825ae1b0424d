"""adapt: try the ways from cheap to costly on awkward blocks, and keep the first that is exact."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.errors import InputError, NotExactError, require
from cloison.exact.adapter import Adapter
from cloison.exact.calling import accepted
from cloison.exact.certificate import Certificate, compiled, set_up
from cloison.exact.choices import remember, remembered
from cloison.exact.faster import faster
from cloison.exact.headless import Head, heads_of, misses
from cloison.exact.kernels import BY_DEVICE, KERNELS
from cloison.exact.labels import asked_by_labels
from cloison.exact.ladder import climb, named
from cloison.exact.mixers import fitting
from cloison.exact.pooled import pooled
from cloison.exact.probe import Reference
from cloison.exact.proving import Proof, holds_on, prove, said
from cloison.exact.recomputation import holds_recomputed
from cloison.exact.splitting import Split
from cloison.exact.trial import Trial, in_eval, trial_of
from cloison.exact.ways import RUNGS, Way

if TYPE_CHECKING:
    import torch

__all__ = ["adapt"]

ORDER = "adbcefg"
"""The rungs from cheap to costly: our own attention is linear in the tokens of a row, where b and c make dense masks."""


def adapt(
    model: torch.nn.Module,
    blocks: Sequence[Block] | None = None,
    *,
    rungs: str = ORDER,
    bidirectional: bool = False,
    seed: int = 0,
    mixers: Sequence[str] | None = None,
    kernels: Sequence[str] | None = None,
    keep_logits: bool = True,
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
        model: a transformers causal model, a base model (hidden states), a classifier of tokens or of samples (a reward model),
            or any module that takes ``input_ids`` [B, T] and returns [B, T, features]. Of one output a sample the adapter makes
            [segments, features].
        blocks: what to try it on; None: synthetic blocks. With blocks given there is no twin.
        rungs: the letters to try, in order.
        bidirectional: whether the model may look ahead inside a sample; else one that does is refused.
        seed: of the synthetic blocks.
        mixers: names of the modules that rung e wraps, as ``model.named_modules()`` gives them, with ``*`` for any part
            (``["blocks.*.attn"]``): those that mix tokens, attention of one's own above all. None: found by experiment.
        kernels: what may compute our own attention in place of torch's SDPA per segment, in the order to try, of "flash"
            (package flash_attn), "varlen_attn" (torch's) and "flex"; None: all three on CUDA, none elsewhere; (): none. The
            first that is exact for this model is kept.
        keep_logits: False: where a batch has labels the output has its loss and no logits. The head runs on the rows of
            targets, a piece at a time, and [B, T, vocabulary] is never made; one more forward of the head is the price. Tried
            like all else, and refused where the loss or its gradients differ.
        cache: a folder for certificates by key, of choices among all rungs; one found there is tried first, and proven again.
        show: write the certificate's line to standard error.

    Raises:
        NotExactError: no way is exact, with the table of what was tried and what each missed by; or the model looks ahead.
        InputError: no module, unknown rungs or kernels, or outputs that are not finite.

    Cost: some dozens of forwards and a few backwards of a small model on about 70 tokens; 0.3 to 2 s.

    >>> from cloison.proof.tiny import tiny_model
    >>> adapter = adapt(tiny_model("gpt_oss")[0], show=False)
    >>> adapter.way.rung
    'd'
    """
    require("torch", "hf")
    import torch

    _check(model, rungs, mixers, kernels)
    ambient = _ambient(model)
    with torch.inference_mode(False), torch.autocast(ambient.device, enabled=False):
        found = _chosen(model, blocks, rungs, bidirectional, seed, mixers, kernels, cache, ambient)
        if not keep_logits:
            found = replace(found, head=_headless(model, found.way))
    assert found.certificate is not None
    if rungs == ORDER and mixers is None:  # a choice among fewer is none for the next call
        remember(found.certificate.key, cache, found.certificate)
    if show:
        sys.stderr.write(f"cloison: {found.certificate.line()}\n")
    return found


def _ambient(model: torch.nn.Module) -> torch.autocast:
    """Return the caller's autocast: ways are told apart without it, since its rounding hides more than theirs."""
    import torch

    device = next(model.parameters()).device.type
    enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, torch.get_autocast_dtype(device) if enabled else None, enabled=enabled)


def _chosen(
    model: torch.nn.Module,
    blocks: Sequence[Block] | None,
    rungs: str,
    bidirectional: bool,
    seed: int,
    mixers: Sequence[str] | None,
    kernels: Sequence[str] | None,
    cache: str | Path | None,
    ambient: torch.autocast,
) -> Adapter:
    """Return the adapter of the first way that is exact, or raise."""
    trial = trial_of(model, blocks, seed)
    key = Certificate(set_up(model), "", "", {}, {}, {}, (), "", ()).key
    with in_eval(trial.model):
        ahead = trial.against.look_ahead(trial.model)
        trial = replace(trial, asks=asked_by_labels(trial.model, trial.sample, ahead > 0, trial.ids))
    if ahead and not bidirectional and not trial.against.of_samples:  # an output of a whole sample sees all of it
        raise NotExactError(
            f"adapt makes causal models exact on packed blocks, and {type(model).__name__} is none.",
            f"Alone, tokens of a sample move by {ahead:.2g} standard deviations when later ones change: "
            "they see their targets.",
            "Pass bidirectional=True if that is meant.",
        )
    if trial.against.of_samples and not trial.bases:
        raise NotExactError(
            f"adapt makes {type(model).__name__} give one output for each packed sample.",
            "It gives one for each row, and no base whose hidden states it makes them of was found.",
            "Pass the module that gives hidden states [B, T, features], and pool them by seq_lengths.",
        )
    if compiled(model):
        rungs = "".join(rung for rung in rungs if rung in "bc")
    tried: list[dict[str, Any]] = []
    known = remembered(key, cache) if rungs == ORDER and mixers is None else None
    for way in _candidates(trial, rungs, known, mixers):
        missed = prove(trial, way, seed)
        if isinstance(missed, Proof):
            own = way if trial.model is model else named(model, trial.sample, trial.against.floor, way.choice)
            found = (
                _adapter(model, own, trial, missed, tried, kernels, ambient) if own is not None else "the model has no such way"
            )
            if isinstance(found, Adapter):
                return found
            missed = {"way": way.name, "error": f"{trial.stand_in}, and not exact on the model itself: {found}"}
        tried.append(missed)
    raise NotExactError(
        f"adapt looked for a way to run {type(model).__name__} on packed blocks exactly.",
        "None is exact:\n" + "\n".join(_line(entry) for entry in tried) + "\n",
        "Train it unpacked" + ("." if "g" in rungs else ", or allow more rungs (g runs one segment at a time)."),
    )


def _headless(model: torch.nn.Module, way: Way) -> Head:
    wrong = ["it has no head that transformers names"]
    for head in heads_of(model):
        with in_eval(model):
            wrong = [misses(model, way, head), *wrong]
        if not wrong[0]:
            return head
    raise NotExactError(
        f"keep_logits=False computes the loss of {type(model).__name__} without its logits.",
        f"That is not its loss: {wrong[0]}.",
        "Pass keep_logits=True.",
    )


def _check(model: Any, rungs: str, mixers: Sequence[str] | None, kernels: Sequence[str] | None) -> None:
    import torch

    others = [kernel for kernel in kernels or () if kernel not in KERNELS]
    if others or isinstance(kernels, str):
        raise InputError(f"kernels are among {', '.join(KERNELS)}.", f"{kernels!r} has others.", 'Pass for example ["flex"].')

    unknown = sorted(set(rungs) - set(RUNGS))
    if unknown or not rungs:
        raise InputError(f"rungs are among {', '.join(RUNGS)}.", f"{rungs!r} has others or none.", 'Pass for example "adbc".')
    if not isinstance(model, torch.nn.Module):
        raise InputError("adapt takes a torch module.", f"It got a {type(model).__name__}.", "Pass the model itself.")
    if next((p for p in model.parameters() if p.is_floating_point()), None) is None:
        raise InputError("adapt takes a model with weights.", f"{type(model).__name__} has none.", "Pass the model itself.")
    where = next((p.device.type for p in model.parameters() if p.device.type == "meta"), "")
    if where or any(p.is_inference() for p in model.parameters()):
        raise InputError(
            "adapt runs the model, forward and backward.",
            f"Weights are on {where}: they have no values." if where else "Weights were made under torch.inference_mode().",
            "Load or make the model first, outside of it.",
        )
    if not accepted(model, {"input_ids": None}):
        takes = ", ".join(inspect.signature(getattr(model, "_orig_mod", model).forward).parameters)
        raise InputError(
            "adapt calls model(input_ids=...).",
            f"The forward of {type(model).__name__} takes {takes or 'nothing'}.",
            "Wrap it in a module whose forward takes input_ids [B, T] and returns logits [B, T, vocabulary].",
        )
    if mixers is not None and (isinstance(mixers, str) or not fitting(model, mixers)):
        raise InputError(
            "mixers are names of modules.",
            f"No module of {type(model).__name__} fits {mixers!r}.",
            'Take them from model.named_modules(), as a list: ["blocks.*.attn"].',
        )


def _candidates(trial: Trial, rungs: str, known: dict[str, Any] | None, mixers: Sequence[str] | None) -> Iterator[Way]:
    """Yield the remembered way (its kernel is tried anew), then those of the rungs."""
    if known is not None:
        with in_eval(trial.model):
            way = named(trial.model, trial.sample, trial.against.floor, known)
        if way is not None and way.rung in rungs:
            yield way
    if not trial.against.of_samples:
        yield from _climbed(trial, rungs, mixers, trial.against)
    for base in trial.bases:
        yield from (pooled(way, base.split, base.style) for way in _climbed(trial, rungs, mixers, base.against, base.split))


def _climbed(
    trial: Trial, rungs: str, mixers: Sequence[str] | None, against: Reference, split: Split | None = None
) -> Iterator[Way]:
    """Yield the ways of the rungs; with ``split`` those of the model's base."""
    ways = climb(trial.model, trial.sample, rungs, against, mixers)
    while True:
        base: Any = nullcontext() if split is None else split.base_alone()
        with in_eval(trial.model), base:
            way = next(ways, None)
        if way is None:
            return
        yield way


def _adapter(
    model: torch.nn.Module,
    way: Way,
    trial: Trial,
    proof: Proof,
    tried: list[dict[str, Any]],
    kernels: Sequence[str] | None,
    ambient: torch.autocast,
) -> Adapter | str:
    """Return the adapter with its certificate, or what the way misses by on the model itself where a stand-in chose it."""
    untested = list(proof.report.certificate.get("not_tested", ()))
    verdicts = said(proof.report)
    if trial.model is not model:
        report, wrong = holds_on(model, way, trial.asks)
        if wrong:
            return wrong
        verdicts |= said(report, " on the model itself")
        untested.append("on the model itself: samples of more than 29 tokens, gradients (tested where the way was chosen)")
    device = next(model.parameters()).device.type
    with ambient:  # in training the kernels get what it casts to
        way, quick, missed = faster(model, way, trial, BY_DEVICE.get(device, ()) if kernels is None else kernels)
    if ambient._enabled:
        untested.append(f"under autocast to {str(ambient.fast_dtype).removeprefix('torch.')}: the way was chosen without it")
    recomputed = holds_recomputed(trial, way)
    if recomputed:
        verdicts["recomputation"] = "recomputation: gradients are the same with checkpointing and without"
    if quick is not None:
        verdicts |= said(quick, f" with the kernel {way.kernel}")
    certificate = Certificate(
        set_up(model),
        way.rung,
        way.name,
        dict(way.choice),
        {"leak": proof.measured.leak, "equality": proof.measured.equality, "floor": trial.against.floor},
        verdicts,
        (*tried, *missed),
        trial.stand_in,
        tuple(untested),
    )
    return Adapter(model, way, certificate, asks=trial.asks)


def _line(entry: dict[str, Any]) -> str:
    missed = entry["error"] or f"leak {entry['leak']:.2g}, equality {entry['equality']:.2g} (standard deviations)"
    return f"  {entry['way']}: {missed}"
