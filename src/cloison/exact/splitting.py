"""A model in two: its base, which gives hidden states, and what its own forward makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from cloison.exact.calling import replaced

if TYPE_CHECKING:
    import torch

__all__ = ["Split", "splits_of"]


@dataclass(frozen=True)
class Split:
    """Where a model's base ends.

    Attributes:
        whole: the module whose forward calls the base, and then makes its own outputs of the hidden states.
        base: the module that gives the hidden states.
    """

    whole: torch.nn.Module
    base: torch.nn.Module

    @contextmanager
    def base_alone(self) -> Iterator[list[type]]:
        """Hold the whole to return hidden states where its logits would be; yields the classes of the base's outputs."""
        from transformers.modeling_outputs import CausalLMOutput

        kinds: list[type] = []
        base = self.base

        @wraps(base.forward)  # what it accepts
        def forward(*args: Any, **kwargs: Any) -> Any:
            outputs = base(*args, **kwargs)
            kinds.append(type(outputs))
            return CausalLMOutput(logits=outputs.last_hidden_state, hidden_states=getattr(outputs, "hidden_states", None))

        with replaced(self.whole, "forward", forward):
            yield kinds

    @contextmanager
    def held(self, hidden: torch.Tensor, kind: type) -> Iterator[None]:
        """Hold the base to ``hidden`` [rows, tokens, width]: the whole makes its outputs of them. ``kind``: see `base_alone`.

        Where the base pools too (``pooler_output``), its own pooler does so.
        """
        made: Any = kind
        pooler: Any = getattr(self.base, "pooler", None)
        fields: dict[str, Any] = {"last_hidden_state": hidden}
        if pooler is not None and "pooler_output" in getattr(kind, "__dataclass_fields__", {}):
            fields["pooler_output"] = pooler(hidden)
        with replaced(self.base, "forward", lambda *_, **__: made(**fields)):
            yield


def splits_of(model: torch.nn.Module) -> list[Split]:
    """Return where the base of a transformers model may end, none where it names none: experiments say which it is.

    A few families call the decoder inside their base, and not the base (BART and its kin, transformers 5.24).
    """
    import torch
    from transformers import PreTrainedModel

    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        base = getattr(module, module.base_model_prefix, None)
        if base is not module and isinstance(base, torch.nn.Module):
            bases = [inner for inner in (base, getattr(base, "decoder", None)) if isinstance(inner, torch.nn.Module)]
            return [Split(module, inner) for inner in bases]
    return []
