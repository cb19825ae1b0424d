"""Equality: each sample alone against packed, within a noise floor that is measured on the same model.

A *twin* (a copy in float64, below a stated size) gives what the sample alone should give. The model's own error alone against
the twin is the floor of its dtype; packed it may be `MARGIN` times that. The twin itself is compared too, packed against alone:
there the floor is what one rounding of the embeddings to float32 does, since parts of many models cast down inside. Without a
twin, the floor is what one rounding to the model's own dtype does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError, InputError
from cloison.proof.blocks import alone, bounds
from cloison.proof.gradients import embedding_of
from cloison.proof.isolation import scale_of
from cloison.proof.run import Outputs, Subject
from cloison.segments import IGNORE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

__all__ = ["MARGIN", "TWIN_PARAMETERS", "Comparison", "Equality", "equality", "jittered", "token_losses", "twin_of"]

MARGIN = 3.0
"""How many times the floor a packed run may differ: the same rounding errors in another order."""

JITTER_MARGIN = 16.0
"""The same where the floor is the response to one rounding of the embeddings: every later operation rounds too."""

TWIN_PARAMETERS = 64_000_000
"""The largest model that is copied in float64."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same samples, packed and alone.

    Attributes:
        quantity: "logits", "hidden states", "loss per token" or "parameter gradients".
        error: the largest difference, in standard deviations of the quantity (for gradients: of each parameter's largest).
        floor: the measured noise, in the same unit.
        allowed: what ``error`` may be.
        where: the segment (or the parameter) with the largest difference.
    """

    quantity: str
    error: float
    floor: float
    allowed: float
    where: str = ""

    @property
    def equal(self) -> bool:
        """Whether the difference is rounding."""
        return bool(self.error <= self.allowed)


@dataclass(frozen=True, eq=False)
class Equality:
    """What equality says.

    Attributes:
        comparisons: in the model's dtype, and the twin's (their quantity ends in "(float64)").
        token_errors: float64 [tokens]: the difference of every token's logits, packed order, in standard deviations, from the
            sharper of the two pairs of runs.
        allowed: what an entry of ``token_errors`` may be.
        floor_source: how the floor was measured.
        notes: what could not be measured, and why.
    """

    comparisons: tuple[Comparison, ...]
    token_errors: npt.NDArray[np.float64]
    allowed: float
    floor_source: str
    notes: tuple[str, ...] = ()
    reference: Tensor | None = field(default=None, repr=False)

    @property
    def equal(self) -> bool:
        """Whether every comparison is."""
        return all(comparison.equal for comparison in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The comparison that is furthest over what it may be."""
        return max(self.comparisons, key=lambda c: c.error / c.allowed if c.allowed else float(c.error > 0) * 1e300)


@dataclass(frozen=True)
class _Runs:
    """Packed and alone outputs of one subject, alone ones joined in packed order."""

    packed: Tensor
    alone: Tensor
    hidden: tuple[Tensor, Tensor] | None


def equality(
    subject: Subject,
    blocks: Sequence[Block],
    *,
    twin: Subject | None = None,
    gradients: bool = True,
    run: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call,
    packed: bool = True,
) -> Equality:
    """Return the Equality of ``subject`` on ``blocks``.

    Args:
        twin: the float64 copy, from `twin_of`; None where there is none.
        gradients: compare the gradients of the summed loss too (needs the module).
        run: wraps every forward (to seed it).
        packed: False measures the samples alone only (a reference and its floor, where the packed run raises).

    Raises:
        InputError: outputs that are NaN or constant.

    Cost: one packed forward and one alone a segment, twice with a twin; with gradients, as many backwards.
    """
    import torch

    notes: list[str] = []
    with torch.no_grad():
        own = _runs(subject if packed else replace(subject, packs=False), blocks, run)
        exact = None
        if twin is not None:
            try:
                exact = _runs(twin, blocks, run)
            except (RuntimeError, ValueError, TypeError, NotImplementedError, CloisonError) as error:
                notes.append(f"the float64 copy does not run ({_first_line(error)})")
                twin = None
        reference = own.alone if exact is None else exact.alone
        scale = scale_of(reference)
        if exact is None:
            rounding = _response(subject, blocks, run, own.alone)
            source = f"response to one rounding of the embeddings to {_dtype(own.alone)}"
            floor, margin = rounding, JITTER_MARGIN
        else:
            floor, margin = _gap(own.alone, exact.alone), MARGIN
            source = f"error of the {_dtype(own.alone)} model alone against its float64 copy"
        pairs: list[tuple[str, Tensor, Tensor, float, float]] = [("logits", own.packed, reference, floor / scale, margin)]
        if own.hidden is not None:
            together, single = own.hidden
            hidden_floor = floor
            if exact is not None and exact.hidden is not None:
                hidden_floor, single = _gap(single, exact.hidden[1]), exact.hidden[1]
                pairs.append(("hidden states", together, single, hidden_floor / scale_of(single), margin))
        if exact is not None and twin is not None and twin.packs:
            response = _response(twin, blocks, run, exact.alone, 2.0**-24)
            pairs.append(("logits (float64)", exact.packed, exact.alone, response / scale, JITTER_MARGIN))
        comparisons = [_compare(*pair, blocks) for pair in pairs]
        losses = _losses(own, exact, blocks)
        if losses is not None:
            comparisons.append(losses)
    if gradients and subject.module is not None:
        try:
            comparisons.append(_gradients(subject, twin, blocks, run))
        except (RuntimeError, NotImplementedError, CloisonError) as error:
            notes.append(f"gradients were not compared ({_first_line(error)})")
    sharp = pairs[-1] if pairs[-1][0] == "logits (float64)" else pairs[0]
    errors = _by_token(sharp[1], sharp[2]) / scale
    return Equality(tuple(comparisons), errors, sharp[3] * sharp[4], source, tuple(notes), reference)


def twin_of(subject: Subject) -> Subject | None:
    """Return ``subject`` over a float64 copy of its module, or None where that is too large or cannot be copied.

    Masks and other floats of the batch are cast with it. Experts whose kernel refuses float64 are switched to the plain one in
    the copy.
    """
    module = subject.module
    if module is None or subject.retarget is None or sum(p.numel() for p in module.parameters()) > TWIN_PARAMETERS:
        return None
    try:
        double: Any = copy.deepcopy(module).double()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    config = getattr(double, "config", None)
    if getattr(config, "_experts_implementation", None) not in (None, "eager") and hasattr(
        double, "set_experts_implementation"
    ):
        double.set_experts_implementation("eager")
    made = subject.retarget(double)

    def cast(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda batch: call(_doubled(batch))

    return replace(made, call=cast(made.call), call_single=cast(made.call_single))


def token_losses(logits: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Return the cross entropy of every target, [targets], in packed order: labels shifted inside each segment."""
    import torch

    targets = np.concatenate([block.targets for block in blocks]).astype(np.int64)
    wanted = torch.from_numpy(targets).to(logits.device)
    at = wanted != IGNORE
    values = logits[at] if logits.dtype in (torch.float32, torch.float64) else logits[at].float()
    return torch.nn.functional.cross_entropy(values, wanted[at], reduction="none")


@contextmanager
def jittered(subject: Subject, relative: float) -> Iterator[None]:
    """Multiply every number of the input embeddings by 1 + ``relative`` or 1 - ``relative``, at random with a fixed seed."""
    import torch

    def hook(inner: Any, args: Any, output: Tensor) -> Tensor:
        signs = torch.randint(0, 2, output.shape, generator=torch.Generator().manual_seed(1)).to(output) * 2 - 1
        return output * (1 + relative * signs)

    if subject.module is None:
        raise InputError("a rounding of the embeddings needs the module.", "The callable shows none.", "Pass the module.")
    handle = embedding_of(subject.module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


# ---------------------------------------------------------------------- runs


def _runs(subject: Subject, blocks: Sequence[Block], wrap: Callable[..., Any]) -> _Runs:
    import torch

    singles: list[Outputs] = [wrap(subject.run_alone)(block) for block in alone(blocks)]
    joined = torch.cat([single.logits for single in singles])
    hiddens = [single.hidden for single in singles if single.hidden is not None]
    if not subject.packs:
        return _Runs(joined, joined, None if len(hiddens) < len(singles) else (torch.cat(hiddens), torch.cat(hiddens)))
    packed: Outputs = wrap(subject.run)(blocks)
    hidden = None
    if packed.hidden is not None and len(hiddens) == len(singles):
        hidden = (packed.hidden, torch.cat(hiddens))
    return _Runs(packed.logits, joined, hidden)


def _response(
    subject: Subject, blocks: Sequence[Block], wrap: Callable[..., Any], base: Tensor, relative: float | None = None
) -> float:
    """Return how far the outputs alone move when the embeddings are rounded once more."""
    import torch

    eps = torch.finfo(base.dtype).eps / 2 if relative is None else relative
    with jittered(subject, eps):
        moved = torch.cat([wrap(subject.run_alone)(block).logits for block in alone(blocks)])
    return _gap(moved, base)


def _compare(
    quantity: str, packed: Tensor, reference: Tensor, floor: float, margin: float, blocks: Sequence[Block]
) -> Comparison:
    errors = _by_token(packed, reference) / scale_of(reference)
    segment = int(np.argmax([errors[place].max() for place in bounds(blocks)]))
    return Comparison(quantity, float(errors.max()), floor, margin * floor, f"segment {segment}")


def _losses(own: _Runs, exact: _Runs | None, blocks: Sequence[Block]) -> Comparison | None:
    vocabulary = own.packed.shape[-1]
    highest = max((int(block.labels.max(initial=0)) for block in blocks), default=0)
    if highest >= vocabulary or not sum(block.num_targets for block in blocks):
        return None
    packed, single = token_losses(own.packed, blocks), token_losses(own.alone, blocks)
    reference = single if exact is None else token_losses(exact.alone, blocks)
    spread = scale_of(reference) if reference.numel() > 1 else 1.0
    if exact is None:
        return None
    floor = _gap(single, reference) / spread
    return Comparison("loss per token", _gap(packed, reference) / spread, floor, MARGIN * floor)


def _gradients(subject: Subject, twin: Subject | None, blocks: Sequence[Block], wrap: Callable[..., Any]) -> Comparison:
    """Compare the gradients of the summed loss, parameter by parameter, each in units of its largest entry.

    A parameter whose gradient is zero but for rounding (a bias before a softmax) is measured against the median of the others.
    """
    if twin is None:
        raise InputError("gradients are compared against a float64 copy.", "There is none.", "Verify a smaller twin.")
    packed = _summed_gradients(subject, lambda: [wrap(subject.run)(blocks).logits], [list(blocks)])
    singles = alone(blocks)
    own = _summed_gradients(subject, lambda: (wrap(subject.run_alone)(b).logits for b in singles), [[b] for b in singles])
    exact = _summed_gradients(twin, lambda: (wrap(twin.run_alone)(b).logits for b in singles), [[b] for b in singles])
    largest = {name: float(gradient.abs().max()) for name, gradient in exact.items()}
    typical = float(np.median([size for size in largest.values() if size > 0.0] or [1.0]))
    worst, floors = (0.0, 0.0, ""), []
    for name, reference in exact.items():
        unit = max(largest[name], 1e-2 * typical)
        error, floor = _gap(packed[name], reference) / unit, _gap(own[name], reference) / unit
        floors.append(floor)
        if error > worst[0]:
            worst = (error, floor, name)
    floor = max(floors, default=0.0)
    return Comparison("parameter gradients", worst[0], floor, MARGIN * floor, worst[2])


def _summed_gradients(subject: Subject, forwards: Callable[[], Any], parts: list[list[Block]]) -> dict[str, Tensor]:
    import torch

    module = subject.module
    assert module is not None
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise InputError("gradients need a parameter that wants one.", "All are frozen.", "Unfreeze one, or skip gradients.")
    total = {name: torch.zeros_like(p) for name, p in named}
    with torch.enable_grad():
        for logits, part in zip(forwards(), parts, strict=True):
            if not sum(block.num_targets for block in part):
                continue
            loss = token_losses(logits, part).sum()
            for (name, _), gradient in zip(
                named, torch.autograd.grad(loss, [p for _, p in named], allow_unused=True), strict=True
            ):
                if gradient is not None:
                    total[name] += gradient
    return total


# ---------------------------------------------------------------------- small things


def _by_token(first: Tensor, second: Tensor) -> npt.NDArray[np.float64]:
    import torch

    gap = torch.where(first == second, 0.0, (first.double() - second.double()).abs()).nan_to_num(nan=float("inf"))
    return np.asarray(gap.amax(-1).cpu().numpy(), np.float64)


def _gap(first: Tensor, second: Tensor) -> float:
    import torch

    gap = torch.where(first == second, 0.0, (first.double() - second.double()).abs())
    return float(gap.nan_to_num(nan=float("inf")).max()) if gap.numel() else 0.0


def _doubled(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        lowest = value <= torch.finfo(value.dtype).min
        return value.double().masked_fill(lowest, torch.finfo(torch.float64).min)
    if isinstance(value, dict):
        return {key: _doubled(entry) for key, entry in value.items()}
    return value


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]
