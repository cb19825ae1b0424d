"""Boundaries to the form that one consumer reads. One consumer a file; every form is tested against `Segments.dense_mask`.

==========  ==============================================================================================
`hf`        Hugging Face models: flat and padded batches, 4-D masks, M-RoPE positions
`flash`     FlashAttention varlen calls and torch ``varlen_attn``
`flex`      the FlexAttention ``BlockMask``, built from the boundaries directly
`xformers`  block-diagonal attention biases
`nested`    jagged nested tensors
`thd`       Transformer Engine and Megatron packed sequences, context parallelism
`linear`    recurrent and linear-attention kernels: ``seq_idx`` and ``cu_seqlens``
`jax`       segment ids, masks and grain's names (numpy arrays)
==========  ==============================================================================================

The modules are loaded when first named, and torch with the first function that makes a tensor.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloison.forms import flash as flash
    from cloison.forms import flex as flex
    from cloison.forms import hf as hf
    from cloison.forms import jax as jax
    from cloison.forms import linear as linear
    from cloison.forms import nested as nested
    from cloison.forms import thd as thd
    from cloison.forms import xformers as xformers

__all__ = ["flash", "flex", "hf", "jax", "linear", "nested", "thd", "xformers"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module 'cloison.forms' has no attribute {name!r}")
    return import_module(f"cloison.forms.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
