"""The step that fills the token store: one chunk of the sources, read, encoded, written. A pure function of its plain-data job.

``prepare`` makes the encoder; ``run`` does one chunk. Nothing here knows which engine calls it, or how many of it run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloison.errors import ChangedError, RecordError
from cloison.packing.columnar import batch_unit, columnar_batches, token_parts
from cloison.packing.plain import error_to_plain
from cloison.places import Place, local_folder, place, stamp
from cloison.spec import PackSpec
from cloison.store.tokens import SPAN_LAYOUT, UNIT_TOKENS, Unit, raw_rows, write_chunk
from cloison.text.columnar import rows
from cloison.text.encoder import Encoded, Encoder
from cloison.text.shapes import Reading
from cloison.text.sources import Where, read_chunk
from cloison.text.streams import guarded
from cloison.text.targets import SHAPES, SPAN

__all__ = ["Tokenise", "prepare", "run"]

_TOLD = 100
"""Records of a chunk of which is told why they were skipped; a megabyte may hold half a million such."""

_UNIT_SAMPLES = 1 << 16

BATCH_RECORDS = 1024
"""Records that are encoded together."""


@dataclass(frozen=True, eq=False)
class Tokenise:
    """What all chunks share: the encoder, the spec, the store's folder, and what a broken record means."""

    encoder: Encoder
    spec: PackSpec
    folder: Place
    on_error: str


def prepare(setup: Mapping[str, Any]) -> Tokenise:
    """Return what all chunks share, from plain data."""
    spec = PackSpec.from_dict(setup["spec"])
    found = setup["reading"]
    reading = None if found is None else Reading(found["shape"], found["layout"], found["columns"], tuple(found["unused"]))
    tokenizer = None if setup["tokenizer"] is None else local_folder(place(setup["tokenizer"]))
    return Tokenise(Encoder(tokenizer, spec, reading), spec, place(setup["folder"]), setup["on_error"])


def run(tokenise: Tokenise, job: Mapping[str, Any]) -> dict[str, Any]:
    """Write chunk ``job["index"]`` of the store and return its record, with what was skipped and why.

    Raises:
        RecordError: a record is broken and ``on_error`` is "raise"; nothing of the chunk is written then.
    """
    facts: dict[str, Any] = {"skipped": [], "skipped_further": [], "per_token": {}}
    return write_chunk(tokenise.folder, int(job["index"]), _units(tokenise, job["chunk"], facts), facts)


@dataclass(eq=False)
class _Rows:
    """Samples that wait to become a unit."""

    ids: list[npt.NDArray[np.int32]] = field(default_factory=list)
    spans: list[npt.NDArray[Any]] = field(default_factory=list)
    shapes: list[int] = field(default_factory=list)
    across: list[Sequence[int]] = field(default_factory=list)
    columns: list[Mapping[str, Any]] = field(default_factory=list)
    places: list[Where] = field(default_factory=list)
    tokens: int = 0

    def add(self, where: Where, sample: Encoded | None) -> None:
        self.places.append(where)
        self.ids.append(np.zeros(0, np.int32) if sample is None else sample.input_ids)
        self.spans.append(np.zeros(0, SPAN) if sample is None else sample.spans)
        self.shapes.append(SHAPES.index("tokens" if sample is None else sample.shape))
        self.across.append(() if sample is None else sample.across)
        self.columns.append({} if sample is None else sample.columns)
        self.tokens += self.ids[-1].size


def _units(tokenise: Tokenise, chunk: Mapping[str, Any], facts: dict[str, Any]) -> Iterator[Unit]:
    parts = token_parts(chunk, tokenise.spec)
    if parts is None:
        yield from _record_units(tokenise, _samples(tokenise.encoder, chunk), 0, facts)
        return
    with guarded(chunk["path"]):
        state = stamp(place(chunk["path"]))
    if state != (chunk["size_bytes"], chunk["mtime_ns"]):
        raise ChangedError(f"{chunk['path']} must not change while it is read.", "It did.", "Run again when it is at rest.")
    done = 0
    for first, batch in columnar_batches(chunk, parts, tokenise.spec):
        unit = batch_unit(batch, parts, tokenise.spec.carry, tokenise.encoder.vocabulary.size)
        if unit is None:
            records = list(rows(batch))
            places = [Where(chunk["path"], "row", first + number) for number in range(len(records))]
            encoded = tokenise.encoder.encode_batch(records)
            yield from _record_units(tokenise, zip(places, encoded, strict=True), done, facts)
        else:
            _note_columns(unit, facts)
            yield unit
        done += batch.num_rows


