"""The plan of a job: written by pieces, read in parts, and made without holding what it is made of."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import PackSpec
from cloison.packing import local
from cloison.packing.engines import Engine
from cloison.packing.plan_files import PlanFiles, write_piece
from cloison.packing.planned import plan_in_memory, plan_tokens
from cloison.packing.select import source_ids
from cloison.packing.tokens import Tokens, ensure_tokens
from cloison.planning.stretches import Stretch
from tests.packing.corpus import write_lines


def stretches(draw: st.DrawFn, split: bool, ordered: bool) -> list[Stretch]:
    out = []
    for _ in range(draw(st.integers(0, 3))):
        sizes = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
        n = int(sizes.sum())
        numbers = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)))
        out.append(
            Stretch(
                sizes,
                numbers.astype(np.uint32),
                (numbers % 7).astype(np.int32) if split else None,
                (numbers % 50 + 1).astype(np.int32),
                numbers * 3 if ordered else None,
            )
        )
    return out


def flat(parts: Sequence[Stretch], name: str) -> list[int]:
    return [number for part in parts if getattr(part, name) is not None for number in getattr(part, name).tolist()]


@st.composite
def plans(draw: st.DrawFn) -> list[list[Stretch]]:
    split, ordered = draw(st.booleans()), draw(st.booleans())
    return [stretches(draw, split, ordered) for _ in range(draw(st.integers(1, 4)))]


@settings(max_examples=60, deadline=None)
@given(pieces=plans(), data=st.data())
def test_what_is_written_by_pieces_is_read_in_any_part(
    pieces: list[list[Stretch]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    written = [write_piece(folder, index, iter(piece)) for index, piece in enumerate(pieces)]
    files = PlanFiles(folder, [one.blocks for one in written], [one.tokens for one in written])
    everything = [stretch for piece in pieces for stretch in piece]
    read = list(files.stretches())
    for name in ("sizes", "sample_ids", "starts", "seq_lengths"):
        assert flat(read, name) == flat(everything, name)
    before = np.cumsum([0, *(one.tokens for one in written)]).tolist()
    assert flat(read, "begins") == [
        number + before[index] for index, piece in enumerate(pieces) for number in flat(piece, "begins")
    ]
    total = sum(files.blocks)
    assert total == len(flat(everything, "sizes")) and sum(one.segments for one in written) == len(flat(read, "sample_ids"))
    if not total:
        return
    first = data.draw(st.integers(0, total - 1))
    last = data.draw(st.integers(first + 1, total))
    sizes = flat(everything, "sizes")
    here = slice(sum(sizes[:first]), sum(sizes[:last]))
    part = files.between(first, last)
    assert part.sizes.tolist() == sizes[first:last]
    assert part.sample_ids.tolist() == flat(everything, "sample_ids")[here]
    assert part.seq_lengths.tolist() == flat(everything, "seq_lengths")[here]
    assert flat([part], "starts") == flat(everything, "starts")[here]


@given(st.integers(0, 40), st.sets(st.integers(0, 39)))
def test_ids_that_pass_over_what_is_gone_are_those_of_the_sources(samples: int, gone: set[int]) -> None:
    missing = np.array(sorted(index for index in gone if index < samples), np.int64)
    stay = np.setdiff1d(np.arange(samples), missing)
    assert source_ids(np.arange(stay.size, dtype=np.uint32), missing).tolist() == stay.tolist()


@pytest.mark.parametrize("policy", ["look_ahead", "best_fit", "wrap"])
@pytest.mark.parametrize("order", ["shuffled", "input"])
def test_the_plan_on_disk_is_the_plan_in_memory(tmp_path: Path, policy: str, order: str) -> None:
    random = np.random.default_rng(5)
    records: list[dict[str, Any]] = []
    for number in range(300):
        ids = random.integers(0, 90, random.integers(0, 50)).tolist()
        records.append({"input_ids": ids, "labels": [-100] * len(ids) if number % 9 == 4 else ids})
    records[17] = {"input_ids": "broken"}
    source = write_lines(tmp_path / "a.jsonl", records)
    spec = PackSpec(32, policy=policy, order=order, overflow="split", split_prompts=True)
    tokens = ensure_tokens([str(source)], spec, tmp_path / "tokens", on_error="skip")
    work = tmp_path / "work"
    work.mkdir()
    planned, held = plan_tokens(tokens, work), plan_in_memory(tokens)
    blocks = planned.files.between(0, planned.num_blocks)
    assert blocks.sizes.tolist() == np.diff(held.plan.offsets).tolist()
    assert blocks.sample_ids.tolist() == held.selection.source_ids(held.plan.sample_ids).tolist()
    assert blocks.seq_lengths.tolist() == held.plan.seq_lengths.tolist()
    assert blocks.starts is not None and blocks.starts.tolist() == held.plan.starts.tolist()
    assert planned.split and planned.composition == held.plan.composition
    assert (planned.num_tokens, planned.lower_bound) == (held.plan.num_tokens, held.plan.lower_bound)
    assert planned.ledger.entries["skipped"].indices.tolist() == [17]
    assert planned.ledger.entries["nothing_to_train"].samples > 20
    kept = held.plan.ledger.entries["split"].indices
    assert planned.ledger.entries["split"].indices.tolist() == held.selection.source_ids(kept).tolist()


def held_while_planning(folder: Path, samples: int, policy: str) -> int:
    """Return the bytes that this process allocates to plan ``samples``, pieces apart: those are planned elsewhere."""
    group = 2000
    lengths = np.random.default_rng(0).integers(2, 6, samples)
    ids = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), pa.array(np.ones(lengths.sum(), np.int32))
    )
    folder.mkdir()
    pq.write_table(pa.table({"input_ids": ids}), folder / "a.parquet", row_group_size=group)
    tokens = ensure_tokens([str(folder / "a.parquet")], PackSpec(64, policy=policy), folder / "tokens")
    peaks = []

    def elsewhere(
        setup: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], *, scratch: Path, state: Any = None, threads: int = 1
    ) -> Iterator[dict[str, Any]]:
        peaks.append(tracemalloc.get_traced_memory()[1])
        records = list(local.run_jobs(setup, jobs, workers=1, scratch=scratch))
        gc.collect()
        tracemalloc.reset_peak()
        return iter(records)

    work = folder / "work"
    work.mkdir()
    planned = _planned(tokens, work, elsewhere)
    del planned
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    peaks.clear()
    planned = _planned(tokens, work, elsewhere)
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert planned.num_segments == samples
    return max(peaks) - before


def _planned(tokens: Tokens, work: Path, run: Any) -> Any:
    return plan_tokens(tokens, work, Engine(run, 2, apart=True))


@pytest.mark.parametrize("policy", ["look_ahead", "best_fit"])
def test_the_driver_holds_nothing_of_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """An array of one byte a sample would show."""
    monkeypatch.setattr("cloison.planning.stretches.STRETCH", 2000)
    few, many = held_while_planning(tmp_path / "few", 10_000, policy), held_while_planning(tmp_path / "many", 100_000, policy)
    assert many - few < 60_000, (few, many)
