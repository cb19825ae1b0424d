"""Substitution: while a real training step runs, the logits (or the last hidden state) are tensors of our own making.

The loss cannot tell. What it does to them, its gradient says. Three places are held at once, and the one whose gradient comes
back is read: the output of the head, the output of the base model (for fused and chunked losses, which never call the head),
and the output of the whole model (for models that name neither).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Held", "Site", "core", "sites", "substituted"]


DRAWN = 2**24
"""Normal numbers that a leaf is drawn from at most: the rows of a larger one come again (110 rows of 152,000 ids differ)."""


@dataclass(frozen=True)
class Site:
    """Where a model's logits come from.

    Attributes:
        top: the model without its wrappers (DDP, FSDP, compile, PEFT).
        base: the module whose output is the last hidden state, or None.
        head: the module that makes logits of it, or None.
    """

    top: nn.Module
    base: nn.Module | None
    head: nn.Module | None


@dataclass
class Held:
    """What was put in place of the model's own tensors during one step, and what was seen on the way.

    Attributes:
        logits: leaves [rows, tokens, vocabulary] that stood for the head's output, a call each.
        hidden: leaves [rows, tokens, width] that stood for the base model's output.
        outputs: leaves that stood for the logits in the model's output, where neither of the others fired.
        final: the logits that the model returned while a leaf stood in (scaled and capped as the model does), or None.
        calls: the keyword arguments of each call of the model.
    """

    logits: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    final: list[Tensor] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, int] | None:
        """(rows, tokens) of the last call with ids, or None."""
        for call in reversed(self.calls):
            ids = call.get("input_ids")
            if ids is not None:
                return (int(ids.shape[0]) if ids.dim() > 1 else 1, int(ids.shape[-1]))
        return None


def core(model: Any) -> nn.Module:
    """Return the model inside its wrappers: ``.module`` (DDP, FSDP, DataParallel), ``._orig_mod`` (compile), PEFT."""
    import torch

    while True:
        inner = next((getattr(model, name, None) for name in ("module", "_orig_mod") if _is_module(model, name)), None)
        if inner is None and hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
            inner = model.get_base_model()
        if inner is None or inner is model:
            break
        model = inner
    if not isinstance(model, torch.nn.Module):
        raise InputError("this needs a torch module.", f"It got a {type(model).__name__}.", "Pass the model.")
    return model


def sites(model: Any) -> Site:
    """Return the `Site` of ``model``, found by the names that Hugging Face models give their parts."""
    import torch

    top = core(model)
    # A wrapper of the user's own says nothing of the model inside it.
    named = top if hasattr(top, "get_output_embeddings") else _only_named(top)
    base = getattr(named, "base_model", None)
    base = base if isinstance(base, torch.nn.Module) and base is not named else None
    head = None
    get: Any = getattr(named, "get_output_embeddings", None)
    if get is not None:
        try:
            head = get()
        except (NotImplementedError, AttributeError):
            head = None
    return Site(top, base, head if isinstance(head, torch.nn.Module) else _head_by_name(named))


def _head_by_name(model: nn.Module) -> nn.Module | None:
    """Return the head of a model of one's own by the names that heads have; as many rows as the embeddings have, or more."""
    import torch

    from cloison.proof.gradients import embedding_of

    try:
        ids = getattr(embedding_of(model), "num_embeddings", None)
    except InputError:
        return None
    for name in ("lm_head", "output", "head", "unembed", "embed_out", "output_layer", "to_logits"):
        found = getattr(model, name, None)
        if isinstance(found, torch.nn.Linear) and isinstance(ids, int) and found.out_features >= ids:
            return found
    return None


def _only_named(top: nn.Module) -> nn.Module:
    """Return the one outermost module inside ``top`` that names its head, or ``top`` where there is none, or several."""
    found: list[tuple[str, nn.Module]] = []
    for name, inner in top.named_modules():
        outer = any(name.startswith(f"{other}.") for other, _ in found)
        if not outer and hasattr(inner, "get_output_embeddings"):
            found.append((name, inner))
    return found[0][1] if len(found) == 1 else top


