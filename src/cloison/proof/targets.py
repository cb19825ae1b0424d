"""What a loss trains, read from the loss itself: position, target token and weight, by substitution. No trust in label code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.proof.fit import NOTHING, Fit, from_hidden, from_logits, shape_from_hidden, shape_from_logits
from cloison.proof.loss_shapes import SOFT, LossShape, classified, precision_of
from cloison.proof.substitution import Held, Site, core, sites, substituted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["INSIDE", "NO_HEAD", "OTHER_ROWS", "UNNAMED", "Reading", "calibrated", "read_step", "read_targets", "rows_of"]

Step = Callable[[], Any]
"""Runs one training step up to the loss that would go to ``backward``, and returns it; no backward, no optimizer."""

_SHAPE_ROWS = 128
"""Trained rows that the second probe looks at to name the loss."""

UNNAMED = "not probed"
"""The name of the shape of a loss that was read without the probes that name it."""

OTHER_ROWS = "targets are read where the rows of the call run."
NO_HEAD = "a loss that never shows logits is read through the head's weight."
"""What is asked where a loss cannot be read: a classifier, a reward model, or a head that the model does not name."""

UNREACHED = "the loss must depend on the model's output."
NOT_THERE = "the loss must come from the logits or the last hidden state."
INSIDE = "targets are read from the logits."
"""What is asked where a model computes its loss inside, from logits that none of its modules is known to give."""

NAME_HEAD = "Define get_output_embeddings on the model, so that its head is known, or pass loss=, from its output."

_SPREAD = 1.5
"""The standard deviation of the logits of the second probe."""

NO_LOSS_KEYS = ("labels", "shift_labels", "num_items_in_batch", "fused_lm_head", "logits_to_keep", "num_logits_to_keep")
"""Arguments of a call that ask for a loss, or for fewer logits."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What the loss of one micro-batch trains. Row b, position i predicts ``tokens[b, i]``, wherever that token came from.

    Attributes:
        tokens: int64 [B, T], the target token that position i is pulled to, -1 where it trains nothing.
        weights: float64 [B, T], its weight in the loss as it goes to ``backward`` (a mean over n targets gives 1 / n each),
            smoothing and logit scale taken out.
        runners_up: float64 [B, T], the share of the gradient that a single target does not explain.
        ties: int64 [B, T], further tokens that cannot be told from the target (identical rows of the head).
        place: "logits", "hidden" or "output": what was substituted.
        shape: what kind of loss it is.
        precision: how far weights may be off, relatively: the machine epsilon of what was read, or the rounding that shows.
        loss: its value at logits (or hidden states) that are all zero.
        auxiliary: float64 [B, T], the gradient (a norm a position) of losses that do not go through the logits, or None where
            there is none.
        calls: the keyword arguments of the model's calls during the step.
        encoder_decoder: whether the model is one.
        unseen: bool [B, T], where the model was so sure of a token that a real gradient says nothing of the target; None after
            substitution, which has no such blind spot.
    """

    tokens: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    runners_up: npt.NDArray[np.float64]
    ties: npt.NDArray[np.int64]
    place: str
    shape: LossShape
    precision: float
    loss: float = 0.0
    auxiliary: npt.NDArray[np.float64] | None = None
    calls: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    unseen: npt.NDArray[np.bool_] | None = None
    encoder_decoder: bool = False

    @property
    def beside_input(self) -> bool:
        """Whether the logits are those of a decoder with rows of its own, so that targets have another index than the ids."""
        return any(call.get("decoder_input_ids") is not None for call in self.calls) or self.encoder_decoder

    @property
    def num_targets(self) -> int:
        """Positions that train something."""
        return int((self.tokens != NOTHING).sum())


def read_targets(
    model: Any,
    batch: Mapping[str, Any],
    loss: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    *,
    seed: int = 0,
) -> Reading:
    """Return what the real loss trains of ``batch``.

    Args:
        model: a torch module (wrapped or not), called with the batch as keywords.
        loss: from (output of the model, batch) to the loss; left out, the model's own (``.loss`` of its output).

    Raises:
        InputError: no loss comes, or one that no logits and no hidden state have a part in.

    The weights, gradients and random states of the model are left as they were. Cost: three forwards.

    >>> from cloison.proof.tiny import tiny_model
    >>> import torch
    >>> model, config = tiny_model("llama")
    >>> ids = torch.tensor([[11, 12, 13, 21, 22]])
    >>> read_targets(model, {"input_ids": ids, "labels": torch.tensor([[-100, 12, 13, -100, 22]])}).tokens.tolist()
    [[12, 13, -1, 22, -1]]
    """
    from cloison.proof.keep import kept

    if batch.get("input_ids") is None:
        raise InputError("targets are read from a batch with input_ids.", f"It has {', '.join(batch)}.", "Add them.")

    def step() -> Any:
        if loss is None:
            output = model(**batch)
            found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        else:
            passed = {key: value for key, value in batch.items() if key not in NO_LOSS_KEYS}
            found = loss(model(**passed), batch)
        return found

    with kept(core(model), as_it_is=True):
        return read_step(step, model, seed=seed)


def read_step(step: Step, model: Any, *, seed: int = 0, shape: bool = True) -> Reading:
    """Return what ``step`` trains; ``model`` is what it calls, wrapped or not.

    ``shape=False`` saves the probes that name the loss. The number of forwards does not depend on the data.

    Raises:
        InputError: no loss, a loss that neither logits nor hidden states have a part in, or calls without ids.
    """
    site = sites(model)
    try:
        with substituted(site) as held:
            loss = _scalar(step())
            place, leaf, grad = _reached(loss, held)
    except InputError as error:
        nameless = site.base is None and site.head is None
        if nameless and error.asked in (UNREACHED, NOT_THERE) and _has_gradient(step):
            raise InputError(INSIDE, "No module of the model is known to give them.", NAME_HEAD) from error
        raise
    tokens = held.tokens
    if tokens is None:
        raise InputError("a step to audit calls the model with input_ids.", "No call passed any.", "Pass ids, not embeddings.")
    shapes = {tuple(call["input_ids"].shape) for call in held.calls if call.get("input_ids") is not None}
    if len(shapes) > 1:
        raise InputError(OTHER_ROWS, "Inside the call others run, whose logits have another index.", "Use cloison.verify.")
    fit, head = _fitted(model, site, held, place, leaf, grad)
    reading = Reading(
        rows_of(fit.tokens, grad, tokens, NOTHING),
        rows_of(fit.weights, grad, tokens, 0.0),
        rows_of(fit.runners_up, grad, tokens, 0.0),
        rows_of(fit.ties, grad, tokens, 0),
        place,
        LossShape(UNNAMED),
        precision_of(fit, place, leaf.dtype),
        float(loss.detach()),
        calls=tuple(held.calls),
        encoder_decoder=bool(getattr(getattr(site.top, "config", None), "is_encoder_decoder", False)),
    )
    if not shape:
        return reading
    named = _named(step, site, seed, place, fit, head, reading.precision)
    auxiliary = _auxiliary(step, site, tokens, held)
    if auxiliary is not None:
        named = replace(named, terms=("an auxiliary loss beside the logits (routers)",))
    return replace(reading, shape=named, weights=reading.weights / (1 - named.smoothing), auxiliary=auxiliary)


def _has_gradient(step: Step) -> bool:
    """Whether the real step gives a loss with a gradient: then it is what was substituted that the loss passes by."""
    import torch

    with torch.enable_grad():
        loss = step()
    return isinstance(loss, torch.Tensor) and loss.requires_grad


def _scalar(loss: Any) -> Tensor:
    import torch

    if not isinstance(loss, torch.Tensor):
        raise InputError(
            "the training step must give a loss.",
            f"It gave {type(loss).__name__}.",
            "Pass labels in the batch, or loss=, a function of (output, batch).",
        )
    if not loss.requires_grad:
        raise InputError(
            UNREACHED,
            "It carries no gradient (detached, computed without one, or a constant).",
            "Compute the loss from the logits with gradients on.",
        )
    return loss if loss.dim() == 0 else loss.sum()


def _reached(loss: Tensor, held: Held) -> tuple[str, Tensor, Tensor]:
    """Return the place, the leaf and the gradient of the substituted tensor that the loss depends on."""
    import torch

    for place, leaves in (("logits", held.logits), ("output", held.outputs), ("hidden", held.hidden)):
        if not leaves:
            continue
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
        reached = [index for index, grad in enumerate(grads) if grad is not None]
        if reached:
            first = reached[0]
            # A step may ask the same rows more than once (R-Drop): what it trains of them is the sum.
            alike = [index for index in reached if index == first or _same_call(held, leaves, first, index)]
            return place, leaves[first], sum((grads[index] for index in alike[1:]), grads[first]).detach()
    raise InputError(
        NOT_THERE,
        "Substituting both, the loss did not depend on either.",
        "Pass a model whose base_model, output embeddings or output are where the loss reads from.",
    )


def _same_call(held: Held, leaves: Sequence[Tensor], first: int, other: int) -> bool:
    import torch

    if len(leaves) != len(held.calls) or leaves[first].shape != leaves[other].shape:
        return False
    ids, others = (held.calls[index].get("input_ids") for index in (first, other))
    return ids is not None and others is not None and torch.equal(ids, others)


@dataclass(frozen=True)
class _Head:
    """From what was substituted to the logits of the loss: ``scale * (h @ weight.T) + bias``, or ``scale * logits``."""

    scale: float
    weight: Tensor | None = None
    bias: Tensor | None = None


def _fitted(model: Any, site: Site, held: Held, place: str, leaf: Tensor, grad: Tensor) -> tuple[Fit, _Head]:
    """Return the fit of the first probe, in the units of the loss's logits, and what lies between."""
    flat = grad.reshape(-1, grad.shape[-1])
    if place != "hidden":
        scale = _scale_of_logits(held, leaf)
        return from_logits(flat if scale == 1.0 else flat / scale), _Head(scale)
    weight = _head_weight(site)
    scale, bias = calibrated(model, site, held.calls[-1], weight)
    return from_hidden(flat / scale, weight, bias), _Head(scale, weight, bias)


