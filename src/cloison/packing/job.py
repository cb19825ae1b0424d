"""The job: sources to a packed data set, through the token store and a plan, by steps that can stop at any moment.

    sources --tokenise--> token store --select, plan--> plan --fill--> block shards --> manifest

Each arrow is skipped where its result is there and is what was recorded. The manifest comes last: without it there is no data
set, and the same call goes on where the last one stopped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cloison.errors import CloisonError, InputError, SpecError
from cloison.packing import fill
from cloison.packing.begun import forget_beginning, note_beginning, with_its_day
from cloison.packing.carried import carried_columns
from cloison.packing.engines import Engine, EngineChoice, Report, starting
from cloison.packing.finish import manifest_of
from cloison.packing.folder import refuse_foreign, working_in
from cloison.packing.planned import Planned, plan_tokens, refuse_unplannable
from cloison.packing.tokens import Progress, Tokens, ensure_tokens
from cloison.packing.writers import versions
from cloison.places import Place, absolute, beside, forget, place
from cloison.spec import PackSpec, need_spec
from cloison.store.columns import RESERVED
from cloison.store.files import sweep
from cloison.store.manifest import write_manifest
from cloison.store.packed import Packed, open
from cloison.store.shards import blocks_per_shard

__all__ = ["Source", "as_list", "fill_blocks", "pack", "run_job"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, folder, glob or URL, or several; "-" is standard input."""


