"""Making a token store, or finding it made: sources in, a whole store out, nothing tokenised twice."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cloison.errors import ChangedError, StoreError
from cloison.packing.engines import IN_THIS_PROCESS, Engine
from cloison.packing.hashes import source_hashes
from cloison.packing.heap import fewer_collections
from cloison.packing.plain import error_from_plain
from cloison.packing.tokenise import Tokenise
from cloison.places import (
    Place,
    Remote,
    absolute,
    beside,
    fetched,
    forget,
    local_folder,
    place,
    put,
    remove,
    remove_tree,
    scratch,
    size,
    sizes,
    stamp,
    together,
)
from cloison.spec import FORMAT_VERSION, PackSpec, canonical_hash
from cloison.store.files import claim, file_sha256, replacing, sweep
from cloison.store.packed import Packed
from cloison.store.records import write_record
from cloison.store.tokens import TokenStore, chunk_is_whole, open_token_store
from cloison.text.encoder import Encoder
from cloison.text.sources import Source, SourceFile, open_sources

__all__ = [
    "TOKENIZER",
    "Progress",
    "Tokens",
    "ensure_tokens",
    "fill_store",
    "skipped_records",
    "token_key",
    "tokenizer_of",
    "write_store",
]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many pieces are done, and of how many."""

Begun = Callable[[PackSpec, Sequence[tuple[str, str]]], None]
"""Called with the spec, its day resolved, and path and sha256 of each source file."""

TOKENIZER = "tokenizer.json"
"""A copy of the tokenizer that a store was made with, where that was a path: what shows text needs no other place."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A whole token store and what it was made from.

    Attributes:
        store: the samples.
        key: of sources, tokenizer, template and text options.
        spec: as given, with the date resolved where the template asks for one.
        skipped: see `skipped_records`.
        described: one line on how the sources are read.
        made: chunks that were tokenised now (0: all were there).
        jobs: what each chunk of the store was read from, as in `cloison.text.sources.Source`; empty where that is not at hand.
    """

    store: TokenStore
    key: str
    spec: PackSpec
    skipped: tuple[Mapping[str, Any], ...]
    described: str
    made: int
    jobs: Sequence[Mapping[str, Any]] = ()


def ensure_tokens(
    sources: Sequence[str],
    spec: PackSpec,
    folder: Place,
    *,
    tokenizer: Any = None,
    engine: Engine = IN_THIS_PROCESS,
    on_error: str = "raise",
    progress: Progress | None = None,
    begun: Begun | None = None,
) -> Tokens:
    """Return the token store of ``sources`` under ``folder``, made now as far as it is not there.

    ``begun`` is called once the sources are known, before anything is made of them.

    Raises:
        RecordError: a record is broken and ``on_error`` is "raise".
        ChangedError: a source changed while it was read, or a chunk of a whole store changed since.
        StoreError: ``folder`` cannot be written.
    """
    claim(folder)
    sweep(folder)  # of runs that were killed while they copied standard input
    opened = open_sources(sources, spec, spool=folder)
    hashes = source_hashes(opened.files, folder, engine)
    encoder = Encoder(tokenizer, spec, opened.reading)
    try:
        if encoder.needs_date and spec.date is None:
            spec = spec.with_(date=date.today().isoformat())
            encoder.close()
            encoder = Encoder(tokenizer, spec, opened.reading)
        if begun is not None:
            begun(spec, [(file.path, found) for file, found in zip(opened.files, hashes, strict=True)])
        key = token_key(opened, hashes, encoder)
        home = folder / key
        store = open_token_store(home)
        made = 0
        if store is None:
            claim(home)
            sweep(home)
            made, chunks = fill_store(opened, spec, home, encoder, engine, on_error, progress)
            _unchanged(opened)
            if isinstance(tokenizer, (str, os.PathLike)):  # so that `show` finds it; not part of the store's meaning
                _keep_tokenizer(local_folder(place(tokenizer)), home)
            write_store(home, key, opened, hashes, encoder, chunks)
            store = open_token_store(home)
            assert store is not None
        else:
            sweep(home)
            _verify(store, progress)
    finally:
        encoder.close()
    skipped = skipped_records(store)
    if skipped and on_error == "raise":
        raise error_from_plain(skipped[0]["error"])
    _forget_standard_input(opened, folder)
    for far in {at.parent for file in opened.files if isinstance(at := place(file.path), Remote)}:
        forget(far)
    return Tokens(store, key, spec, skipped, opened.describe(), made, opened.jobs)


def tokenizer_of(packed: Packed) -> str | None:
    """Return where the tokenizer of ``packed`` is kept, in the token store beside it; None where there is none."""
    if isinstance(packed.path, Remote) and packed.path.parent.url.endswith("://"):
        return None  # nothing is beside a bucket
    found = beside(packed.path, "tokens") / packed.manifest.token_key / TOKENIZER
    return str(found) if size(found) is not None else None


def _keep_tokenizer(tokenizer: Path, home: Place) -> None:
    with replacing(home / TOKENIZER, durable=False) as part:  # a copy: a link would follow what becomes of the original
        shutil.copyfile(tokenizer / TOKENIZER if tokenizer.is_dir() else tokenizer, part)


def _unchanged(source: Source) -> None:
    def same(file: SourceFile) -> bool:
        try:
            return stamp(place(file.path)) == (file.size_bytes, file.mtime_ns)
        except OSError:
            return False

    checked = together(same, source.files, far=any(isinstance(place(file.path), Remote) for file in source.files))
    for file, as_it_was in zip(source.files, checked, strict=True):
        if not as_it_was:
            raise ChangedError(
                f"{file.path} must not change while it is read.", "It did.", "Run again when nothing writes to it any more."
            )