def _scale_of_logits(held: Held, leaf: Tensor) -> float:
    """Return what the model multiplies its head's output with, where its output shows the product."""
    import torch

    for final in held.final:
        if final.shape == leaf.shape and final.requires_grad and final is not leaf:
            slope = torch.autograd.grad(final[0, 0].sum(), leaf, allow_unused=True, retain_graph=True)[0]
            if slope is not None:
                found = float(slope[0, 0].double().mean())
                return found if np.isfinite(found) and found else 1.0
    return 1.0


def _head_weight(site: Site) -> Tensor:
    weight = getattr(site.head, "weight", None)
    if weight is None:
        raise InputError(
            NO_HEAD,
            "The model names no head with a weight (get_output_embeddings).",
            "Define get_output_embeddings, or compute the logits.",
        )
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    if whole.dim() != 2:
        raise InputError(
            "the head's weight must be whole on this rank.",
            f"It is a shard of shape {list(whole.shape)}.",
            "Shard with FSDP2 (DTensor), or audit before sharding.",
        )
    return whole.detach()


def calibrated(model: Any, site: Site, call: Mapping[str, Any], weight: Tensor) -> tuple[float, Tensor | None]:
    """Return (scale, bias) from head output to the logits of the loss, from one plain forward at hidden states of zero."""
    import torch

    plain = {key: value for key, value in call.items() if key not in NO_LOSS_KEYS}
    bias = getattr(site.head, "bias", None)
    try:
        with substituted(replace(site, head=None)) as again:
            model(**plain)
            final, leaf = again.final[-1], again.hidden[-1]
            slope = torch.autograd.grad(final[0, 0].sum(), leaf)[0][0, 0].double()
    except Exception:
        return 1.0, None if bias is None else bias.detach()
    total = weight.sum(0).double()
    scale = float((slope @ total) / (total @ total))
    return (scale if np.isfinite(scale) and scale else 1.0), None if bias is None else final.detach()[0, 0]


