"""Whereabouts: where in the sources a sample stands, file and line or row, worked out when somebody must be told.

Nothing is stored for it: the store knows how many samples each chunk has, and the chunk is read again up to the sample.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, TypeVar

from cloison.errors import CloisonError
from cloison.ledger import Ledger
from cloison.packing.tokens import Tokens
from cloison.text.sources import Where, read_chunk

__all__ = ["ledger_places", "placed", "whereabouts"]

_TOLD = 3
"""Samples whose place is told at most, of each kind."""

_READ_BYTES = 1 << 26
"""A chunk with more is not read through for a place: a compressed file may be hours of it."""

_Error = TypeVar("_Error", bound=CloisonError)


def whereabouts(tokens: Tokens, samples: Iterable[int]) -> dict[int, str]:
    """Return the place of each of ``samples`` as ``train.jsonl, line 17``: of those whose source is still there and unchanged.

    Cost: a read of each chunk that has one of them, up to the last of them there.
    """
    ends = list(accumulate(chunk["num_samples"] for chunk in tokens.store.chunks))
    wanted: dict[int, list[int]] = {}
    for sample in sorted(set(samples)):
        wanted.setdefault(bisect_right(ends, sample), []).append(sample)
    out: dict[int, str] = {}
    for chunk, here in wanted.items():
        if chunk < len(tokens.jobs):
            first = ends[chunk] - tokens.store.chunks[chunk]["num_samples"]
            found = _places(tokens.jobs[chunk], [sample - first for sample in here])
            out |= {number + first: place for number, place in found.items()}
    return out


def _places(job: Mapping[str, Any], numbers: Sequence[int]) -> dict[int, str]:
    """Return the place of the records of a chunk with these numbers, rising: of those that can still be read."""
    if "first" in job:  # rows, of which each is a sample
        return {number: str(Where(job["path"], "row", job["first"] + number)) for number in numbers}
    if job["stop"] - job["start"] > _READ_BYTES:
        return {number: f"{job['path']}, record {number:,} from 0" for number in numbers}
    out: dict[int, str] = {}
    try:
        for number, (where, _) in enumerate(islice(read_chunk(job), numbers[-1] + 1)):
            if number in numbers:
                out[number] = str(where)
    except (CloisonError, OSError):  # standard input is gone by now, and others may be: the number alone is told then
        pass
    return out


def placed(error: _Error, tokens: Tokens) -> _Error:
    """Return the error with the places of the first samples that it names."""
    told = whereabouts(tokens, error.samples[:_TOLD])
    if not told:
        return error
    said = "; ".join(f"sample {sample:,} is {where}" for sample, where in told.items())
    return type(error)(error.asked, f"{error.found} In the sources, {said}.", error.remedy, samples=error.samples)


def ledger_places(tokens: Tokens, ledger: Ledger) -> dict[str, dict[int, str]]:
    """Return by kind of the ledger's entries the places of their first samples; further pieces are where their sample is."""
    first = {kind: entry.indices[:_TOLD].tolist() for kind, entry in ledger.entries.items() if kind != "continuations"}
    told = whereabouts(tokens, (sample for samples in first.values() for sample in samples))
    return {kind: found for kind, samples in first.items() if (found := {s: told[s] for s in samples if s in told})}