@contextmanager
def substituted(site: Site, seed: int | None = None, spread: float = 1.0, graph: bool = False) -> Iterator[Held]:
    """Hold a leaf in each place of ``site`` for the steps that run inside.

    A head that sees other rows than the call's ids have (a loss that selects rows first) is left alone, and the hidden states
    before it are read instead.

    Args:
        seed: None for zeros; else normal numbers of this seed and standard deviation ``spread``, not equal in a row.
        graph: build the model's own graph too (for losses beside the logits). Without it the graph begins at the leaves, so
            that a step costs a forward and no memory for activations.
    """
    import torch

    held = Held()
    waiting: list[Tensor | None] = []
    """What enters the head, where it runs on one token: a leaf needs the shape and dtype of the logits alone."""

    def leaf(like: Tensor) -> Tensor:
        if seed is None:
            made = torch.zeros_like(like, requires_grad=False, memory_format=torch.contiguous_format)
        else:
            generator = torch.Generator(device=like.device).manual_seed(seed)
            rows = like.shape[:-1].numel()
            differ = min(rows, max(1, DRAWN // like.shape[-1]))
            drawn = torch.randn(differ, like.shape[-1], generator=generator, device=like.device, dtype=torch.float32)
            made = (drawn * spread).to(like.dtype)
            made = made.repeat(-(-rows // differ), 1)[:rows] if differ < rows else made
            made = made.reshape(like.shape)
        torch.set_grad_enabled(True)  # the step runs without a graph up to here
        return made.requires_grad_(True)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(kwargs)
        if args and "input_ids" not in named:
            named["input_ids"] = args[0]
        held.calls.append(named)

    def hidden(_: nn.Module, __: Any, output: Any) -> Any:
        state = _first(output, "last_hidden_state")
        if state is None or state.dim() != 3:
            return None
        held.hidden.append(leaf(state))
        return _with(output, "last_hidden_state", held.hidden[-1])

    def first(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = args[0] if args else None
        cut = isinstance(state, torch.Tensor) and state.dim() == 3 and _same_rows(state, held.tokens) and not kwargs
        waiting.append(state if cut else None)
        return ((state[:, :1], *args[1:]), kwargs) if cut and state is not None else None

    def logits(inner: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        state = waiting.pop()
        if state is not None and _is_of(output, state[:, :1]):
            output = output.expand(-1, state.shape[1], -1)
        elif state is not None:
            output = inner.forward(state, *args[1:])
        if not isinstance(output, torch.Tensor) or output.dim() != 3 or not _same_rows(output, held.tokens):
            return output
        held.logits.append(leaf(output))
        return held.logits[-1]

    def whole(_: nn.Module, __: Any, output: Any) -> Any:
        found = _first(output, "logits")
        if found is None or found.dim() != 3:
            return None
        if held.logits or held.hidden:
            held.final.append(found)
            return None
        held.outputs.append(leaf(found))
        return _with(output, "logits", held.outputs[-1])

    hooks = [site.top.register_forward_pre_hook(before, with_kwargs=True, prepend=True)]
    hooks.append(site.top.register_forward_hook(whole))
    if site.base is not None:
        hooks.append(site.base.register_forward_hook(hidden))
    if site.head is not None:
        hooks.append(site.head.register_forward_pre_hook(first, with_kwargs=True))
        hooks.append(site.head.register_forward_hook(logits))
    try:
        with torch.set_grad_enabled(graph):
            yield held
    finally:
        for hook in hooks:
            hook.remove()


def _is_of(output: Any, state: Tensor) -> bool:
    """Whether ``output`` is a tensor of logits [rows, tokens, vocabulary] of ``state``."""
    import torch

    return isinstance(output, torch.Tensor) and output.dim() == 3 and output.shape[:2] == state.shape[:2]


def _same_rows(output: Tensor, tokens: tuple[int, int] | None) -> bool:
    return tokens is None or (output.shape[0] == tokens[0] and output.shape[1] >= tokens[1])


def _is_module(model: Any, name: str) -> bool:
    import torch

    return isinstance(getattr(model, name, None), torch.nn.Module)


def _first(output: Any, name: str) -> Any:
    """Return the float tensor that ``output`` calls ``name``, or itself, or its first entry; None where there is none."""
    import torch

    if isinstance(output, torch.Tensor):
        value: Any = output
    elif isinstance(output, Mapping) or hasattr(output, name):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    elif isinstance(output, (tuple, list)) and output:
        value = next((entry for entry in output if isinstance(entry, torch.Tensor) and entry.dim() == 3), None)
    else:
        value = None
    return value if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def _with(output: Any, name: str, value: Tensor) -> Any:
    """Return ``output`` with ``value`` in the place where `_first` found ``name``."""
    import torch

    if isinstance(output, torch.Tensor):
        return value
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        at = next(i for i, entry in enumerate(output) if isinstance(entry, torch.Tensor) and entry.dim() == 3)
        return (*output[:at], value, *output[at + 1 :])
    changed = copy.copy(output)
    if isinstance(changed, Mapping):
        changed[name] = value  # type: ignore[index]
    else:
        setattr(changed, name, value)
    return changed