def _record_units(
    tokenise: Tokenise, samples: Iterable[tuple[Where, Encoded | RecordError]], first: int, facts: dict[str, Any]
) -> Iterator[Unit]:
    """Yield units of samples one by one; ``first`` is the index of the first in its chunk."""
    waiting = _Rows()
    for index, (where, sample) in enumerate(samples, first):
        if isinstance(sample, RecordError):
            placed = _placed(sample, where)
            if tokenise.on_error == "raise":
                raise type(placed)(placed.asked, placed.found, _or_skip(placed.remedy))
            if len(facts["skipped"]) < _TOLD:
                facts["skipped"].append({"index": index, "where": str(where), "error": error_to_plain(placed)})
            else:
                facts["skipped_further"].append(index)
            waiting.add(where, None)
        else:
            waiting.add(where, sample)
        if waiting.tokens >= UNIT_TOKENS or len(waiting.ids) >= _UNIT_SAMPLES:
            yield _unit(waiting, tokenise.spec.carry, facts)
            waiting = _Rows()
    if waiting.ids:
        yield _unit(waiting, tokenise.spec.carry, facts)


def _samples(encoder: Encoder, chunk: Mapping[str, Any]) -> Iterator[tuple[Where, Encoded | RecordError]]:
    """Yield each record's place and what came of it; the next batch is read and rendered while this one is tokenised."""
    waiting: deque[list[tuple[Where, dict[str, Any] | RecordError]]] = deque()

    def readable() -> Iterator[list[dict[str, Any]]]:
        read = read_chunk(chunk)
        while batch := list(islice(read, BATCH_RECORDS)):
            waiting.append(batch)
            yield [record for _, record in batch if not isinstance(record, RecordError)]

    for results in encoder.encode_batches(readable()):
        done = iter(results)
        for where, record in waiting.popleft():
            yield where, record if isinstance(record, RecordError) else next(done)


def _placed(error: RecordError, where: Where) -> RecordError:
    """Return the error with the place of the record in front, once."""
    place = str(where)
    asked = error.asked if error.asked.startswith(place) else f"{place}: {error.asked}"
    return type(error)(asked, error.found, error.remedy or "Mend the record.")


def _or_skip(remedy: str) -> str:
    return f'{remedy} on_error="skip" leaves such records out, and counts them.'


def _unit(waiting: _Rows, carry: tuple[str, ...], facts: dict[str, Any]) -> Unit:
    lengths = np.array([ids.size for ids in waiting.ids], np.int64)
    found = np.concatenate([raw_rows(part) for part in waiting.spans]).reshape(-1).view(SPAN)
    spans = np.zeros(found.size, SPAN_LAYOUT)
    for name in ("start", "stop", "message", "weight", "role", "terminator"):
        spans[name] = found[name]
    unit = Unit(
        np.concatenate([np.zeros(0, np.int32), *waiting.ids]),
        lengths,
        spans,
        np.array([part.size for part in waiting.spans], np.int64),
        np.array(waiting.shapes, np.uint8),
        np.array([token for tokens in waiting.across for token in tokens], np.int32),
        np.array([len(tokens) for tokens in waiting.across], np.int64),
        {name: _column(name, [values.get(name) for values in waiting.columns], waiting.places) for name in carry},
    )
    _note_columns(unit, facts)
    return unit


def _note_columns(unit: Unit, facts: dict[str, Any]) -> None:
    """Note of each carried column whether it still may go with tokens."""
    for name, values in unit.columns.items():
        facts["per_token"][name] = facts["per_token"].get(name, True) and _goes_with_tokens(values, unit.lengths)


def _column(name: str, values: list[Any], places: list[Where]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        first = bisect_left(range(len(values)), True, key=lambda number: not _go_together(values[: number + 1]))
        raise RecordError(
            f"{places[first]}: the carried column {name!r} must have values of one kind.",
            f"{ascii(values[first])[:80]} does not go with those before it: {str(error).splitlines()[0]}.",
            "Make them alike, or do not carry the column.",
        ) from error


def _go_together(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, UnicodeError, OverflowError):
        return False
    return True


def _goes_with_tokens(values: pa.Array, lengths: npt.NDArray[np.int64]) -> bool:
    """Return whether each value is a list with one entry a token."""
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        return not lengths.any()
    sizes = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return bool(np.array_equal(sizes, lengths))
