"""check: the static contract of any packed data set, ours or another's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cloison.blocks import Block
from cloison.checking.hits import Hit
from cloison.checking.hits import Place as Spot
from cloison.checking.inspection import Inspection, Piece
from cloison.checking.known import Known, known_of
from cloison.checking.report import CheckReport
from cloison.checking.sources import data_files, pieces
from cloison.errors import InputError
from cloison.ledger import GONE
from cloison.places import Place, Remote, borrowed, place, size
from cloison.store.files import file_sha256
from cloison.store.manifest import MANIFEST, Manifest, read_manifest
from cloison.store.packed import Packed
from cloison.store.records import misfit

__all__ = ["check"]


def check(
    data: Any,
    *,
    tokenizer: Any = None,
    capacity: int | None = None,
    vocab_size: int | None = None,
    eos_token_id: int | None = None,
    bos_token_id: int | None = None,
    terminators: Sequence[int] = (),
    labels: Literal["same", "shifted"] | None = None,
    convention: str | None = None,
) -> CheckReport:
    """Return what is wrong, or worth knowing, with packed rows: boundaries, targets, masks, positions, ids, samples, files.

    Rows are judged by the convention of the system that reads them (`cloison.checking.conventions`), recognised by their
    columns and told in the report; what could not be looked at is told too.

    Args:
        data: a folder that ``cloison pack`` wrote (its hashes and its ledger are checked too); a Parquet, Arrow or JSON file or
            a folder of them; the URL of any of these; a ``datasets.Dataset``; a pyarrow Table; blocks; or any iterable of dicts
            with ``input_ids`` and what states the boundaries (``seq_lengths``, ``seq_start_id``, ``cu_seqlens``, segment
            numbers, ``position_ids``).
        tokenizer: a folder or file, a ``tokenizers.Tokenizer``, or a transformers tokenizer: gives the vocabulary and the ids
            that end and begin a text, where they are not passed.
        capacity: tokens a row may hold; our own folders and blocks know theirs.
        vocab_size, eos_token_id, bos_token_id: as they say.
        terminators: further ids that end a message; each must be a target somewhere.
        labels: "shifted" where ``labels`` are shifted already and the trainer does not shift them; left out, as the
            convention has it.
        convention: the name of one, in place of recognising it.

    Raises:
        StoreError: a file that is not there or cannot be read.
        InputError: rows that are no packed rows, or a wrong argument. Data without a token is a finding: to have looked at
            nothing is no pass.

    Cost: one pass, 50 to 100 million tokens a second from memory on one core; memory is a few pieces of half a million tokens,
    and one byte a sample where rows have ``sample_ids``.

    >>> row = {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "position_ids": [0, 1, 0, 1]}
    >>> report = check([row])
    >>> report.ok, report.kinds("error")
    (False, ['boundary_target'])
    """
    if capacity is not None and capacity < 1:
        raise InputError("capacity must be at least 1 token.", f"It is {capacity}.", "Leave it out, or state it.")
    given = Known(capacity, vocab_size, eos_token_id, bos_token_id, tuple(terminators))
    known = known_of(tokenizer, given)
    if isinstance(data, Packed):
        data = data.path
    if isinstance(data, (str, Path, Remote)):
        path = place(data)
        if size(path / MANIFEST) is not None:
            return _check_ours(path, known, convention, labels)
        files = data_files(path)
        several = len(files) > 1
        inspection = Inspection(known, convention, labels)
        empty: list[str] = []
        for file in files:
            named = str(file).removeprefix(str(path)).lstrip("/") if several else None
            before = inspection.totals.rows
            with borrowed(file) as copy:
                _add_all(inspection, (replace(piece, file=named) for piece in pieces(copy)))
            if inspection.totals.rows == before:
                empty.append(named or str(file))
        beside = len(empty) if inspection.totals.rows else 0
        return inspection.finish(str(path), [Hit("file_empty", beside, len(files), Spot(empty[0]) if empty else Spot())])
    blocks: bool
    data, blocks = _peeked(data)
    if blocks and known.capacity is None:
        known = replace(known, capacity=_capacity(data))
    inspection = Inspection(known, convention, labels, ours=blocks)
    _add_all(inspection, pieces(data))
    return inspection.finish(type(data).__name__ if hasattr(data, "column_names") else "rows", _samples(inspection))


def _peeked(data: Any) -> tuple[Any, bool]:
    """Return ``data`` and whether it yields our blocks, without losing what was looked at."""
    if isinstance(data, Block):
        return [data], True
    if isinstance(data, Sequence):
        return data, bool(data) and isinstance(data[0], Block)
    return data, False


def _capacity(blocks: Sequence[Any]) -> int | None:
    """Return the capacity that all blocks have, None where they differ or one is no block."""
    found = {block.segments.capacity if isinstance(block, Block) else None for block in blocks}
    return found.pop() if len(found) == 1 else None


def _add_all(inspection: Inspection, found: Iterator[Piece]) -> None:
    for piece in found:
        inspection.add(piece)


def _samples(inspection: Inspection) -> list[Hit]:
    return list(inspection.samples.hits())


def _check_ours(path: Place, known: Known, convention: str | None, labels: str | None) -> CheckReport:
    manifest = read_manifest(path)
    eos = manifest.tokenizer.get("eos_id") if known.eos_token_id is None else known.eos_token_id
    ends = tuple(dict.fromkeys((*(() if eos is None else (int(eos),)), *known.terminators)))
    known = replace(known, capacity=known.capacity or manifest.spec.capacity, eos_token_id=eos, terminators=ends)
    inspection = Inspection(known, convention, labels, ours=True)
    extra: list[Hit] = []
    for shard in manifest.shards:
        reason = "its name leaves the folder" if misfit(shard.name, "name") else ""
        if not reason and size(path / shard.name) is None:
            reason = "it is missing"
        if not reason:
            with borrowed(path / shard.name) as file:
                reason = _changed(file, shard.size_bytes, shard.sha256)
                _add_all(inspection, (replace(piece, file=shard.name) for piece in pieces(file)))
        extra.append(Hit("file_changed", int(bool(reason)), 1, Spot(shard.name), details={"reason": reason} if reason else {}))
    totals = inspection.totals
    for quantity, said, held in (
        ("blocks", manifest.num_blocks, totals.rows),
        ("segments", manifest.num_segments, totals.segments),
        ("tokens", manifest.num_tokens, totals.tokens),
        ("targets", manifest.num_targets, totals.targets),
    ):
        details = {"said": f"{said:,}", "held": f"{held:,}", "quantity": quantity, "variant": quantity}
        extra.append(Hit("manifest_disagrees", int(said != held), 1, details=details))
    if manifest.ledger.tokens_kept != totals.tokens:
        reason = f"it keeps {manifest.ledger.tokens_kept:,} tokens and the blocks hold {totals.tokens:,}"
        extra.append(Hit("ledger_disagrees", 1, 1, details={"reason": reason}))
    extra += inspection.samples.hits(manifest.ledger.samples_in, _gone(manifest))
    return inspection.finish(
        str(path),
        extra,
        facts={"fingerprint": manifest.fingerprint, "logical_hash": manifest.logical_hash, "shards": len(manifest.shards)},
    )


def _changed(file: Path, size_bytes: int, sha256: str) -> str:
    """Return why ``file`` is not as recorded, or ""."""
    if file.stat().st_size != size_bytes:
        return f"it has {file.stat().st_size:,} bytes and not {size_bytes:,}"
    return "" if file_sha256(file) == sha256 else "its sha256 is another"


def _gone(manifest: Manifest) -> Any:
    entries = [entry.indices for kind, entry in manifest.ledger.entries.items() if kind in GONE]
    return np.concatenate(entries) if entries else np.zeros(0, np.int64)
