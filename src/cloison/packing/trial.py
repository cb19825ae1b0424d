"""A trial: what a job would do, and how long it would take, told from a timed sample of its sources. Nothing stays on disk."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from cloison.packing.engines import IN_THIS_PROCESS, starting
from cloison.packing.job import fill_blocks
from cloison.packing.plain import error_from_plain
from cloison.packing.planned import Planned, plan_tokens, refuse_unplannable
from cloison.packing.tokens import Progress, Tokens, fill_store, skipped_records, token_key, write_store
from cloison.packing.worker import Done
from cloison.places import Place, place, sizes
from cloison.spec import PackSpec
from cloison.store.files import file_sha256, read_json
from cloison.store.shards import blocks_per_shard
from cloison.store.tokens import TokenStore, open_token_store
from cloison.text.encoder import Encoder
from cloison.text.sources import Source, open_sources

__all__ = ["Trial", "try_job"]

_SAMPLED_CHUNKS = 8
"""Chunks of a sample at least, and twice as many as there are workers: what is not more is read whole."""

_WRITTEN_SHARDS = 4
_LONG_S = 1.0


@dataclass(frozen=True)
class Trial:
    """What a job would do.

    Attributes:
        planned: the plan of what was read: of everything where ``exact``, else of a sample of the chunks.
        exact: whether all was read, or its tokens were there.
        num_chunks, sampled_chunks: of the sources.
        source_bytes: of the source files.
        num_samples, num_tokens: what goes into blocks. These and what follows are estimates where not ``exact``.
        num_blocks, num_shards: what would be written.
        token_bytes, block_bytes: on disk, of the token store and of the blocks; 0 tokens where they are there.
        workers: processes, or jobs at once on a cluster.
        tokenise_s, plan_s, write_s: seconds that each step would take, by what the sample took on this machine, and that
            workers do not wait for each other.
    """

    planned: Planned
    exact: bool
    num_chunks: int
    sampled_chunks: int
    source_bytes: int
    num_samples: int
    num_tokens: int
    num_blocks: int
    num_shards: int
    token_bytes: int
    block_bytes: int
    workers: int
    tokenise_s: float
    plan_s: float
    write_s: float

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.tokenise_s + self.plan_s + self.write_s


def try_job(
    sources: Sequence[str],
    spec: PackSpec,
    *,
    tokenizer: Any = None,
    tokens: Place | None = None,
    workers: int = 1,
    at_once: int = 1,
    on_error: str = "raise",
    progress: Progress | None = None,
) -> Trial:
    """Return what `cloison.pack` would do, from a sample of the chunks, or from all where they are few.

    Args:
        tokens: a folder of token stores; where it holds some of sources of these sizes, the whole job is planned from there.
        workers: that the job would have, here or on a cluster.
        at_once: processes for the sample, on this machine.

    Raises:
        CloisonError: as the job would, of what is in the sample.

    Cost: the sample is read, tokenised, planned and written to a temporary folder: some seconds, and some tens of MB.
    """
    refuse_unplannable(spec)
    done: list[Done] = []
    with (
        tempfile.TemporaryDirectory(prefix="cloison-") as scratch,
        starting("local", workers=at_once, report=done.append) as engine,
    ):
        home = Path(scratch)
        opened = open_sources(sources, spec, spool=home)
        encoder = Encoder(tokenizer, spec, opened.reading)
        try:
            if encoder.needs_date and spec.date is None:
                spec = spec.with_(date=date.today().isoformat())
                encoder.close()
                encoder = Encoder(tokenizer, spec, opened.reading)
            store = None if tokens is None else _made(tokens, opened, encoder)
            sample, scale, spent = opened, 1.0, 0.0
            made = store is None
            if store is None:
                sample, scale = _sample(opened, max(_SAMPLED_CHUNKS, 2 * at_once))
                began = time.perf_counter()
                _, chunks = fill_store(sample, spec, home, encoder, engine, on_error, progress)
                spent = (
                    time.perf_counter() - began if engine.in_this_process(len(sample.jobs)) else sum(d.seconds for d in done)
                )
                write_store(home, "", sample, ["0" * 64 for _ in sample.files], encoder, chunks)
                store = open_token_store(home)
                assert store is not None
        finally:
            encoder.close()
        skipped = skipped_records(store)
        if skipped and on_error == "raise":
            raise error_from_plain(skipped[0]["error"])
        found = Tokens(store, "", spec, skipped, opened.describe(), len(sample.jobs) if made else 0, sample.jobs)
        planned, plan_s = _plan(found, home)
        write_s, block_bytes, share = _write(planned, home)
    blocks = round(planned.num_blocks * scale)
    return Trial(
        planned=planned,
        exact=scale == 1,
        num_chunks=len(opened.jobs),
        sampled_chunks=len(sample.jobs) if made else 0,
        source_bytes=sum(file.size_bytes for file in opened.files),
        num_samples=round(planned.ledger.samples_kept * scale),
        num_tokens=round(planned.num_tokens * scale),
        num_blocks=blocks,
        num_shards=-(-blocks // blocks_per_shard(spec.capacity, blocks)),
        token_bytes=round(sum(chunk["size_bytes"] for chunk in store.chunks) * scale) if made else 0,
        block_bytes=round(block_bytes / share * scale),
        workers=workers,
        tokenise_s=spent * scale / workers,
        plan_s=plan_s * scale,
        write_s=write_s / share * scale / workers,
    )


def _made(tokens: Place, opened: Source, encoder: Encoder) -> TokenStore | None:
    """Return the store of these sources, where it is made already; they are read only where one has files of their sizes."""
    there = [file.size_bytes for file in opened.files]
    for name, size in sizes(tokens).items():
        facts = read_json(tokens / name / "store.json") if size == -1 else None
        if isinstance(facts, dict) and [source["size_bytes"] for source in facts["sources"]] == there:
            return open_token_store(
                tokens / token_key(opened, [file_sha256(place(file.path)) for file in opened.files], encoder)
            )
    return None


def _sample(opened: Source, most: int) -> tuple[Source, float]:
    """Return the source with ``most`` of its chunks, evenly over all, and how much more there is, by bytes."""
    total = len(opened.jobs)
    if total <= most:
        return opened, 1.0
    chunks = Counter(job["path"] for job in opened.jobs)

    def bytes_of(job: Mapping[str, Any]) -> float:
        if job["kind"] == "jsonl" and not job["codec"]:
            return float(min(job["stop"], job["size_bytes"]) - job["start"])
        return float(job["size_bytes"] / chunks[job["path"]])

    jobs = tuple(opened.jobs[(2 * number + 1) * total // (2 * most)] for number in range(most))
    read = sum(map(bytes_of, jobs))
    return replace(opened, jobs=jobs), sum(file.size_bytes for file in opened.files) / max(1.0, read)


def _plan(tokens: Tokens, home: Path) -> tuple[Planned, float]:
    """Return the plan, which is written into ``home``, and the seconds that it takes once what it needs is loaded."""
    (home / "work").mkdir()
    for _ in range(2):
        began = time.perf_counter()
        planned = plan_tokens(tokens, home / "work")
        spent = time.perf_counter() - began
        if spent > _LONG_S:
            break
    return planned, spent


def _write(planned: Planned, home: Path) -> tuple[float, int, float]:
    """Write some of the blocks into ``home``, and return the seconds, the bytes, and which share of all blocks it was."""
    if planned.num_blocks == 0:
        return 0.0, 0, 1.0
    out = home / "out"
    out.mkdir()
    began = time.perf_counter()
    records, _ = fill_blocks(planned, out, home / "work", IN_THIS_PROCESS, None, most=_WRITTEN_SHARDS)
    spent = time.perf_counter() - began
    shards = [record["shard"] for record in records]
    return spent, sum(s["size_bytes"] for s in shards), sum(s["num_blocks"] for s in shards) / planned.num_blocks
