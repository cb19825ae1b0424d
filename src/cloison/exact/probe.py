"""What one way does with awkward blocks: how far bystanders move, and how far each sample is from itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.exact.batches import PackedBatch
from cloison.exact.calling import call, forget, logits_of, replaced
from cloison.exact.pooled import spread_over_tokens
from cloison.exact.ways import Way
from cloison.forms.joining import join
from cloison.proof.blocks import alone, changed
from cloison.proof.comparing import JITTER_MARGIN, jittered
from cloison.proof.isolation import scale_of
from cloison.proof.run import subject
from cloison.proof.setup import FAILURES
from cloison.segments import Segments

if TYPE_CHECKING:
    import torch

__all__ = ["Measured", "Reference", "measure", "packed_batch", "reference"]


@dataclass(frozen=True)
class Measured:
    """How far a way missed, in standard deviations of the outputs; infinite where it raised.

    Attributes:
        leak: the largest move of a segment's outputs when the tokens of others change.
        equality: the largest difference between a segment's outputs packed and alone.
        error: what the way raised, or "".
    """

    leak: float
    equality: float
    error: str = ""


@dataclass(frozen=True)
class Reference:
    """Awkward blocks, and what each of their samples gives alone.

    Attributes:
        blocks: the blocks.
        others: the same with the tokens of every second segment changed, and with those of the others changed.
        outputs: logits of every sample alone, [tokens, vocabulary] in packed order; of a model that gives one output a sample,
            that at each of its tokens.
        scale: the standard deviation of ``outputs``.
        floor: what rounding may do, in the same unit: the response of the samples alone to one rounding of their embeddings to
            the model's dtype, times `JITTER_MARGIN` (every later operation rounds too).
        ids: the token ids that changed tokens are drawn from.
        of_samples: whether the model gives one output a sample.
    """

    blocks: Sequence[Block]
    others: tuple[Sequence[Block], Sequence[Block]]
    outputs: torch.Tensor
    scale: float
    floor: float
    ids: npt.NDArray[np.int64]
    of_samples: bool = False

    def look_ahead(self, model: torch.nn.Module) -> float:
        """Return how far the tokens of a sample alone move when later ones change, 0.0 for a causal model.

        Four cuts, from the first token on: a mask may be wrong for the first tokens only (prophetnet's is, transformers 5.24).
        """
        lengths = [int(length) for block in self.blocks for length in block.segments.seq_lengths]
        places = np.concatenate([np.arange(length) for length in lengths])
        worst = 0.0
        for part in range(4):
            cuts = [max(1, length * part // 4) for length in lengths]
            later = changed(self.blocks, range(len(lengths)), self.ids, part, after=cuts)
            before = np.flatnonzero(places < np.repeat(cuts, lengths))
            moved = _alone(model, later, self.of_samples)[before] - self.outputs[before]
            worst = max(worst, float(moved.abs().max()) / self.scale)
        return worst if worst > self.floor else 0.0

    @property
    def flat(self) -> list[Block]:
        """The blocks as one."""
        return [join(self.blocks)]

    @property
    def flat_others(self) -> list[list[Block]]:
        """The changed blocks, each set as one."""
        return [[join(blocks)] for blocks in self.others]

    @property
    def odd(self) -> npt.NDArray[np.int64]:
        """int64 [tokens]: 0 in every second segment, whose tokens the first of ``others`` changed, 1 in the others."""
        lengths = [int(length) for block in self.blocks for length in block.segments.seq_lengths]
        return np.repeat(np.arange(len(lengths)) % 2, lengths)


def packed_batch(blocks: Sequence[Block], device: torch.device) -> PackedBatch:
    """Return ``blocks`` as rows, the shorter ones padded, so that a way is tried on rows with and without padding."""
    import torch

    segments = Segments.from_lengths([block.segments.seq_lengths for block in blocks])
    ids = np.ones((segments.num_rows, segments.width), np.int64)
    for row, block in zip(ids, blocks, strict=True):
        row[: block.num_tokens] = block.input_ids
    return PackedBatch(torch.from_numpy(ids).to(device), Segments(segments.seq_lengths, segments.row_offsets, segments.width))


def reference(model: torch.nn.Module, blocks: Sequence[Block], ids: npt.NDArray[np.int64], seed: int) -> Reference:
    """Return the outputs of every sample alone, and the noise that they carry.

    Raises:
        InputError: outputs that are not finite, or that are all the same.
    """
    import torch

    of_samples = _gives_samples(model, blocks)
    outputs = _alone(model, blocks, of_samples)
    scale = scale_of(outputs)
    eager = getattr(model, "_orig_mod", model)  # a compiled graph does not run hooks
    with replaced(eager, "_compiled_call_impl", None), jittered(subject(eager), torch.finfo(_dtype(model)).eps / 2):
        moved = _alone(eager, blocks, of_samples)
    floor = float((moved - outputs).abs().max()) / scale * JITTER_MARGIN
    count = sum(len(block) for block in blocks)
    others = tuple(changed(blocks, range(first, count, 2), ids, seed) for first in (0, 1))
    return Reference(blocks, (others[0], others[1]), outputs, scale, floor, ids, of_samples)


def _alone(model: torch.nn.Module, blocks: Sequence[Block], of_samples: bool) -> torch.Tensor:
    import torch

    device = next(model.parameters()).device
    parts = []
    with torch.no_grad():
        for block in alone(blocks):
            forget(model)
            row = torch.from_numpy(block.input_ids.astype(np.int64))[None].to(device)
            logits = logits_of(call(model, row))
            if of_samples:
                logits = spread_over_tokens(logits, [row.shape[1]])[None]
            if logits.dim() != 3 or tuple(logits.shape[:2]) != tuple(row.shape):
                raise InputError(
                    "a model returns [B, T, features], one row a token, or [B, features], one a sample.",
                    f"For ids of {list(row.shape)} it returned {list(logits.shape)}.",
                    "Pass its base (model.base_model), or a module around it that returns features of every token.",
                )
            parts.append(logits[0].float())
    return torch.cat(parts)


def _gives_samples(model: torch.nn.Module, blocks: Sequence[Block]) -> bool:
    """Whether the outputs of samples of two lengths have one row each, of one size."""
    import torch

    lengths = {block.num_tokens: block for block in alone(blocks)}
    device = next(model.parameters()).device
    shapes = set()
    with torch.no_grad():
        for block in list(lengths.values())[:2]:
            row = torch.from_numpy(block.input_ids.astype(np.int64))[None].to(device)
            outputs = logits_of(call(model, row))
            shapes.add(tuple(outputs.shape))
    return len(lengths) > 1 and len(shapes) == 1 and len(min(shapes)) == 2


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def measure(model: torch.nn.Module, way: Way, against: Reference) -> Measured:
    """Return what ``way`` misses by on the blocks of ``against``, a row for each and all in one flat row."""
    import torch

    worst = Measured(0.0, 0.0)
    try:
        with torch.no_grad():
            for flat in (True, False):
                worst = _worse(worst, _measure(model, way, against, flat))
    except FAILURES as error:
        return Measured(float("inf"), float("inf"), f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return worst


def _measure(model: torch.nn.Module, way: Way, against: Reference, flat: bool) -> Measured:
    device = next(model.parameters()).device
    arranged = [against.flat, *against.flat_others] if flat else [against.blocks, *against.others]
    outputs = [_run(model, way, blocks, device, against) for blocks in arranged]
    equality = float((outputs[0] - against.outputs).abs().max()) / against.scale
    odd = against.odd
    leak = 0.0
    for first, moved in enumerate(outputs[1:]):
        bystanders = np.flatnonzero(odd != first)
        leak = max(leak, float((moved[bystanders] - outputs[0][bystanders]).abs().max()) / against.scale)
    if not np.isfinite(equality + leak):
        return Measured(float("inf"), float("inf"), "outputs are not finite")
    return Measured(leak, equality)


def _run(model: torch.nn.Module, way: Way, blocks: Sequence[Block], device: torch.device, against: Reference) -> torch.Tensor:
    batch = packed_batch(blocks, device)
    logits = logits_of(way.run(model, batch))
    if against.of_samples and tuple(logits.shape[:1]) == (batch.segments.num_segments,):
        return spread_over_tokens(logits, batch.segments.seq_lengths.tolist()).float()
    valid = batch.segments.segment_ids() > 0
    if tuple(logits.shape[:2]) != valid.shape:
        raise ValueError(f"outputs have the shape {list(logits.shape)} for ids of {list(valid.shape)}")
    import torch

    return logits[torch.from_numpy(valid)].float()


def _worse(first: Measured, second: Measured) -> Measured:
    return Measured(max(first.leak, second.leak), max(first.equality, second.equality), first.error or second.error)
