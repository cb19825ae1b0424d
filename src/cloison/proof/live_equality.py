"""Equality inside a real step: a few samples of the batch alone, by the model as it is wrapped, against the same packed.

The model's own rounding is the measure: how far the samples alone move when their embeddings are rounded once more, in the
dtype in which its layers compute. A larger difference is a mismatch: positions, a window, padding that matters. `verify` tells
more of them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.findings import Finding
from cloison.proof.blocks import alone, bounds
from cloison.proof.comparing import JITTER_MARGIN, coarsest, computing, jittered, last_place
from cloison.proof.coupling import has_experts
from cloison.proof.isolation import moves, scale_of
from cloison.proof.report import Verdict
from cloison.proof.setup import Setup
from cloison.proof.truth import Truth

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["live_equality"]

SAMPLES = 4
"""How many samples of a batch are run alone: the longest, the first, the last, and one between."""

LEAST = 1e-3
"""Standard deviations below which nothing is called a mismatch in a real step: the smallest that was measured is 3.1e-3."""

_PLAIN = (
    "input_ids", "labels", "shift_labels", "attention_mask", "position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k",
    "max_length_q", "max_length_k", "num_items_in_batch", "use_cache", "return_dict", "output_hidden_states", "logits_to_keep",
    "output_attentions", "output_router_logits", "use_token_scaling", "skip_logits",
)  # fmt: skip
"""What a call may carry, so that its ids alone are the sample alone."""


@dataclass(frozen=True)
class _Cause:
    kind: str
    said: str
    fix: str


def live_equality(setup: Setup, truth: Truth, call: Mapping[str, Any]) -> tuple[Verdict, list[Finding]]:
    """Return whether samples of a batch that is isolated are also what they are alone, with what is wrong where they are not.

    Run it inside the `Lockstep` that ``setup`` was made with.

    Cost: at most `SAMPLES` forwards of one sample, twice, and one of the batch; three more where something differs.
    """
    import torch

    why = _untestable(setup, truth, call)
    if why:
        return Verdict("equality", "not tested", why), []
    chosen = _chosen(setup.blocks)
    singles = alone(setup.blocks)
    with torch.no_grad(), _still(setup), computing(setup.subject.module) as dtypes:
        packed = setup.logits(setup.blocks)
        own = {segment: _alone(setup, singles[segment]) for segment in chosen}
        if setup.subject.module is not None and has_experts(setup.subject.module) and coarsest(dtypes, packed) > 1e-6:
            return Verdict("equality", "not tested", "in this precision rounding alone sends tokens to other experts"), []
        with jittered(setup.subject, coarsest(dtypes, packed)):
            rounded = {segment: _alone(setup, singles[segment]) for segment in chosen}
        scale = scale_of(packed)
        floor = max(_gap(rounded[segment], own[segment]) for segment in chosen)
        allowed = max(JITTER_MARGIN * max(floor, last_place(packed)) / scale, LEAST)
        places = bounds(setup.blocks)
        errors = {segment: _gap(packed[places[segment]], own[segment]) / scale for segment in chosen}
        worst = max(errors, key=lambda segment: errors[segment])
        evidence = {"samples": len(chosen), "error": errors[worst], "allowed": allowed, "segment": worst}
        if errors[worst] <= allowed:
            said = f"within rounding: {len(chosen)} samples of the batch get the hidden states that they get alone"
            return Verdict("equality", "exact", said, evidence), []
        cause = _cause(setup, call, worst, singles[worst], packed[places[worst]], allowed * scale)
    sizes = f"differ by {errors[worst]:.2g} sigma from the sample alone; rounding may do {allowed:.2g}"
    said = f"hidden states of segment {worst} {sizes}"
    finding = Finding(
        "mismatch",
        "error",
        f"samples are isolated and yet not what they are alone: {said}. {cause.said}",
        cause.fix,
        {**evidence, "cause": cause.kind},
    )
    return Verdict("equality", "mismatch", f"{said}; cause: {cause.kind}", {**evidence, "cause": cause.kind}), [finding]


def _untestable(setup: Setup, truth: Truth, call: Mapping[str, Any]) -> str:
    """Return why the ids of a sample alone are not what the model takes for it, or ""."""
    config: Any = getattr(setup.subject.module, "config", None)
    if truth.guessed and not truth.declared:
        return "the boundaries are a guess"
    if not hasattr(config, "to_dict"):
        return "only models of transformers are known to take bare ids for a sample alone: use cloison.verify(model, alone=...)"
    if getattr(config, "is_encoder_decoder", False):
        return "the model is an encoder-decoder"
    others = [name for name, value in call.items() if name not in _PLAIN and hasattr(value, "shape")]
    return f"the batch carries {', '.join(others[:3])}, which a sample alone would need too" if others else ""


def _chosen(blocks: Sequence[Block]) -> list[int]:
    lengths = [int(length) for block in blocks for length in block.segments.seq_lengths]
    last = len(lengths) - 1
    return list(dict.fromkeys([int(np.argmax(lengths)), 0, last, last // 2]))[:SAMPLES]


@contextmanager
def _still(setup: Setup) -> Iterator[None]:
    """Switch random parts off: alone and packed they would draw for other shapes."""
    module = setup.subject.module
    if module is None or not (setup.notes.dropout or setup.notes.drew_random):
        yield
        return
    modes = [(inner, inner.training) for inner in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for inner, training in modes:
            inner.training = training


def _alone(setup: Setup, sample: Block, position_ids: npt.NDArray[np.int64] | None = None) -> Tensor:
    batch = dict(setup.subject.single(sample))
    if position_ids is not None:
        import torch

        batch["position_ids"] = torch.from_numpy(position_ids[None])
    outputs: Tensor = setup.wrap(setup.subject.run_batch)(batch, [sample]).logits
    return outputs


def _gap(first: Tensor, second: Tensor) -> float:
    return float(moves(first, second.to(first), [slice(0, len(first))], 1.0)[0])


def _cause(setup: Setup, call: Mapping[str, Any], segment: int, sample: Block, packed: Tensor, allowed: float) -> _Cause:
    padding = _padding(setup, call, segment, packed, allowed)
    if padding is not None:
        return padding
    given = _positions(setup, call, segment)
    if given is not None and given[0] != 0:
        try:
            same = _gap(_alone(setup, sample, given), packed) <= allowed
        except (RuntimeError, IndexError, ValueError, TypeError, InputError):
            same = False
        if same and call.get("position_ids") is not None:
            return _Cause(
                "wrong_start",
                f"Its positions start at {given[0]}, and alone the model starts at 0: with these positions it is the same.",
                "Pass position_ids that start at 0 in each segment: cloison.collate(blocks).",
            )
        if same:
            return _Cause(
                "position_offset",
                "No positions are passed, so the model counts from the start of the row: given these it is the same alone.",
                "Pass position_ids that start anew in each segment, and on padded rows with their first token.",
            )
    return _Cause(
        "unexplained",
        "It is neither padding nor where its positions start.",
        "Run cloison.verify(model, collate=...), which tells kinds of mismatch apart, or cloison.adapt(model).",
    )


def _padding(setup: Setup, call: Mapping[str, Any], segment: int, packed: Tensor, allowed: float) -> _Cause | None:
    """Change the ids of the padding: what moves then reads it."""
    import torch

    batch = dict(setup.subject.collate(setup.blocks))
    outputs = setup.wrap(setup.subject.run_batch)(batch, setup.blocks)
    ids = batch["input_ids"]
    if outputs.places is None or outputs.places.size == ids.numel():
        return None
    rest = torch.from_numpy(np.setdiff1d(np.arange(ids.numel()), outputs.places)).to(ids.device)
    other = ids.clone().reshape(-1)
    drawn = np.random.default_rng(setup.seed).choice(setup.ids, rest.numel())
    other[rest] = torch.from_numpy(drawn).to(other)
    changed = setup.wrap(setup.subject.run_batch)({**batch, "input_ids": other.reshape(ids.shape)}, setup.blocks).logits
    if _gap(changed[bounds(setup.blocks)[segment]], packed) <= allowed:
        return None
    return _Cause(
        "padding",
        f"It moves when the ids of the {rest.numel()} padding positions change: samples see their padding.",
        "Pass an attention_mask that is 0 at padding, pad on the right, or do not pad: cloison.collate(blocks).",
    )


def _positions(setup: Setup, call: Mapping[str, Any], segment: int) -> npt.NDArray[np.int64] | None:
    """Return the positions that the tokens of ``segment`` have in the batch: those passed, else their places in the row."""
    outputs = setup.run(setup.blocks)
    if outputs.places is None:
        return None
    width = int(call["input_ids"].shape[-1])
    at = outputs.places[bounds(setup.blocks)[segment]]
    given = call.get("position_ids")
    if given is None:
        return np.asarray(at % width, np.int64)
    values = given.detach().cpu().numpy()
    if values.ndim == 3:
        return None
    return np.asarray(np.broadcast_to(values, call["input_ids"].shape).reshape(-1)[at], np.int64)
