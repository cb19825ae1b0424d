"""The step that plans: which segments share a block, a piece of the plan at a time. A pure function of its plain-data job.

``prepare`` maps what all pieces share: the lengths, a file of int32; ``run`` writes one. Nothing here knows which engine calls
it, or how many of it run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.packing.plan_files import write_piece
from cloison.packing.select import settings_of, source_ids
from cloison.places import Place, fetched, place
from cloison.planning.items import Items
from cloison.planning.pieces import plan_piece
from cloison.planning.planner import items_of
from cloison.planning.plans import Settings
from cloison.spec import PackSpec
from cloison.store.files import store_errors

__all__ = ["GONE", "LENGTHS", "Arrange", "prepare", "run"]

LENGTHS = "lengths.int32"
"""The tokens of each sample that goes to planning."""

GONE = "gone.int64"
"""The source indices of those that do not."""


@dataclass(frozen=True, eq=False)
class Arrange:
    """What all pieces share.

    Attributes:
        gone: source indices, rising, that no id of ``items`` counts.
        id_type: of ids that count all records of the sources.
    """

    settings: Settings
    items: Items
    gone: npt.NDArray[np.int64]
    id_type: type[np.uint32] | type[np.int64]
    work: Place


def prepare(setup: Mapping[str, Any]) -> Arrange:
    """Return what all pieces share, from plain data."""
    work, settings = place(setup["work"]), settings_of(PackSpec.from_dict(setup["spec"]))
    lengths, gone = _mapped(work / LENGTHS, np.int32), np.array(_mapped(work / GONE, np.int64))
    id_type = np.uint32 if setup["records"] <= 1 << 32 else np.int64
    return Arrange(settings, items_of(settings, lengths), gone, id_type, work)


def run(arrange: Arrange, job: Mapping[str, Any]) -> dict[str, Any]:
    """Write piece ``job["index"]`` and return its size; piece 0 tells the account and the bound of the whole too."""
    index = int(job["index"])
    piece = plan_piece(arrange.settings, arrange.items, index)
    named = (
        replace(stretch, sample_ids=source_ids(stretch.sample_ids, arrange.gone).astype(arrange.id_type, copy=False))
        for stretch in piece.stretches
    )
    record = {"index": index, **asdict(write_piece(arrange.work, index, named))}
    return record if index else record | {"ledger": piece.ledger.to_dict(), "lower_bound": int(piece.lower_bound)}


def _mapped(file: Place, kind: Any) -> npt.NDArray[Any]:
    with store_errors(f"{file} cannot be read"):
        path = fetched(file)
        return np.asarray(np.memmap(path, kind, "r")) if path.stat().st_size else np.zeros(0, kind)