def _named(
    step: Step,
    site: Site,
    seed: int,
    place: str,
    fit: Fit,
    head: _Head,
    precision: float,
) -> LossShape:
    """Return the kind of loss, from a second probe at logits that differ."""
    import torch

    spread = _SPREAD / abs(head.scale)
    if head.weight is not None:
        spread /= float(head.weight.float().norm(dim=1).mean().clamp_min(1e-9))
    with substituted(site, seed=seed + 1, spread=spread) as held:
        loss = _scalar(step())
        at, leaf, grad = _reached(loss, held)
        trained = np.flatnonzero((fit.tokens != NOTHING) & np.isfinite(fit.weights))
        if not trained.size:
            return LossShape("nothing")
        rows = trained[np.unique(np.linspace(0, trained.size - 1, _SHAPE_ROWS).astype(np.int64))]
        if float(np.median(fit.runners_up[rows])) > 0.2:
            return LossShape(SOFT)
        if at != place:
            return LossShape("other")
        flat = grad.reshape(-1, grad.shape[-1])
        values = leaf.detach().reshape(-1, leaf.shape[-1])
        if place == "hidden":
            assert head.weight is not None
            found = shape_from_hidden(flat, values, head.weight, head.bias, head.scale, fit.tokens, rows)
        else:
            final = next((f for f in held.final if f.shape == leaf.shape and f.requires_grad and f is not leaf), None)
            slope = None if final is None else torch.autograd.grad(final.sum(), leaf, allow_unused=True)[0]
            if final is not None and slope is not None:
                chosen = torch.from_numpy(rows).to(flat.device)
                slopes = slope.reshape(-1, grad.shape[-1])[chosen]
                inner = flat[chosen] / torch.where(slopes == 0, 1.0, slopes)
                outer = final.detach().reshape(-1, leaf.shape[-1])[chosen]
                found = shape_from_logits(inner, outer, fit.tokens[rows], np.arange(rows.size))
            else:
                found = shape_from_logits(flat, values, fit.tokens, rows)
    return classified(found, fit.weights[rows], precision)


