"""Equality: each sample alone against packed, within a noise floor that is measured on the same model.

A *twin* (a copy in float64, below a stated size) gives what the sample alone should give. The model's own error alone against
the twin is the floor of its dtype; packed it may be `MARGIN` times that. The twin itself is compared too, packed against alone:
there the floor is what one rounding of the embeddings to float32 does, since parts of many models cast down inside. Without a
twin, the floor is what one rounding to the model's own dtype does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError, InputError
from cloison.proof.blocks import alone, bounds
from cloison.proof.comparing import (
    JITTER_MARGIN,
    MARGIN,
    Comparison,
    coarsest,
    computing,
    gap,
    has_losses,
    jittered,
    last_place,
    rounding_of,
    token_losses,
)
from cloison.proof.isolation import scale_of
from cloison.proof.keep import eager
from cloison.proof.parameter_gradients import compare_gradients
from cloison.proof.pieces import gaps
from cloison.proof.run import Outputs, Subject

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TWIN_PARAMETERS", "Equality", "equality", "twin_of"]

TWIN_PARAMETERS = 64_000_000
"""The largest model that is copied in float64."""

FEW_TOKENS = 64
"""Below this many tokens one run is too small a draw of rounding errors to be a floor: a second one is added."""


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
    def blunt(self) -> float:
        """What rounding may do to the outputs at least, in standard deviations; above `BLUNT` nothing could be told."""
        return min(c.allowed for c in self.comparisons if c.quantity not in ("loss per token", "parameter gradients"))

    @property
    def worst(self) -> Comparison:
        """The comparison that is furthest over what it may be."""
        return max(self.comparisons, key=lambda c: c.error / c.allowed if c.allowed else float(c.error > 0) * 1e300)


@dataclass(frozen=True)
class _Runs:
    """Packed and alone outputs of one subject, alone ones joined in packed order; ``kind``: see `Outputs`."""

    kind: str
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
        with computing(subject.module) as dtypes:
            own = _runs(subject if packed else replace(subject, packs=False), blocks, run)
        eps = coarsest(dtypes, own.alone)
        exact = None
        if twin is not None:
            try:
                with computing(twin.module) as fine:
                    exact = _runs(twin, blocks, run)
                for given, copied in ((own.alone, exact.alone), (own.packed, exact.packed)):
                    if not torch.isfinite(given).logical_not().logical_or(torch.isfinite(copied)).all():
                        raise InputError("the float64 copy must give numbers.", "It gives NaN where the model does not.")
                low = sorted(str(dtype) for dtype in fine & {torch.bfloat16, torch.float16})
                if low:
                    raise InputError("the float64 copy must compute in float64.", f"Its layers give {low[0]} (autocast).")
            except (RuntimeError, ValueError, TypeError, NotImplementedError, CloisonError) as error:
                notes.append(f"the float64 copy does not run ({_first_line(error)})")
                twin = exact = None
        reference = own.alone if exact is None else exact.alone
        scale = scale_of(reference)
        if exact is None and subject.module is None:
            raise InputError(
                "what rounding does is measured on the module.",
                f"The callable shows none; packed differs from alone by {gap(own.packed, own.alone) / scale:.1e} sigma.",
                "Pass the module itself, with collate= and loss=.",
            )
        if exact is None:
            rounding = _response(subject, blocks, run, own.alone, eps)
            if rounding == 0.0:
                raise InputError("what rounding does is measured at the embeddings.", "Rounding them moves nothing.")
            source = f"response to one rounding of the embeddings to {_dtype(own.alone)}"
            floor, margin = rounding, JITTER_MARGIN
        else:
            floor, margin = max(gap(own.alone, exact.alone), last_place(own.alone)), MARGIN
            if len(own.alone) < FEW_TOKENS:
                floor = max(floor, _response(subject, blocks, run, exact.alone, eps))
            source = f"error of the {_dtype(own.alone)} model alone against its float64 copy"
        pairs: list[tuple[str, Tensor, Tensor, float, float]] = [(own.kind, own.packed, reference, floor / scale, margin)]
        if own.hidden is not None:
            together, single = own.hidden
            hidden_floor = floor
            if exact is not None and exact.hidden is not None:
                hidden_floor = max(gap(single, exact.hidden[1]), last_place(single))
                single = exact.hidden[1]
                pairs.append(("hidden states", together, single, hidden_floor / scale_of(single), margin))
        if exact is not None and twin is not None and twin.packs:
            response = _response(twin, blocks, run, exact.alone)
            if response == 0.0:
                notes.append("the float64 copies packed and alone were not compared (rounding its embeddings moves nothing)")
            else:
                pairs.append((f"{own.kind} (float64)", exact.packed, exact.alone, response / scale, JITTER_MARGIN))
        comparisons = [_compare(*pair, blocks) for pair in pairs]
        losses = _losses(own, exact, blocks, floor)
        if losses is not None:
            comparisons.append(losses)
    if gradients and subject.module is not None:
        try:
            comparisons.append(compare_gradients(subject, twin, blocks, run, eps))
        except (RuntimeError, NotImplementedError, CloisonError) as error:
            notes.append(f"gradients were not compared ({_first_line(error)})")
    sharp = pairs[-1] if pairs[-1][0].endswith("(float64)") else pairs[0]
    errors = _by_token(sharp[1], sharp[2]) / scale
    return Equality(tuple(comparisons), errors, sharp[3] * sharp[4], source, tuple(notes), reference)


def twin_of(subject: Subject) -> Subject | None:
    """Return ``subject`` over a float64 copy of its module, or None where that is too large, cannot be, or would be the same.

    Masks and other floats of the batch are cast with it. Experts whose kernel refuses float64 are switched to the plain one in
    the copy.
    """
    import torch

    module = subject.module
    if module is None or subject.retarget is None or sum(p.numel() for p in module.parameters()) > TWIN_PARAMETERS:
        return None
    if all(p.dtype == torch.float64 for p in module.parameters() if p.is_floating_point()):
        return None
    try:
        double: Any = copy.deepcopy(module).double()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError):  # FSDP2 asserts that it is not copied
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


# ---------------------------------------------------------------------- runs


def _runs(subject: Subject, blocks: Sequence[Block], wrap: Callable[..., Any]) -> _Runs:
    import torch

    singles: list[Outputs] = [wrap(subject.run_alone)(block) for block in alone(blocks)]
    joined = torch.cat([single.logits for single in singles])
    kind = singles[0].kind
    hiddens = [single.hidden for single in singles if single.hidden is not None]
    if not subject.packs:
        return _Runs(kind, joined, joined, None if len(hiddens) < len(singles) else (torch.cat(hiddens), torch.cat(hiddens)))
    packed: Outputs = wrap(subject.run)(blocks)
    hidden = None
    if packed.hidden is not None and len(hiddens) == len(singles):
        hidden = (packed.hidden, torch.cat(hiddens))
    return _Runs(kind, packed.logits, joined, hidden)


def _response(
    subject: Subject, blocks: Sequence[Block], wrap: Callable[..., Any], base: Tensor, relative: float | None = None
) -> float:
    """Return how far the outputs alone move when the embeddings are rounded once more."""
    import torch

    eps = rounding_of(base.dtype) if relative is None else relative
    with jittered(subject, eps), eager():
        moved = torch.cat([wrap(subject.run_alone)(block).logits for block in alone(blocks)])
    return gap(moved, base)


def _compare(
    quantity: str, packed: Tensor, reference: Tensor, floor: float, margin: float, blocks: Sequence[Block]
) -> Comparison:
    errors = _by_token(packed, reference) / scale_of(reference)
    segment = int(np.argmax([errors[place].max() for place in bounds(blocks)]))
    return Comparison(quantity, float(errors.max()), floor, margin * floor, f"segment {segment}")


def _losses(own: _Runs, exact: _Runs | None, blocks: Sequence[Block], of_logits: float) -> Comparison | None:
    """Compare the loss of every target, which cannot be surer than the logits it is made of: their floor is part of its own."""
    if not has_losses(own.packed.shape[-1], blocks):
        return None
    packed, single = token_losses(own.packed, blocks), token_losses(own.alone, blocks)
    reference = single if exact is None else token_losses(exact.alone, blocks)
    spread = scale_of(reference) if reference.numel() > 1 else 1.0
    if exact is None:
        return None
    floor = max(gap(single, reference), of_logits) / spread
    return Comparison("loss per token", gap(packed, reference) / spread, floor, MARGIN * floor)


# ---------------------------------------------------------------------- small things


def _by_token(first: Tensor, second: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(gaps(first, second).cpu().numpy(), np.float64)


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
