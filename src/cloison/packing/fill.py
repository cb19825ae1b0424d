"""The step that writes blocks: one shard of a plan, gathered from the token store. A pure function of its plain-data job.

``prepare`` opens what all shards share; ``run`` writes one. Nothing here knows which engine calls it, or how many of it run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloison.errors import StoreError
from cloison.packing.plan_files import PlanFiles
from cloison.packing.targets import choose, fill_targets, flat_ranges
from cloison.places import Place, Remote, place, size, sizes, stamp, together
from cloison.planning.stretches import Stretch
from cloison.segments import IGNORE
from cloison.spec import PackSpec
from cloison.store.columns import BlockRows, Carried, schema
from cloison.store.files import file_sha256
from cloison.store.manifest import SHARD
from cloison.store.records import each, read_record, write_record
from cloison.store.shards import blocks_per_group, shard_name, write_shard
from cloison.store.tokens import TokenStore, open_token_store

__all__ = ["BATCH_TOKENS", "Fill", "Origin", "finished", "gather", "prepare", "run"]

BATCH_TOKENS = 1 << 19
"""Token positions that are gathered and written at once: the memory of this step is some tens of bytes for each."""

_RECORD = {"index": "count", "shard": SHARD, "counts": each("count")}


@dataclass(frozen=True, eq=False)
class Origin:
    """What blocks are gathered from.

    Attributes:
        spec: says what is trained.
        store: the samples.
        carried: columns that go along.
        split: a segment begins inside its sample.
        weighted: a target has a weight other than 1.
    """

    spec: PackSpec
    store: TokenStore
    carried: tuple[Carried, ...]
    split: bool
    weighted: bool

    @property
    def layout(self) -> pa.Schema:
        """The columns of a file of these blocks."""
        return schema(self.carried, split=self.split, weighted=self.weighted)


@dataclass(frozen=True, eq=False)
class Fill:
    """What all shards share: what they are gathered from, the plan, and where they go."""

    origin: Origin
    plan: PlanFiles
    out: Place
    work: Place
    blocks_per_shard: int


def prepare(setup: Mapping[str, Any]) -> Fill:
    """Return what all shards share, from plain data."""
    store = open_token_store(place(setup["tokens"]))
    assert store is not None, "the token store is made before blocks are written"
    work = place(setup["work"])
    types = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(setup["types"])))
    carried = tuple(Carried(name, kind, types.field(name).type) for name, kind in setup["carried"])
    origin = Origin(PackSpec.from_dict(setup["spec"]), store, carried, setup["split"], setup["weighted"])
    return Fill(origin, PlanFiles(work, **setup["plan"]), place(setup["out"]), work, setup["blocks_per_shard"])


def run(fill: Fill, job: Mapping[str, Any]) -> dict[str, Any]:
    """Write shard ``job["index"]`` and return its record, which is also kept in the work folder."""
    index = int(job["index"])
    roles: Counter[str] = Counter()
    path, origin = fill.out / shard_name(index), fill.origin
    shard = write_shard(path, _batches(fill, index, roles), origin.layout, origin.carried, origin.spec.capacity)
    record = {"index": index, "shard": shard.to_dict(), "counts": dict(roles)}
    if isinstance(path, Remote):
        record["stamp"] = list(stamp(path))
    write_record(fill.work / f"{shard.name}.json", record)
    return record


def finished(out: Place, work: Place, total: int) -> dict[int, dict[str, Any]]:
    """Return the records of those of ``total`` shards that an earlier run finished and whose content is as recorded."""
    noted = sizes(work)
    indices = [index for index in range(total) if f"{shard_name(index)}.json" in noted]
    records = together(lambda index: _finished(out, work, index), indices, far=isinstance(out, Remote))
    return {index: record for index, record in zip(indices, records, strict=True) if record is not None}


def _finished(out: Place, work: Place, index: int) -> dict[str, Any] | None:
    path = out / shard_name(index)
    try:
        record = read_record(work / f"{shard_name(index)}.json", _RECORD)
    except StoreError:  # a damaged record: the shard is written anew
        return None
    if record is None or size(path) is None:
        return None
    if isinstance(path, Remote) and list(stamp(path)) == record.get("stamp"):
        return record  # the very object that was put
    return record if file_sha256(path) == record["shard"]["sha256"] else None


def _batches(fill: Fill, index: int, counts: Counter[str]) -> Iterator[BlockRows]:
    capacity = fill.origin.spec.capacity
    group = blocks_per_group(capacity)
    step = max(group, BATCH_TOKENS // capacity // group * group)
    first = index * fill.blocks_per_shard
    last = min(first + fill.blocks_per_shard, sum(fill.plan.blocks))

    def gathered(begin: int) -> BlockRows:
        return gather(fill.origin, fill.plan.between(begin, min(begin + step, last)), counts)

    with ThreadPoolExecutor(1) as pool:  # gathers the next batch while this one is hashed, compressed and written
        coming: Future[BlockRows] | None = None
        for begin in range(first, last + step, step):
            ready, coming = coming, None
            if begin < last:
                coming = pool.submit(gathered, begin)
            if ready is not None:
                yield ready.result()


def gather(origin: Origin, blocks: Stretch, counts: Counter[str]) -> BlockRows:
    """Return ``blocks``, whose sample ids count the samples of the store, and add what they train, by role, to ``counts``."""
    store = origin.store
    sample_ids = blocks.sample_ids.astype(np.int64)
    lengths = blocks.seq_lengths.astype(np.int64)
    starts = np.zeros_like(lengths) if blocks.starts is None else blocks.starts.astype(np.int64)
    input_ids = store.gather_ids(sample_ids, starts, lengths)
    spans, span_counts = store.gather_spans(sample_ids)
    chosen = choose(spans, span_counts, store.shapes(sample_ids), origin.spec.train_on)
    found = fill_targets(input_ids, starts, lengths, chosen, weighted=origin.weighted)
    for role, (targets, terminators) in found.roles.items():
        counts[f"targets:{role}"] += targets
        counts[f"terminators:{role}"] += terminators
    begins = np.cumsum(lengths) - lengths
    trained = np.add.reduceat((found.labels != IGNORE).astype(np.int64), begins) if lengths.size else lengths
    counts["targetless_segments"] += int((trained == 0).sum())
    across, across_counts = store.gather_across(sample_ids)
    owner = np.repeat(np.arange(sample_ids.size), across_counts)
    at = across - starts[owner]
    inside = (at >= 0) & (at < lengths[owner])
    counts["straddles"] += int((found.labels[(begins[owner] + at)[inside]] != IGNORE).sum())
    return BlockRows(
        input_ids,
        found.labels,
        lengths.astype(np.int32),
        sample_ids,
        blocks.sizes,
        starts.astype(np.int32) if origin.split else None,
        found.first_labels if origin.split else None,
        found.loss_weights,
        {column.name: _carried(store, column, sample_ids, starts, lengths) for column in origin.carried},
    )


def _carried(
    store: TokenStore,
    column: Carried,
    sample_ids: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> pa.Array:
    if column.kind == "segment":
        return store.gather_column(column.name, column.type, sample_ids)
    whole = store.gather_column(column.name, pa.list_(column.type), sample_ids)
    return whole.values.take(pa.array(flat_ranges(whole.offsets.to_numpy()[:-1] + starts, lengths)))