def _auxiliary(step: Step, site: Site, tokens: tuple[int, int], held: Held) -> npt.NDArray[np.float64] | None:
    """Return how strongly each position is trained by losses beside the logits, where the model has routers.

    With leaves in place of hidden states and logits, what the loss still asks of the input embeddings goes another way.
    """
    import torch

    config: Any = getattr(site.top, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    asked = any(call.get("output_router_logits") for call in held.calls) or getattr(text, "output_router_logits", False)
    get: Any = getattr(site.top, "get_input_embeddings", None)
    embedding = get() if asked and get is not None else None
    if embedding is None:
        return None
    seen: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> Any:
        if not isinstance(output, torch.Tensor):
            return None
        if not output.requires_grad:
            output = output.detach().requires_grad_(True)
        seen.append(output)
        return output

    hook = embedding.register_forward_hook(keep)
    try:
        with substituted(site, graph=True):
            loss = _scalar(step())
            grad = torch.autograd.grad(loss, seen[:1], allow_unused=True)[0] if seen else None
    finally:
        hook.remove()
    if grad is None or grad.dim() != 3:
        return None
    return rows_of(grad.double().norm(dim=2).reshape(-1).cpu().numpy(), grad, tokens, 0.0)


def rows_of(flat: npt.NDArray[Any], grad: Tensor, tokens: tuple[int, int], fill: float) -> npt.NDArray[Any]:
    """Return ``flat`` as [B, T]: virtual tokens before the batch's own are cut, positions that never reached are filled."""
    found = flat.reshape(grad.shape[0], grad.shape[1])
    rows, width = tokens
    out = np.full((rows, width), fill, flat.dtype)
    if found.shape[1] >= width:
        out[:] = found[:, found.shape[1] - width :]
    else:
        out[:, : found.shape[1]] = found
    return out
