"""Faster: other kernels for our own attention, tried after the way is known, and kept where they are exact.

A kernel is held against torch's SDPA per segment at the attention itself, for every kind of attention that the model asks for
(its heads, sizes, dtype, window, soft cap, sinks), on segments to both sides of the window, outputs and gradients: in low
precision a whole model hides a wrong window, one attention does not. Then the model runs with it, by the same experiments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloison.exact.attention import observed
from cloison.exact.kernels import KERNELS, SDPA, cast_to
from cloison.exact.ladder import named
from cloison.exact.per_segment import Kind
from cloison.exact.probe import packed_batch
from cloison.exact.proving import holds_on
from cloison.exact.trial import Trial, in_eval
from cloison.exact.ways import Way
from cloison.proof.blocks import synthetic, vocabulary
from cloison.proof.keep import kept
from cloison.proof.report import VerifyReport

if TYPE_CHECKING:
    import torch

__all__ = ["Asked", "asked_of", "faster", "missed_by"]

_LENGTHS = (5, 1, 29, 2, 64, 13)
_LONGEST_WINDOW = 8192


@dataclass(frozen=True)
class Asked:
    """One kind of attention that a model asks for.

    Attributes:
        kind: what is asked for, without a bias.
        chunk: tokens of the chunks that segments are cut into, 0 for none.
        heads, key_heads, size, value_size: of the tensors.
        spread: the standard deviation of the queries and of the keys.
        like: an empty tensor of their dtype and device.
        biased: whether a bias comes with it.
    """

    kind: Kind
    chunk: int
    heads: int
    key_heads: int
    size: int
    value_size: int
    spread: tuple[float, float]
    like: torch.Tensor
    biased: bool

    @property
    def shape(self) -> tuple[Any, ...]:
        """What makes two kinds the same."""
        kind = self.kind
        flags = (kind.causal, kind.window, kind.scaling, kind.dropout > 0, kind.softcap, kind.sinks is None, self.biased)
        return (*flags, self.chunk, self.heads, self.key_heads, self.size, self.value_size, self.like.dtype)


def faster(
    model: torch.nn.Module, way: Way, trial: Trial, kernels: Sequence[str]
) -> tuple[Way, VerifyReport | None, list[dict[str, Any]]]:
    """Return (way, report on the model, what was tried): ``way`` with the first of ``kernels`` that is exact, or as it is."""
    tried: list[dict[str, Any]] = []
    asked = asked_of(model, way) if kernels else []
    if not asked:
        return way, None, tried
    for kernel in kernels:
        with in_eval(model):
            other = named(model, trial.sample, trial.against.floor, way.choice, kernel)
        if other is None:
            continue
        wrong = next(filter(None, (missed_by(kernel, one, _trained(model)) for one in asked)), "")
        if not wrong:
            report, wrong = holds_on(model, other, trial.asks)
            if not wrong:
                return other, report, tried
        tried.append({"way": other.name, "error": wrong})
    return way, None, tried


def _trained(model: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def asked_of(model: torch.nn.Module, way: Way) -> list[Asked]:
    """Return the kinds of attention that ``model`` asks of ours under ``way``, in the mode in which it is."""
    import torch

    found: dict[tuple[Any, ...], Asked] = {}

    def observe(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: Kind, chunk: int) -> None:
        spread = float(query.float().std()), float(key.float().std())
        one = Asked(
            replace(kind, bias=None), chunk, query.shape[1], key.shape[1], query.shape[3], value.shape[3], spread,
            query.new_empty(0, dtype=cast_to(query.device) or query.dtype), kind.bias is not None,
        )  # fmt: skip
        found.setdefault(one.shape, one)

    ids = vocabulary(getattr(model, "config", None))
    device = next(model.parameters()).device
    blocks = synthetic(None, vocab_size=int(ids.max()) + 1)
    with kept(model, as_it_is=True), observed(observe), torch.no_grad():
        way.run(model, packed_batch(blocks, device))
    return list(found.values())


def missed_by(kernel: str, asked: Asked, gradients: bool = True) -> str:
    """Return what ``kernel`` misses by where ``asked`` is asked for, "" where it gives what SDPA per segment gives.

    Allowed is twice the error of SDPA per segment in the same dtype, and one rounding of the largest value; the truth is SDPA
    per segment in float32 (float64 where the model is in float32).
    """
    import torch

    try:
        if asked.biased:
            return f"{kernel} knows no position bias"
        with torch.autocast(asked.like.device.type, enabled=False):  # the inputs have its dtype already
            return _missed_by(kernel, asked, gradients)
    except Exception as error:  # whatever a kernel or its compiler raises: it is not kept, and the table says why
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _missed_by(kernel: str, asked: Asked, gradients: bool) -> str:
    import torch

    dtype = asked.like.dtype
    precise = torch.float64 if dtype == torch.float32 else torch.float32
    pieces = _pieces(asked)
    drawn = list(_drawn(asked, sum(pieces)))
    if asked.kind.dropout:  # whether it knows dropout at all; what it draws cannot be compared
        query, key, value = (t.to(dtype) for t in drawn[:3])
        KERNELS[kernel](query, key, value, pieces, asked.kind, None)
    results = []
    for name, to in ((SDPA, precise), (SDPA, dtype), (kernel, dtype)):
        query, key, value, towards, sinks = (t.to(dtype).to(to).requires_grad_(gradients) for t in drawn)
        kind = replace(asked.kind, dropout=0.0, sinks=sinks if asked.kind.sinks is not None else None)
        out = KERNELS[name](query, key, value, pieces, kind, None)
        grads: Sequence[Any] = ()
        if gradients:
            wanted = [query, key, value, *([sinks] if kind.sinks is not None else [])]
            grads = torch.autograd.grad(out, wanted, towards.detach())
        results.append([out.detach(), *grads])
    names = ("outputs", "gradients of queries", "gradients of keys", "gradients of values", "gradients of sinks")
    for what, truth, trusted, found in zip(names, *results, strict=False):
        allowed = 2 * float((trusted - truth).abs().max()) + torch.finfo(dtype).eps * float(truth.abs().max())
        error = float((found - truth).abs().max())
        if not error <= allowed:
            return f"its {what} are off by {error:.2g}, where {allowed:.2g} is rounding"
    return ""


def _pieces(asked: Asked) -> list[int]:
    lengths = list(_LENGTHS)
    if 0 < asked.kind.window <= _LONGEST_WINDOW:
        window = asked.kind.window
        lengths += [length for length in (window - 1, window, window + 1, 2 * window + 3) if length > 0]
    if asked.chunk:
        lengths = [min(asked.chunk, n - start) for n in lengths for start in range(0, n, asked.chunk)]
    return lengths


def _drawn(asked: Asked, tokens: int) -> Iterator[torch.Tensor]:
    """Yield queries, keys, values, what the output's gradient is taken against, and sinks."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = (
        (1, asked.heads, tokens, asked.size),
        (1, asked.key_heads, tokens, asked.size),
        (1, asked.key_heads, tokens, asked.value_size),
        (tokens, asked.heads, asked.value_size),
        (asked.heads,),
    )
    for shape, scale in zip(shapes, (*asked.spread, 1.0, 1.0, 1.0), strict=True):
        yield (torch.randn(shape, generator=generator) * scale).to(asked.like.device)