def pack(
    source: Source,
    out: str | os.PathLike[str],
    spec: PackSpec,
    *,
    tokenizer: Any = None,
    workers: int | None = None,
    tokens: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    engine: EngineChoice = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Return the packed data set of ``source``, whole at ``out``: the same bytes for any workers, crashes and restarts.

    Args:
        source: a file, folder or glob (or several) in any form that `cloison.text.sources` reads, on disk or by URL
            (``s3://bucket/data/*.jsonl.gz``); "-" is standard input.
        out: a folder or URL where nothing is, or what an earlier call with the same arguments left.
        spec: every choice that shapes the output.
        tokenizer: a path, a ``tokenizers.Tokenizer`` or a transformers tokenizer; None for sources that are token ids.
        workers: processes; on Ray, jobs under way at once. None: all in this process; on Ray, all that the cluster can do.
        tokens: where token stores are kept; by default ``tokens`` beside ``out``. A second call with another capacity, policy,
            seed or ``train_on`` finds its tokens there.
        on_error: "skip" leaves broken records out and lists them in the ledger.
        engine: where the jobs run: "local" (this machine), "ray", or a function ``engine(do, jobs)`` that returns ``do(job)``
            of every job in any order, from processes that see the same files: ``lambda do, jobs: pool.map(do, jobs)``.
        address: of the Ray cluster: "HOST:PORT", or "auto" on one of its machines. None: what RAY_ADDRESS names, else a cluster
            on this machine for this call only.
        progress: called with (what, done, of how many).

    Raises:
        InputError: the sources have no record.
        RecordError: a broken record, and ``on_error="raise"``.
        OverlongError: samples longer than the capacity, and no overflow policy.
        ChangedError: a source, or a file of an earlier run, changed.
        StoreError: ``out`` holds something else, is in use by another run, or cannot be written; no cluster answers; a worker
            does not see the files.

    Cost: memory of a few hundred MB in this process and in each worker, whatever the input; where a policy other than
    "look_ahead" plans, 12 to 47 bytes a sample (docs/scale.md). Disk: the token store holds 4 bytes a token and 20 a span,
    uncompressed.
    """
    return run_job(
        source,
        out,
        spec,
        tokenizer=tokenizer,
        workers=workers,
        tokens=tokens,
        on_error=on_error,
        engine=engine,
        address=address,
        progress=progress,
    )[0]


def run_job(
    source: Source,
    out: str | os.PathLike[str],
    spec: PackSpec,
    *,
    tokenizer: Any = None,
    workers: int | None = None,
    tokens: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
    engine: EngineChoice = "local",
    address: str | None = None,
    progress: Progress | None = None,
    report: Report | None = None,
) -> tuple[Packed, Tokens]:
    """Do what `pack` does, tell ``report`` of every chunk and shard that was made, and return also what was read."""
    if on_error not in ("raise", "skip"):
        raise InputError("on_error is raise or skip.", f"It is {on_error!r}.", "Pick one of them.")
    spec = need_spec(spec)
    if any(name in RESERVED for name in spec.carry):
        raise SpecError(
            f"carry names columns that go along; {', '.join(RESERVED)} are the format's own.",
            f"It names {', '.join(name for name in spec.carry if name in RESERVED)}.",
            "Rename the column, or leave it out.",
        )
    refuse_unplannable(spec)
    with starting(engine, workers=workers, address=address, report=report) as ready:
        folder = place(out)
        refuse_private([*as_list(source), str(folder)], ready)
        refuse_foreign(folder, spec)
        spec = with_its_day(folder, spec)
        home = place(tokens) if tokens is not None else beside(folder, "tokens")
        return _run(as_list(source), folder, spec, home, tokenizer, ready, on_error, progress)


def _run(
    sources: list[str],
    folder: Place,
    spec: PackSpec,
    home: Place,
    tokenizer: Any,
    engine: Engine,
    on_error: str,
    progress: Progress | None,
) -> tuple[Packed, Tokens]:
    noted = False

    def begun(resolved: PackSpec, files: Sequence[tuple[str, str]]) -> None:
        nonlocal noted
        note_beginning(folder, resolved, files)
        noted = True

    try:
        found = ensure_tokens(
            sources, spec, home, tokenizer=tokenizer, engine=engine, on_error=on_error, progress=progress, begun=begun
        )
        fingerprint = found.spec.fingerprint(found.key, versions(found.spec.policy))
        with working_in(folder, fingerprint) as work:
            if work is not None:
                planned = plan_tokens(found, work.place, engine, progress)
                records, carried = fill_blocks(planned, folder, work.place, engine, progress)
                manifest = manifest_of(planned, fingerprint, records, carried, folder)
                work.verify()
                write_manifest(folder, manifest)
    except CloisonError:
        if noted:
            forget_beginning(folder)
        raise
    forget(found.store.folder)
    return open(folder), found


def refuse_private(places: Sequence[str], engine: Engine) -> None:
    """Return unless several processes would work on a file system that lives in one.

    Raises:
        InputError: they would.
    """
    private = next((one for one in places if one.startswith("memory://")), None)
    if private is not None and (engine.apart or engine.workers > 1):
        raise InputError(
            "workers are processes of their own.",
            f"{private} is in the memory of this one.",
            "Pass workers=1 of the local engine, or name another file system.",
        )


def as_list(source: Source) -> list[str]:
    """Return one or several sources as a list of paths."""
    listed = [source] if isinstance(source, (str, os.PathLike)) else [] if hasattr(source, "to_parquet") else list(source)
    if isinstance(source, Mapping) or not all(isinstance(one, (str, os.PathLike)) for one in listed) or not listed:
        raise InputError(
            "a source is the path of a file or folder, a glob or a URL, or several.",
            f"It is a {type(source).__name__}{f' of {type(listed[0]).__name__}' if listed else ''}.",
            'Write the records to a file (datasets and pandas: data.to_parquet("records.parquet")) and pass its path; a few '
            "stay in memory: cloison.pack_samples([cloison.encode(record, tokenizer) for record in records], capacity=...).",
        )
    return [os.fspath(one) for one in listed]


def fill_blocks(
    planned: Planned, out: Place, work: Place, engine: Engine, progress: Progress | None, most: int | None = None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Write the shards that are not there, and return the records of all, and the carried columns' kinds.

    Args:
        most: no more than so many shards, the first ones.
    """
    spec, files = planned.tokens.spec, planned.files
    kinds, types = carried_columns(planned.tokens.store, spec.carry)
    size = blocks_per_shard(spec.capacity, planned.num_blocks)
    setup = {
        "step": "fill",
        "spec": spec.to_dict(),
        "tokens": str(absolute(planned.tokens.store.folder)),
        "plan": {"blocks": files.blocks, "tokens": files.tokens},
        "out": str(absolute(out)),
        "work": str(absolute(work)),
        "carried": list(kinds.items()),  # in order, which the file of a setup keeps of lists only
        "types": types.serialize().to_pybytes().hex(),
        "split": planned.split,
        "weighted": planned.weighted,
        "blocks_per_shard": size,
    }
    total = -(-planned.num_blocks // size)
    total = total if most is None else min(total, most)
    records = fill.finished(out, work, total)
    todo = [{"index": index} for index in range(total) if index not in records]
    try:
        for record in engine.run(setup, todo, scratch=work, threads=2):
            records[record["index"]] = record
            if progress:
                progress("writing blocks", len(records), total)
    finally:
        sweep(out, alone=True)  # of workers that had to leave
        sweep(work, alone=True)
    return [records[index] for index in range(total)], kinds
