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
from cloison.packing.targets import choose, fill_targets, flat_ranges
from cloison.places import Place, Remote, fetched, place, size, sizes, stamp, together
from cloison.segments import IGNORE
from cloison.spec import PackSpec
from cloison.store.columns import BlockRows, Carried, schema
from cloison.store.files import file_sha256
from cloison.store.manifest import SHARD
from cloison.store.records import each, read_record, write_record
from cloison.store.shards import blocks_per_group, shard_name, write_shard
from cloison.store.tokens import TokenStore, open_token_store

__all__ = ["BATCH_TOKENS", "PLAN_ARRAYS", "Fill", "finished", "gather", "prepare", "run"]

BATCH_TOKENS = 1 << 19
"""Token positions that are gathered and written at once: the memory of this step is some tens of bytes for each."""

_RECORD = {"index": "count", "shard": SHARD, "counts": each("count")}

PLAN_ARRAYS = ("offsets", "sample_ids", "starts", "seq_lengths")


@dataclass(frozen=True, eq=False)
class Fill:
    """What all shards share: the store, the plan's arrays (`PLAN_ARRAYS`), and how blocks are written."""

    spec: PackSpec
    store: TokenStore
    plan: Mapping[str, npt.NDArray[Any]]
    out: Place
    work: Place
    carried: tuple[Carried, ...]
    split: bool
    weighted: bool
    blocks_per_shard: int


def prepare(setup: Mapping[str, Any]) -> Fill:
    """Return what all shards share, from plain data."""
    store = open_token_store(place(setup["tokens"]))
    assert store is not None, "the token store is made before blocks are written"
    work = place(setup["work"])
    plan = {name: np.load(fetched(work / f"{name}.npy"), mmap_mode="r") for name in PLAN_ARRAYS}
    types = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(setup["types"])))
    carried = tuple(Carried(name, kind, types.field(name).type) for name, kind in setup["carried"])
    return Fill(
        PackSpec.from_dict(setup["spec"]),
        store,
        plan,
        place(setup["out"]),
        work,
        carried,
        setup["split"],
        setup["weighted"],
        setup["blocks_per_shard"],
    )


def run(fill: Fill, job: Mapping[str, Any]) -> dict[str, Any]:
    """Write shard ``job["index"]`` and return its record, which is also kept in the work folder."""
    index = int(job["index"])
    roles: Counter[str] = Counter()
    layout = schema(fill.carried, split=fill.split, weighted=fill.weighted)
    shard = write_shard(fill.out / shard_name(index), _batches(fill, index, roles), layout, fill.carried, fill.spec.capacity)
    record = {"index": index, "shard": shard.to_dict(), "counts": dict(roles)}
    path = fill.out / shard.name
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
    group = blocks_per_group(fill.spec.capacity)
    step = max(group, BATCH_TOKENS // fill.spec.capacity // group * group)
    first = index * fill.blocks_per_shard
    last = min(first + fill.blocks_per_shard, fill.plan["offsets"].size - 1)
    with ThreadPoolExecutor(1) as pool:  # gathers the next batch while this one is hashed, compressed and written
        coming: Future[BlockRows] | None = None
        for begin in range(first, last + step, step):
            ready, coming = coming, None
            if begin < last:
                coming = pool.submit(gather, fill, begin, min(begin + step, last), counts)
            if ready is not None:
                yield ready.result()


def gather(fill: Fill, begin: int, end: int, counts: Counter[str]) -> BlockRows:
    """Return blocks begin .. end - 1 of the plan, and add what they train, by role, to ``counts``."""
    offsets = fill.plan["offsets"][begin : end + 1]
    place = slice(int(offsets[0]), int(offsets[-1]))
    sample_ids = fill.plan["sample_ids"][place].astype(np.int64)
    starts = fill.plan["starts"][place].astype(np.int64)
    lengths = fill.plan["seq_lengths"][place].astype(np.int64)
    input_ids = fill.store.gather_ids(sample_ids, starts, lengths)
    spans, span_counts = fill.store.gather_spans(sample_ids)
    chosen = choose(spans, span_counts, fill.store.shapes(sample_ids), fill.spec.train_on)
    found = fill_targets(input_ids, starts, lengths, chosen, weighted=fill.weighted)
    for role, (targets, terminators) in found.roles.items():
        counts[f"targets:{role}"] += targets
        counts[f"terminators:{role}"] += terminators
    begins = np.cumsum(lengths) - lengths
    trained = np.add.reduceat((found.labels != IGNORE).astype(np.int64), begins) if lengths.size else lengths
    counts["targetless_segments"] += int((trained == 0).sum())
    across, across_counts = fill.store.gather_across(sample_ids)
    owner = np.repeat(np.arange(sample_ids.size), across_counts)
    at = across - starts[owner]
    inside = (at >= 0) & (at < lengths[owner])
    counts["straddles"] += int((found.labels[(begins[owner] + at)[inside]] != IGNORE).sum())
    return BlockRows(
        input_ids,
        found.labels,
        lengths.astype(np.int32),
        sample_ids,
        np.diff(offsets).astype(np.int64),
        starts.astype(np.int32) if fill.split else None,
        found.first_labels if fill.split else None,
        found.loss_weights,
        {column.name: _carried(fill.store, column, sample_ids, starts, lengths) for column in fill.carried},
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
