"""Running a model's own forward for a while with other attention, other mixers, and in the recomputations that follow from it.

Nothing of this outlives the call: what is changed on the model is put back when the forward returns. A recomputation in the
backward (gradient checkpointing, of either kind, on whatever thread) runs a closure that puts the same changes on again, with
the boundaries of its own call, and off when it ends. No state is shared between calls, and calls of one model from several
threads take turns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cloison.exact.kernels import SDPA
from cloison.exact.sdpa_calls import answered
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["Changes", "accepted", "balances", "call", "forget", "lock_of", "logits_of", "replaced", "standing_in"]

_CHECKPOINT = "_gradient_checkpointing_func"  # where transformers keeps a layer's checkpointing function (4.56 to 5.24)
_IMPLEMENTATION = "_attn_implementation_internal"  # what config._attn_implementation reads


@dataclass(frozen=True)
class Changes:
    """What one call changes on the model.

    Attributes:
        attention: the name of a registered attention, or None for the model's own.
        segments: the boundaries within which torch's own attention function is answered, or None.
        forwards: module to the forward that stands in for its own.
        kernel: what answers torch's attention function.
    """

    attention: str | None = None
    segments: Segments | None = None
    forwards: Mapping[torch.nn.Module, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    kernel: str = SDPA

    @contextmanager
    def on(self, model: torch.nn.Module) -> Iterator[None]:
        """Hold the changes while the context lasts."""
        with ExitStack() as stack:
            if self.attention is not None:
                for config in _configs(model):
                    stack.enter_context(replaced(config, _IMPLEMENTATION, self.attention))
            for module, forward in self.forwards.items():
                stack.enter_context(replaced(module, "forward", forward))
            if self.segments is not None:
                stack.enter_context(answered(self.segments, self.kernel))
            yield

    @contextmanager
    def on_with_recomputation(self, model: torch.nn.Module) -> Iterator[None]:
        """Hold the changes while the context lasts, and in every recomputation of a layer that begins in it."""

        def again(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
            def with_changes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                def changed(*inner: Any, **named: Any) -> Any:
                    with lock_of(model), self.on(model):
                        return function(*inner, **named)

                return checkpoint(changed, *args, **kwargs)

            return with_changes

        if self.attention is None and self.segments is None and not self.forwards:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(self.on(model))
            for module in model.modules():
                checkpoint = getattr(module, _CHECKPOINT, None)
                if checkpoint is not None:
                    stack.enter_context(replaced(module, _CHECKPOINT, again(checkpoint)))
            yield


_LOCKS: WeakKeyDictionary[Any, RLock] = WeakKeyDictionary()
_FOR_LOCKS = Lock()


def lock_of(model: torch.nn.Module) -> RLock:
    """Return the lock that is held while ``model`` is changed: threads that share it take turns."""
    with _FOR_LOCKS:
        return _LOCKS.setdefault(model, RLock())


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of the instance itself, and put back what was there, or that nothing was."""
    own = vars(owner)
    had, old = name in own, own.get(name)
    own[name] = value
    try:
        yield
    finally:
        if had:
            own[name] = old
        else:
            own.pop(name, None)


@contextmanager
def standing_in(model: torch.nn.Module, run: Callable[..., Any]) -> Iterator[None]:
    """Let calls of ``model`` go to ``run``, inside of which its forward is its own again."""
    own = vars(model)
    had, old = "forward" in own, own.get("forward")

    def forward(**batch: Any) -> Any:
        own.pop("forward")
        if had:
            own["forward"] = old
        try:
            return run(**batch)
        finally:
            own["forward"] = forward

    with replaced(model, "forward", forward):
        yield


def _configs(model: torch.nn.Module) -> list[Any]:
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, _IMPLEMENTATION):
            found[id(config)] = config
    return list(found.values())


def accepted(model: torch.nn.Module, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``keywords`` that the model's forward names or, with ``**kwargs``, takes."""
    inner: torch.nn.Module = getattr(model, "_orig_mod", model)  # a compiled module names no arguments of its own
    parameters = inspect.signature(inner.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(keywords)
    return {name: value for name, value in keywords.items() if name in parameters}


def call(model: torch.nn.Module, input_ids: torch.Tensor, **keywords: Any) -> Any:
    """Return the model's outputs, without a cache, and without a loss of balance, which a 4-D mask crashes."""
    named = accepted(model, {"use_cache": False})
    if balances(model):
        named["output_router_logits"] = False
    return model(input_ids=input_ids, **{**named, **keywords})


def balances(model: torch.nn.Module) -> bool:
    """Whether the configuration asks for the router's logits, and so for the loss of balance."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return bool(getattr(text, "output_router_logits", False))


def logits_of(outputs: Any) -> torch.Tensor:
    """Return the logits of what a model returned: a field, a key, the first of a tuple, or the tensor itself."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs
    if getattr(outputs, "logits", None) is not None:
        found: torch.Tensor = outputs.logits
        return found
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]  # type: ignore[no-any-return]
    return outputs[0]  # type: ignore[no-any-return]


def forget(model: torch.nn.Module) -> None:
    """Put rotary tables that grew with an earlier, longer input back to what they were at first (dynamic scaling keeps them).

    transformers 5.24, ``modeling_rope_utils.dynamic_rope_update``: ``max_seq_len_cached`` grows, and shrinks again only when an
    input is shorter than the original limit.
    """
    for module in model.modules():
        own = vars(module)
        cached, first = own.get("max_seq_len_cached"), own.get("original_max_seq_len")
        if cached != first and hasattr(module, "original_inv_freq"):
            own["max_seq_len_cached"] = first
            module.inv_freq = module.original_inv_freq
