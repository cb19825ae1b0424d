"""From a token store to a plan: the job's decisions, before any block is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.ledger import Ledger
from cloison.packing.arrange import GONE, LENGTHS
from cloison.packing.engines import IN_THIS_PROCESS, Engine
from cloison.packing.plan_files import PlanFiles
from cloison.packing.select import Selection, select, settings_of
from cloison.packing.tokens import Progress, Tokens
from cloison.packing.whereabouts import placed
from cloison.places import Place, absolute
from cloison.planning.composition import Composition, composition_of
from cloison.planning.pieces import num_pieces
from cloison.planning.planner import plan_with
from cloison.planning.plans import Plan
from cloison.spec import PackSpec
from cloison.store.files import replacing

__all__ = ["InMemory", "Planned", "plan_in_memory", "plan_tokens", "refuse_unplannable"]


@dataclass(frozen=True, eq=False)
class Planned:
    """A job up to its plan: what is packed, and where it is written which sample goes where.

    Attributes:
        tokens: the token store and what it came from.
        files: the plan; its sample ids count all records of the sources.
        num_blocks, num_segments, num_tokens: in the plan.
        lower_bound: no plan of these samples has fewer blocks.
        split: a segment begins inside its sample.
        weighted: a target has a weight other than 1.
        ledger: from all records to the blocks.
        composition: how mixed the blocks are.
    """

    tokens: Tokens
    files: PlanFiles
    num_blocks: int
    num_segments: int
    num_tokens: int
    lower_bound: int
    split: bool
    weighted: bool
    ledger: Ledger
    composition: Composition

    @property
    def utilization(self) -> float:
        """Valid tokens / (blocks x capacity); 1 for a plan without blocks."""
        return self.num_tokens / (self.num_blocks * self.tokens.spec.capacity) if self.num_blocks else 1.0

    @property
    def gap(self) -> float:
        """(blocks - lower bound) / lower bound: 0 is proven optimal."""
        return (self.num_blocks - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0


def refuse_unplannable(spec: PackSpec) -> None:
    """Return when samples could be planned under ``spec``: asked before hours of reading and tokenising, not after.

    Raises:
        InputError: an unknown policy, or a capacity, align or limit that no block can keep.
    """
    plan_with(settings_of(spec.with_(overflow="truncate")), np.zeros(0, np.int64))


def plan_tokens(tokens: Tokens, work: Place, engine: Engine = IN_THIS_PROCESS, progress: Progress | None = None) -> Planned:
    """Return the plan of a token store under its spec, which is written into ``work``.

    Cost: memory for a chunk of the store, a stretch of the plan, and what the ledger lists; where a piece is planned, what
    `cloison.planning.pieces` says. Disk: 4 bytes a sample, and 8 to 20 a segment.
    """
    spec = tokens.spec
    with replacing(work / LENGTHS, durable=False) as part, part.open("wb") as file:  # every run makes them
        chosen = _selected(tokens, lambda lengths: file.write(lengths.astype(np.int32).data))
    with replacing(work / GONE, durable=False) as part:
        part.write_bytes(chosen.gone.data)
    setup = {"step": "plan", "spec": spec.to_dict(), "work": str(absolute(work)), "records": chosen.ledger.samples_in}
    jobs = [{"index": index} for index in range(num_pieces(settings_of(spec), chosen.num_items))]
    where = engine if engine.apart else IN_THIS_PROCESS  # its compiled functions run on threads, and load for a second
    records: dict[int, dict[str, Any]] = {}
    for record in where.run(setup, jobs, scratch=work, threads=max(2, engine.workers)):
        records[record["index"]] = record
        if progress and len(jobs) > 1:
            progress("planning", len(records), len(jobs))
    found = [records[job["index"]] for job in jobs]
    files = PlanFiles(work, [one["blocks"] for one in found], [one["tokens"] for one in found])
    return Planned(
        tokens,
        files,
        sum(files.blocks),
        sum(one["segments"] for one in found),
        sum(files.tokens),
        found[0]["lower_bound"],
        any(one["split"] for one in found),
        chosen.weighted,
        chosen.ledger.then(Ledger.from_dict(found[0]["ledger"]), chosen.source_ids).verify(),
        composition_of(files.stretches),
    )


@dataclass(frozen=True, eq=False)
class InMemory:
    """The plan of a token store, held whole: its sample ids count the samples that are in ``selection``."""

    tokens: Tokens
    selection: Selection
    plan: Plan


def plan_in_memory(tokens: Tokens) -> InMemory:
    """Return the plan of a token store under its spec. Nothing is written."""
    lengths: list[npt.NDArray[np.int64]] = []
    chosen = _selected(tokens, lengths.append)
    return InMemory(tokens, chosen, plan_with(settings_of(tokens.spec), iter(lengths)))


def _selected(tokens: Tokens, put: Callable[[npt.NDArray[np.int64]], object]) -> Selection:
    """Return what `select` does of all records but the skipped; its errors say where in the sources the samples are."""
    try:
        return select(tokens.store, [skip["index"] for skip in tokens.skipped], tokens.spec, put)
    except InputError as error:
        raise placed(error, tokens) from None
