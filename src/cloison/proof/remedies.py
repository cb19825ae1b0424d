"""A fix that was tried: signals that a user could send instead, run on the same model until one is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import CloisonError
from cloison.proof.blocks import bounds, changed
from cloison.proof.isolation import codes, moves
from cloison.proof.run import Subject
from cloison.proof.signals import flat_segments, signal

__all__ = ["ADAPT", "remedy"]

Batch = Mapping[str, Any]
Collate = Callable[[Sequence[Block]], Batch]

ADAPT = "No signal that was tried makes this model exact: run cloison.adapt(model), and train on adapter.collate(blocks)."


ISOLATED = 0.05
"""Standard deviations: a bystander that moves more is no matter of rounding, whatever equality allows for."""


def remedy(
    subject: Subject,
    blocks: Sequence[Block],
    ids: npt.NDArray[np.int64],
    reference: Any,
    allowed: float,
    seed: int,
    run: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> tuple[str, bool]:
    """Return (what to do, whether it was tried and found exact).

    The smallest change to the user's own batch comes first, then other signals. A candidate counts when no segment moves with
    the tokens of others (one pair of codes and its reverse) and every sample equals itself alone within ``allowed``.

    Cost: up to 5 forwards a candidate, at most nine candidates.
    """
    for said, collate in _candidates(subject, blocks):
        try:
            if _exact(subject, collate, blocks, ids, reference, allowed, seed, run):
                return said, True
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError, CloisonError):
            continue
    return ADAPT, False


def _exact(
    subject: Subject,
    collate: Collate,
    blocks: Sequence[Block],
    ids: npt.NDArray[np.int64],
    reference: Any,
    allowed: float,
    seed: int,
    run: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> bool:
    call = run(subject.run_batch)
    base = call(collate(blocks), blocks).logits
    places, scale = bounds(blocks), float((base if reference is None else reference).double().std())
    if reference is not None and not bool((base.double() - reference.double()).abs().max() <= allowed * scale):
        return False
    for chosen in codes(len(places)):
        other = changed(blocks, set(chosen), ids, seed)
        moved = moves(base, call(collate(other), other).logits, places, scale)
        if any(moved[d] > min(allowed, ISOLATED) for d in range(len(places)) if d not in chosen):
            return False
    return True


def _candidates(subject: Subject, blocks: Sequence[Block]) -> Iterator[tuple[str, Collate]]:
    import torch

    batch = subject.collate(blocks)
    config = getattr(subject.module, "config", None)
    parameter = next(subject.module.parameters(), None) if subject.module is not None else None
    dtype = None if parameter is None else parameter.dtype
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    cached = batch.get("use_cache", getattr(config, "use_cache", False)) if isinstance(batch, Mapping) else False

    def own(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Collate:
        return lambda parts: change(dict(subject.collate(parts)))

    def without_mask(made: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in made.items() if key != "attention_mask"}

    if cached:
        yield "Pass use_cache=False.", own(lambda made: made | {"use_cache": False})
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        yield "Drop the 2-D attention_mask: do not pass it.", own(without_mask)
        if cached:
            yield (
                "Drop the 2-D attention_mask and pass use_cache=False.",
                own(lambda made: without_mask(made) | {"use_cache": False}),
            )
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() == 4:
        yield (
            "Pass an additive float mask instead of a bool one: "
            "torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, torch.finfo(model.dtype).min).",
            own(lambda made: made | {"attention_mask": _additive(made["attention_mask"], dtype)}),
        )
    if config is None:
        return
    off = "use_cache=False"
    yield (
        f"Pass position_ids that start anew in each segment, no attention_mask, and {off}: cloison.collate(blocks).",
        signal("positions", "off"),
    )
    padding = getattr(config, "pad_token_id", None)
    if isinstance(padding, int):
        yield (
            f"Let positions start at {padding + 1}, the model's padding_idx + 1, with no attention_mask and {off}: "
            f"cloison.collate(blocks, position_start={padding + 1}).",
            lambda parts: _shifted(signal("positions", "off")(parts), padding + 1),
        )
    yield (
        f'Pass an additive float 4-D mask, position_ids and {off}: cloison.collate(blocks, kernel="mask").',
        signal("mask4d", "off", dtype),
    )
    yield from _with_windows(config, dtype)
    yield (
        f"Pass position_ids of [4, rows, width], the text plane first, and {off}: cloison.forms.hf.mrope_positions(segments).",
        lambda parts: _planes(signal("positions", "off")(parts)),
    )


def _with_windows(config: Any, dtype: Any) -> Iterator[tuple[str, Collate]]:
    from cloison.forms.hf import mask4d, masks_by_layer_type

    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    window = getattr(text, "sliding_window", None)
    if isinstance(window, int):
        yield (
            f"Build the window into an additive float 4-D mask: cloison.forms.hf.mask4d(segments, window={window}).",
            lambda parts: (
                signal("positions", "off")(parts) | {"attention_mask": mask4d(flat_segments(parts), dtype, window=window)}
            ),
        )
    if getattr(text, "layer_types", None):
        yield (
            "Pass one additive mask for each layer type: "
            "attention_mask=cloison.forms.hf.masks_by_layer_type(segments, model.config).",
            lambda parts: (
                signal("positions", "off")(parts) | {"attention_mask": masks_by_layer_type(flat_segments(parts), text, dtype)}
            ),
        )


def _additive(mask: Any, dtype: Any) -> Any:
    import torch

    dtype = dtype or torch.float32
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _shifted(batch: Batch, start: int) -> Batch:
    return {**batch, "position_ids": batch["position_ids"] + start}


def _planes(batch: Batch) -> Batch:
    import torch

    return {**batch, "position_ids": torch.stack([batch["position_ids"]] * 4)}