def _forget_standard_input(source: Source, folder: Place) -> None:
    """Remove the copy of standard input: its tokens are whole."""
    for file in source.files:
        if file.path.startswith(str(folder / ".stdin-")):
            remove(place(file.path))


def token_key(source: Source, hashes: list[str], encoder: Encoder) -> str:
    """Return the key of the store of these sources: a hash of their content and of all that shapes the tokens."""
    content = [[file.kind, file.codec, found] for file, found in zip(source.files, hashes, strict=True)]
    return canonical_hash({"format": FORMAT_VERSION, "content": content, "tokens": encoder.token_key})


def fill_store(
    source: Source, spec: PackSpec, home: Place, encoder: Encoder, engine: Engine, on_error: str, progress: Progress | None
) -> tuple[int, list[dict[str, Any]]]:
    """Make the chunks that are not there, and return how many that were, and the records of all."""
    records: dict[int, dict[str, Any]] = {}
    todo = []
    noted = sizes(home)
    for index, chunk in enumerate(source.jobs):
        record = chunk_is_whole(home, index) if f"chunk-{index:06d}.json" in noted else None
        if record is None:
            todo.append({"index": index, "chunk": chunk})
        else:
            records[index] = record
    setup = {"step": "tokenise", "spec": spec.to_dict(), "folder": str(absolute(home)), "on_error": on_error, "tokenizer": None}
    setup["reading"] = None if source.reading is None else asdict(source.reading)
    setup["named_from"] = None if all(_from_the_root(file.path) for file in source.files) else os.getcwd()
    if todo and not engine.in_this_process(len(todo)) and encoder.vocabulary.backend is not None:
        _save(encoder, home / "tokenizer")
        setup["tokenizer"] = str(absolute(home / "tokenizer"))
    total = len(source.jobs)
    state = Tokenise(encoder, spec, home, on_error)
    try:
        with fewer_collections():
            for record in engine.run(setup, todo, scratch=home, state=state, threads=2):
                records[record["index"]] = record
                if progress:
                    progress("tokenising", len(records), total)
    finally:
        sweep(home)  # of workers that had to leave
    return len(todo), [records[index] for index in range(total)]


def _from_the_root(path: str) -> bool:
    return isinstance(place(path), Remote) or os.path.isabs(path)


def _save(encoder: Encoder, folder: Place) -> None:
    local = folder if isinstance(folder, Path) else scratch(folder) / "saved"
    try:
        encoder.save(local)
    except Exception as error:  # the tokenizers library raises bare ones
        shutil.rmtree(local, ignore_errors=True)
        raise StoreError(
            f"{local} cannot be written.", f"The system says: {error}.", "Free space, or name another --tokens, and run again."
        ) from error
    if isinstance(folder, Remote):
        for file in local.iterdir():
            put(file, folder / file.name)


def write_store(
    home: Place,
    key: str,
    source: Source,
    hashes: list[str],
    encoder: Encoder,
    chunks: list[dict[str, Any]],
) -> None:
    """Make the chunks in ``home`` a whole store, and remove what workers were fed with."""
    records: Counter[str] = Counter()
    for job, chunk in zip(source.jobs, chunks, strict=True):
        records[job["path"]] += chunk["num_samples"]
    facts = {
        "format": "cloison tokens",
        "format_version": FORMAT_VERSION,
        "key": key,
        "tokenizer": _tokenizer_facts(encoder),
        "sources": [
            {"sha256": found, "size_bytes": file.size_bytes, "records": records[file.path]}
            for file, found in zip(source.files, hashes, strict=True)
        ],
        "chunks": chunks,
    }
    write_record(home / "store.json", facts)
    for name in sizes(home):
        if name.endswith(".setup.json"):  # what workers were fed with
            remove(home / name)
    remove_tree(home / "tokenizer")
    forget(home / "tokenizer")


def _tokenizer_facts(encoder: Encoder) -> dict[str, Any]:
    vocabulary = encoder.vocabulary
    if vocabulary.backend is None:
        return {}
    return {"size": vocabulary.size, "eos_id": vocabulary.eos_id, "special": dict(vocabulary.special)}


def _verify(store: TokenStore, progress: Progress | None) -> None:
    """Prove that a store made earlier still has the content that was recorded. Cost: one read, about 2 GB a second."""
    for done, chunk in enumerate(store.chunks):
        if file_sha256(fetched(store.folder / chunk["name"], chunk["sha256"])) != chunk["sha256"]:
            raise ChangedError(
                f"{store.folder / chunk['name']} must have the content that was recorded.",
                "It changed.",
                f"Remove {store.folder} and run again.",
            )
        if progress:
            progress("checking tokens", done + 1, len(store.chunks))


def skipped_records(store: TokenStore) -> tuple[Mapping[str, Any], ...]:
    """Return {"index", "where", "error"} of each record of the sources that could not be read, by index.

    Of a chunk with very many such records, the later ones have the index alone.
    """
    out: list[Mapping[str, Any]] = []
    first = 0
    for chunk in store.chunks:
        out += [{**skip, "index": skip["index"] + first} for skip in chunk["skipped"]]
        out += [{"index": index + first} for index in chunk["skipped_further"]]
        first += chunk["num_samples"]
    return tuple(out)
