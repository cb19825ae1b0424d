"""watch: for loops of one's own. The step inside the block runs as it is; what went through the model is examined after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError, require
from cloison.proof.fit import NOTHING, Fit, from_real_hidden, from_real_logits, shape_from_hidden, shape_from_logits
from cloison.proof.loss_shapes import LossShape, classified
from cloison.proof.pieces import pieces
from cloison.proof.report import VerifyReport
from cloison.proof.step import Known, StepAudit, recorded
from cloison.proof.substitution import Site, sites
from cloison.proof.targets import Reading, calibrated, rows_of
from cloison.proof.truth import SampleIndex
from cloison.proof.weights import Claim

__all__ = ["Watch", "watch"]

SURE = 0.9999
"""A probability above which what is left of a gradient is mostly rounding."""


def watch(
    model: Any,
    *,
    seq_lengths: Sequence[Any] | Callable[[Mapping[str, Any]], Sequence[Any]] | None = None,
    samples: Iterable[Any] | None = None,
    ends: Collection[int] = (),
    weights: Claim | None = "token_mean",
    seed: int = 0,
) -> Watch:
    """Return a `Watch`: a context for a micro-batch (or several) of a hand-written loop, forward and backward.

    The step runs unchanged. Its targets are read from the gradient that its own ``backward`` sends to the logits (or to the
    last hidden state, where the loss is fused), and isolation is measured after it, by forwards without gradients: nothing
    that training sees is different. Enter the same `Watch` for every micro-batch of a step, or once around all of them, and the
    weights are those of the step.

    Args:
        model: the module that is called inside, wrapped or not.
        seq_lengths: the true lengths, rows of them, or a function from the call's arguments to them.
        samples: the samples before packing, to be found in the rows (with labels where they are known).
        ends: ids that end a text.
        weights: what the weights of the step ought to be; None for no claim.

    >>> import torch
    >>> from cloison.proof.tiny import tiny_model
    >>> model, config = tiny_model("llama")
    >>> ids = torch.tensor([[11, 12, 13, 21, 22]])
    >>> with watch(model, seq_lengths=[[3, 2]]) as w:
    ...     loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    ...     loss.backward()
    >>> sorted(finding.kind for finding in w.report.findings if finding.severity == "error")
    ['boundary_target', 'leak']
    """
    require("torch", "hf")
    return Watch(model, seq_lengths, samples, ends, weights, seed)


class Watch:
    """See `watch`. `report` holds what all blocks so far showed."""

    def __init__(
        self,
        model: Any,
        seq_lengths: Sequence[Any] | Callable[[Mapping[str, Any]], Sequence[Any]] | None,
        samples: Iterable[Any] | None,
        ends: Collection[int],
        weights: Claim | None,
        seed: int,
    ) -> None:
        self._model, self._site = model, sites(model)
        index = None if samples is None else SampleIndex(samples)
        known = Known(samples=lambda: index, ends=tuple(ends), seq_lengths=_stated(seq_lengths))
        self._audit = StepAudit(known, weights, seed)
        self._inside: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._modes: list[tuple[Any, bool]] = []
        self._stand_ins: list[tuple[Any, Any]] = []
        self._seen: list[_Seen] = []
        self._report: VerifyReport | None = None

    @property
    def report(self) -> VerifyReport:
        """What the blocks showed. On several ranks all of them must ask."""
        if self._inside:
            raise InputError("the report is there after the block.", "The block is not through.", "Read it outside the with.")
        if self._report is None:
            self._report = self._audit.report()
        return self._report

    def __enter__(self) -> Watch:
        self._calls, self._modes, self._stand_ins, self._seen, self._report = [], [], [], [], None
        context = recorded(self._model, self._calls, self._modes, self._stand_ins)
        context.__enter__()
        self._inside = [context, *_listening(self._site, self._seen)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        context, *hooks = self._inside
        self._inside = []
        context.__exit__(None, None, None)
        for hook in hooks:
            hook.remove()
        if error is None:
            for calls, seen in _micro_batches(self._calls, self._seen):
                reading = partial(self._reading, calls, seen)
                self._audit.watched(self._model, calls, self._modes, self._stand_ins, reading)
        self._seen = []

    def _reading(self, calls: list[dict[str, Any]], every: list[_Seen]) -> Reading:
        """Return what the loss of the block trained, from the gradients that came by."""
        reached = [seen for place in _PLACES for seen in every if seen.place == place and seen.grads]
        if not reached:
            raise InputError(
                "a watched block runs backward.",
                "No gradient reached the logits or the last hidden state.",
                "Call loss.backward() inside the with block.",
            )
        ids = next((call["input_ids"] for call in calls if call.get("input_ids") is not None), None)
        # Where other rows ran inside, what was returned has the index of the call.
        seen = next((one for one in reached if ids is not None and one.value.shape[:2] == ids.shape), reached[0])
        grad = sum(seen.grads[1:], seen.grads[0])
        flat, values = grad.reshape(-1, grad.shape[-1]), seen.value.reshape(-1, grad.shape[-1])
        if seen.place != "hidden":
            scale = _scale(every, seen)
            if scale != 1.0:
                flat, values = flat / scale, values * scale
            surest = np.concatenate([_surest(part) for part in pieces(values, values.shape[-1])]) > SURE
            fit = _told(from_real_logits(flat, values), surest)
            shape = _shape_of(fit, lambda rows: shape_from_logits(flat, values, fit.tokens, rows), grad)
        else:
            head = self._site.head
            weight: Any = None if head is None else head.weight
            if weight is None:
                raise InputError("a fused loss is read through the head's weight.", "The model names no head.", "Name it.")
            weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            factor, bias = calibrated(self._model, self._site, calls[-1], weight.detach())
            fit = from_real_hidden(flat, values, weight.detach(), bias, factor)
            shape = _shape_of(
                fit, lambda rows: shape_from_hidden(flat, values, weight.detach(), bias, factor, fit.tokens, rows), grad
            )
        found = _as_reading(fit, grad, calls, f"real {seen.place}", shape)
        if seen.place == "hidden":
            return found
        return replace(found, unseen=rows_of(surest, grad, found.tokens.shape, False))


_PLACES = ("logits", "output", "hidden")


def _micro_batches(calls: list[dict[str, Any]], seen: list[_Seen]) -> list[tuple[list[dict[str, Any]], list[_Seen]]]:
    """Return the calls of a block, each with what it showed, where several were trained on: accumulation inside one block.

    One part with everything where calls and what was seen cannot be paired, or where one call at most was trained on.
    """
    by_place = {place: [one for one in seen if one.place == place] for place in _PLACES}
    asked = [call for call in calls if call.get("input_ids") is not None]
    if len(asked) != len(calls) or any(len(found) not in (0, len(calls)) for found in by_place.values()):
        return [(calls, seen)]
    parts = [[found[index] for found in by_place.values() if found] for index in range(len(calls))]
    trained = [index for index, part in enumerate(parts) if any(one.grads for one in part)]
    return [([calls[index]], parts[index]) for index in trained] or [(calls, seen)]


def _surest(logits: Any) -> npt.NDArray[np.float64]:
    return np.asarray(logits.double().softmax(1).amax(1).cpu().numpy())


def _told(fit: Fit, surest: npt.NDArray[np.bool_]) -> Fit:
    """Return ``fit`` without the rows of which a gradient tells nothing."""
    fit.tokens[surest], fit.weights[surest], fit.runners_up[surest] = NOTHING, 0.0, 0.0
    return fit


class _Seen:
    """A tensor that went by, and the gradients that came back to it."""

    def __init__(self, place: str, value: Any) -> None:
        self.place, self.value, self.grads = place, value.detach(), list[Any]()
        if value.requires_grad:
            value.register_hook(lambda grad: self.grads.append(grad.detach().clone()))


def _listening(site: Site, seen: list[_Seen]) -> list[Any]:
    """Return hooks that note the hidden states, the head's output and the returned logits of every call."""
    import torch

    def note(place: str, name: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            found = output if isinstance(output, torch.Tensor) else getattr(output, name, None)
            if found is None and isinstance(output, (tuple, list)) and output:
                found = output[0]
            if isinstance(found, torch.Tensor) and found.dim() == 3 and found.is_floating_point():
                seen.append(_Seen(place, found))

        return hook

    hooks = []
    if site.base is not None:
        hooks.append(site.base.register_forward_hook(note("hidden", "last_hidden_state")))
    if site.head is not None:
        hooks.append(site.head.register_forward_hook(note("logits", "")))
    hooks.append(site.top.register_forward_hook(note("output", "logits")))
    return hooks


def _scale(every: list[_Seen], seen: _Seen) -> float:
    """Return what the model multiplies its head's output with, where its output shows the product."""
    if seen.place != "logits":
        return 1.0
    for other in every:
        if other.place == "output" and other.value.shape == seen.value.shape:
            row, final = seen.value[0, 0].double(), other.value[0, 0].double()
            factor = float((row @ final) / (row @ row))
            return factor if np.isfinite(factor) and factor else 1.0
    return 1.0


def _shape_of(fit: Fit, fitted: Callable[[Any], Any], grad: Any) -> LossShape:
    import torch

    trained = np.flatnonzero((fit.tokens != NOTHING) & np.isfinite(fit.weights))
    if not trained.size:
        return LossShape("nothing")
    rows = trained[np.unique(np.linspace(0, trained.size - 1, 128).astype(np.int64))]
    if float(np.median(fit.runners_up[rows])) > 0.2:
        return LossShape("soft targets")
    found = fitted(rows)
    # One step shows one gradient, so that weights of a function of confidence look like weights.
    return classified(found, -found.target, float(torch.finfo(grad.dtype).eps))


def _as_reading(fit: Fit, grad: Any, calls: list[dict[str, Any]], place: str, shape: LossShape) -> Reading:
    import torch

    ids = next((call["input_ids"] for call in calls if call.get("input_ids") is not None), None)
    if ids is None:
        raise InputError("a watched call passes input_ids.", "No call passed any.", "Pass ids, not embeddings.")
    tokens = (int(ids.shape[0]) if ids.dim() > 1 else 1, int(ids.shape[-1]))
    return Reading(
        rows_of(fit.tokens, grad, tokens, NOTHING),
        rows_of(fit.weights, grad, tokens, 0.0) / (1 - shape.smoothing),
        rows_of(fit.runners_up, grad, tokens, 0.0),
        rows_of(fit.ties, grad, tokens, 0),
        place,
        shape,
        # The model's own confidence stands between the gradient and the weight.
        max(8 * float(torch.finfo(grad.dtype).eps), 8e-5),
        calls=tuple(calls),
    )


def _stated(seq_lengths: Any) -> Callable[[Mapping[str, Any]], Sequence[Any] | None]:
    if seq_lengths is None or callable(seq_lengths):
        return seq_lengths or (lambda _: None)
    return lambda _: seq_lengths
