"""Answering torch's ``scaled_dot_product_attention`` segment by segment, for models that call it themselves.

Outside transformers a model has no interface for attention; where it calls torch's function on whole packed rows, a function
mode stands in between. It works eagerly only: a compiled graph does not ask the mode (measured: silently wrong), so `adapt`
never offers it to a compiled model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from cloison.exact.attention import segment_attention
from cloison.exact.boundaries import boundaries
from cloison.exact.kernels import SDPA
from cloison.segments import Segments

__all__ = ["answered"]


def answered(segments: Segments, kernel: str = SDPA) -> AbstractContextManager[Any]:
    """Return a context in which ``kernel`` answers every causal call over the rows of ``segments``, inside its segments.

    Calls of other lengths, and calls with a mask, pass as they are: the experiment on the whole model judges them.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    function = torch.nn.functional.scaled_dot_product_attention
    carried = boundaries(segments)
    shape = (segments.num_rows, segments.width)

    class Answering(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is function:
                named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
                query, key = named["query"], named["key"]
                fits = query.dim() == 4 and (query.shape[0], query.shape[2]) == shape and key.shape[2] == shape[1]
                if fits and named.get("attn_mask") is None:
                    with torch._C.DisableTorchFunction():
                        out, _ = segment_attention(
                            None, query, key, named["value"], carried, named.get("dropout_p", 0.0), named.get("scale"),
                            is_causal=bool(named.get("is_causal", False)), kernel=kernel,
                        )  # fmt: skip
                    return out.transpose(1, 2)
            return func(*args, **kwargs)

    return Answering()
