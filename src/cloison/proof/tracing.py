"""Where a leak enters: the first module, in execution order, that takes the same for a bystander and gives something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Nature", "Place", "Trace", "compare", "is_linear", "trace"]

Nature = Literal[
    "attention", "convolution", "recurrence", "selection", "embedding", "statistics over the row", "batch statistics",
    "experts", "rounding", "unknown",
]  # fmt: skip

_WORDS: tuple[tuple[Nature, tuple[str, ...]], ...] = (
    ("convolution", ("conv", "shift")),
    ("selection", ("indexer", "topk", "selector", "router", "lsh")),
    (
        "recurrence",
        ("mamba", "ssm", "rwkv", "recurren", "rglru", "rg_lru", "delta", "linearattention", "linear_attn", "lightning", "gru",
         "lstm", "rnn", "retention", "mixer", "kda", "mlstm", "slstm", "xlstm", "cumsum", "scan"),
    ),
    ("attention", ("attention", "attn")),
    ("embedding", ("embed", "ngram")),
    ("experts", ("expert", "moe", "sparsemlp")),
)  # fmt: skip
"""What a module mixes tokens by, read from its class and its name; the first that fits."""


@dataclass(frozen=True)
class Place:
    """Where the bystander changed first.

    Attributes:
        module: its name inside the model, "" for the model itself (between its modules).
        kind: its class.
        nature: what mixes tokens there.
        reach_tokens: how many of the bystander's tokens had changed there.
        of_tokens: how many tokens the bystanders have.
    """

    module: str
    kind: str
    nature: Nature
    reach_tokens: int
    of_tokens: int

    def __str__(self) -> str:
        named = f"`{self.module}`" if self.module else "the model itself, between its modules"
        return f"{named} ({self.kind}, {self.nature})"


@dataclass(frozen=True, eq=False)
class Trace:
    """What went through every module, in order of completion, as one checksum a token.

    Attributes:
        calls: (name, checksums of the inputs, checksums of the outputs) of every call; checksums int64 [positions] each.
    """

    calls: list[tuple[str, list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]]


def trace(module: nn.Module, call: Callable[[], Any], shape: tuple[int, int]) -> tuple[Trace, Any]:
    """Return the Trace of one ``call`` of ``module`` on ids of ``shape`` (rows, width), and what it returned.

    Memory: 8 bytes a position and module, not the activations.
    """
    calls: list[tuple[str, list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]] = []
    entered: dict[int, list[list[npt.NDArray[np.int64]]]] = {}

    def before(inner: nn.Module, args: Any, kwargs: Any) -> None:
        entered.setdefault(id(inner), []).append(_checksums((args, kwargs), shape))

    def after(name: str) -> Callable[..., None]:
        def hook(inner: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            stack = entered.get(id(inner))
            calls.append((name, stack.pop() if stack else [], _checksums(output, shape)))

        return hook

    handles: list[Any] = []
    try:
        for name, inner in module.named_modules():
            handles.append(inner.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(inner.register_forward_hook(after(name), with_kwargs=True))
        output = call()
    finally:
        for handle in handles:
            handle.remove()
    return Trace(calls), output


def compare(module: nn.Module, base: Trace, other: Trace, bystanders: npt.NDArray[np.int64]) -> Place | None:
    """Return the Place where positions ``bystanders`` first differ between two traces, or None where they never do.

    It is the innermost module that completed first with equal inputs and unequal outputs at these positions.
    """
    modules = dict(module.named_modules())
    for (name, came, gave), (other_name, other_came, other_gave) in zip(base.calls, other.calls, strict=False):
        if name != other_name:
            break
        if _differ(came, other_came, bystanders).any():
            continue
        changed = _differ(gave, other_gave, bystanders)
        if changed.any():
            inner = modules[name]
            reach = int(changed.sum())
            return Place(name, type(inner).__name__, _nature(name, inner, reach, module), reach, bystanders.size)
    return None


def is_linear(module: nn.Module) -> bool:
    """Whether ``module`` multiplies each token by a matrix and nothing else, whatever it does to numbers on the way."""
    import torch

    return isinstance(module, torch.nn.Linear) or (type(module).__name__ in ("Conv1D",)) or "Linear" in type(module).__name__


def _nature(name: str, module: nn.Module, reach: int, root: nn.Module) -> Nature:
    import torch

    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return "batch statistics" if module.training else "unknown"
    leaf = name.rsplit(".", 1)[-1].lower()
    kind = type(module).__name__.lower()
    if is_linear(module) and all("pack" in f"{name}{type(part).__name__}".lower() for name, part in module.named_children()):
        return "rounding"
    if "norm" in kind and "att" not in kind:
        return "statistics over the row"
    for nature, words in _WORDS:
        if any(word in kind or word in leaf for word in words):
            return nature
    return "unknown"


def _differ(
    first: Iterable[npt.NDArray[np.int64]], second: Iterable[npt.NDArray[np.int64]], at: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    out = np.zeros(at.size, bool)
    for a, b in zip(first, second, strict=False):
        out |= a[at] != b[at]
    return out


def _checksums(values: Any, shape: tuple[int, int]) -> list[npt.NDArray[np.int64]]:
    out = []
    for tensor in _tensors(values):
        rows = _rows(tensor, shape)
        if rows is not None:
            out.append(_bits(rows))
    return out


def _tensors(values: Any) -> Iterable[Tensor]:
    import torch

    if isinstance(values, torch.Tensor):
        if values.is_floating_point() and values.dim() >= 2:
            yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)


def _rows(tensor: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Return ``tensor`` as [positions, rest], or None where it has no axis of tokens (or two, as masks do)."""
    rows, width = shape
    sizes = tensor.shape
    if sizes[0] == rows * width and width != rows:
        return tensor.reshape(rows * width, -1)
    if sizes[0] != rows:
        if rows == 1 and sizes[0] == width:
            return tensor.reshape(width, -1)
        if tensor.dim() >= 3 and sizes[0] == width and sizes[1] == rows:
            return tensor.transpose(0, 1).reshape(rows * width, -1)
        return None
    axes = [axis for axis in range(1, tensor.dim()) if sizes[axis] == width]
    if len(axes) >= 2 and tensor.dim() >= 4:
        return None
    if axes:
        return tensor.movedim(axes[0], 1).reshape(rows * width, -1)
    if tensor.dim() == 3 and width < sizes[-1] <= width + 16:  # a padded convolution, before its tail is cut
        return tensor[..., :width].movedim(-1, 1).reshape(rows * width, -1)
    return None


def _bits(rows: Tensor) -> npt.NDArray[np.int64]:
    """Return one integer a row, made of its bits: equal rows give equal integers, and one changed bit another one."""
    import torch

    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    bits = rows.detach().contiguous().view(same_size).to(torch.int64)
    weights = 2 * torch.arange(bits.shape[1], device=bits.device) + 1
    out: npt.NDArray[np.int64] = (bits * weights).sum(1).cpu().numpy()
    return out
