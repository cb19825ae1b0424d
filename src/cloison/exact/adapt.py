"""adapt: try the ways from cheap to costly on awkward blocks, and keep the first that is exact."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError, NotExactError, require
from cloison.exact import masks, mixers, own_attention, positions, rows, singles, varlen
from cloison.exact.adapter import Adapter
from cloison.exact.certificate import Certificate, set_up
from cloison.exact.facts import Facts, facts_of
from cloison.exact.probe import Measured, Reference, measure, reference
from cloison.exact.signals import way_of
from cloison.exact.ways import RUNGS, Way
from cloison.proof.blocks import synthetic, vocabulary

if TYPE_CHECKING:
    import torch

__all__ = ["adapt"]


def adapt(
    model: torch.nn.Module,
    blocks: Sequence[Block] | None = None,
    *,
    rungs: str = "adbcefg",
    seed: int = 0,
    show: bool = True,
) -> Adapter:
    require("torch", "hf")
    import torch

    unknown = sorted(set(rungs) - set(RUNGS))
    if unknown or not rungs:
        raise InputError(f"rungs are among {', '.join(RUNGS)}.", f"{rungs!r} has others or none.", 'Pass for example "adbc".')
    if not isinstance(model, torch.nn.Module):
        raise InputError("adapt takes a torch module.", f"It got a {type(model).__name__}.", "Pass the model itself.")
    was_training = model.training
    model.eval()
    try:
        ids = vocabulary(getattr(model, "config", None))
        blocks = synthetic(getattr(model, "config", None), seed=seed) if blocks is None else list(blocks)
        against = reference(model, blocks, ids, seed)
        device = next(model.parameters()).device
        longest = max((sample.input_ids for block in blocks for sample in block.samples()), key=len)
        sample = torch.from_numpy(longest.astype(np.int64))[None].to(device)
        facts = facts_of(model, sample, against.floor)
        tried: list[dict[str, Any]] = []
        for way in _ways(model, facts, rungs, against):
            found = measure(model, way, against)
            if found.leak <= against.floor and found.equality <= against.floor:
                certificate = Certificate(
                    set_up(model),
                    way.rung,
                    way.name,
                    {"equality": found.equality, "leak": found.leak, "floor": against.floor},
                    tuple(tried),
                    (),
                )
                if show:
                    sys.stderr.write(f"cloison: {certificate.line()}\n")
                return Adapter(model, way, certificate)
            tried.append({"way": way.name, "leak": found.leak, "equality": found.equality, "error": found.error})
    finally:
        model.train(was_training)
    raise NotExactError(
        f"adapt looked for a way to run {type(model).__name__} on packed blocks exactly.",
        "None is exact:\n" + "\n".join(_line(entry) for entry in tried) + "\n",
        "Train it unpacked, or with rung g allowed.",
    )


def _ways(model: torch.nn.Module, facts: Facts, rungs: str, against: Reference) -> Iterator[Way]:
    """Yield the ways of ``rungs``, in that order."""
    signals = {"a": varlen.signals, "b": positions.signals, "c": masks.signals, "d": own_attention.signals}
    for rung in rungs:
        if rung in signals:
            yield from map(way_of, signals[rung](facts))
        elif rung == "e":
            yield from mixers.search(model, [signal for base in "adbc" for signal in signals[base](facts)], against)
        elif rung == "f":
            yield from rows.ways()
        elif rung == "g":
            yield from singles.ways()


def _line(entry: dict[str, Any]) -> str:
    missed = entry["error"] or f"leak {entry['leak']:.2g}, equality {entry['equality']:.2g} (standard deviations)"
    return f"  {entry['way']}: {missed}"
