"""Rung a: the lengths go to kernels that take them: flash attention, and the recurrent and convolutional ones of mixers;
and models of one's own that take offsets by the names of the field.

Which keywords a model's kernels heed is found by giving them boundaries inside one lone sample: what is dropped in silence
changes nothing, and where a kernel is missing transformers raises (5.24, ``hub_kernels.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cloison.exact import own_attention
from cloison.exact.batches import PackedBatch
from cloison.exact.facts import LENGTHS, Facts, own_arguments
from cloison.exact.signals import Signal, nothing
from cloison.forms.hf import kernel_arguments

if TYPE_CHECKING:
    import torch

__all__ = ["signals"]

_NO_LENGTHS = ("", "eager", "sdpa", "flex_attention")
"""Attentions that take no lengths; any other may: flash attention under its names, and what users register."""


_KEYWORDS = {"seq_idx": "seq_idx", LENGTHS: "cu_seq_lens"}


def signals(facts: Facts) -> list[Signal]:
    """Return the signals with what the kernels of attention and mixers take: none where no kernel heeds anything."""
    if facts.attention not in _NO_LENGTHS:
        both = [("flash", "seq_idx")] if any("seq_idx" in kernels for kernels in facts.heeded) else []
        return [
            Signal(
                "a", " and ".join((facts.attention, *kernels[1:])), partial(_keywords, kernels=kernels), positions, dense=False
            )
            for kernels in [("flash",), *both]
            for positions in facts.positions
        ]
    found = [
        Signal("a", " and ".join(facts.named), _own_keywords, positions, dense=False, one_row=True)
        for positions in (facts.positions if facts.named else ())
    ]
    for kernels in facts.heeded if not facts.named else ():
        one_row = any(LENGTHS in kernel for kernel in kernels)  # flash-linear-attention takes one row
        told = "told by " + " and ".join(_KEYWORDS[kernel] for kernel in kernels)
        for base in own_attention.signals(facts) if facts.attention else ():
            detail = "; ".join(part for part in (told, "own attention", base.detail) if part)
            keywords = partial(_keywords, kernels=kernels, base=base.keywords)
            found.append(Signal("a", detail, keywords, base.positions, base.attention, dense=False, one_row=one_row))
        found += [
            Signal("a", told, partial(_keywords, kernels=kernels), positions, dense=False, one_row=one_row)
            for positions in facts.positions
        ]
    return found


def _own_keywords(model: torch.nn.Module, batch: PackedBatch) -> dict[str, Any]:
    return _moved(own_arguments(model, batch.segments), batch)


def _moved(arguments: dict[str, Any], batch: PackedBatch) -> dict[str, Any]:
    import torch

    device = batch.input_ids.device
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def _keywords(
    model: torch.nn.Module,
    batch: PackedBatch,
    *,
    kernels: Sequence[str],
    base: Callable[[torch.nn.Module, PackedBatch], dict[str, Any]] = nothing,
) -> dict[str, Any]:
    return _moved(kernel_arguments(batch.segments, kernels), batch) | base(model, batch)
