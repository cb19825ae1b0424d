"""What is fuzzed: whole files of every kind that cloison reads, how it reads them, and what must hold of the result.

A subject's ``judge`` gets the folder with the changed file, the result there, and the result of the whole files; it says what
is wrong with a result that came without an error, by another reader or by what `check` said.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cloison
from cloison import PackSpec, check, import_tokens, pack
from cloison.cli import main
from cloison.errors import RecordError
from cloison.packing import job
from cloison.text.sources import open_sources, read_chunk
from cloison.text.tokenizer import load_tokenizer
from tests.formats.test_importing import DOCUMENTS, MASKS, STORES
from tests.packing.corpus import chats, token_records, write_lines

__all__ = ["SUBJECTS", "Subject", "refuse_unsound"]

SPEC = PackSpec(64, overflow="truncate", order="input", carry=("source",))


@dataclass(frozen=True)
class Subject:
    """Files of one kind.

    Attributes:
        write: puts whole ones into an empty folder.
        victims: glob of those that are changed.
        read: reads the folder as cloison does, and returns what came.
        judge: (folder, result, result of the whole files) to what is wrong, "" for nothing.
    """

    write: Callable[[Path], Any]
    victims: str
    read: Callable[[Path], Any]
    judge: Callable[[Path, Any, Any], str] = lambda folder, result, whole: ""


# ---------------------------------------------------------------------- sources, against other readers


def _records(folder: Path) -> list[Any]:
    (path,) = folder.glob("source*")
    return [record for one in open_sources([str(path)]).jobs for _, record in read_chunk(one)]


def _same(ours: list[Any], theirs: list[Any]) -> str:
    """Compare records with those of another reader, None standing for what is no record."""
    plain = [None if isinstance(record, RecordError) else record for record in ours]
    return "" if _plain(plain) == _plain(theirs) else f"{_plain(plain)[:300]} where another reader finds {_plain(theirs)[:300]}"


def _plain(value: Any) -> str:
    return json.dumps(value, default=lambda one: one.tolist() if isinstance(one, np.ndarray) else repr(one), sort_keys=True)


def _judge_json(folder: Path, ours: list[Any], whole: Any) -> str:
    (path,) = folder.glob("source*")
    body = path.read_bytes()
    if path.suffix == ".gz":
        body = gzip.decompress(body)
    elif path.suffix == ".zst":
        body = pa.input_stream(str(path), compression="zstd").read()
    text = body.removeprefix(b"\xef\xbb\xbf")
    if text[: 1 << 12].lstrip()[:1] == b"[" and ".jsonl" not in path.name:
        *good, last = ours or [None]
        if isinstance(last, RecordError) and "array" in last.asked:  # the rest cannot be read, and nobody else could
            return "" if not any(isinstance(one, RecordError) and "array" in one.asked for one in good) else "it goes on"
        listed = json.loads(text.decode())
        return _same(ours, [one if isinstance(one, dict) else None for one in listed])
    return _same(ours, [_object(line) for line in text.split(b"\n") if line.strip()])


def _object(line: bytes) -> Any:
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _judge_parquet(folder: Path, ours: list[Any], whole: Any) -> str:
    (path,) = folder.glob("source*")
    return _same(ours, pq.read_table(path).to_pylist())


def _judge_arrow(folder: Path, ours: list[Any], whole: Any) -> str:
    (path,) = folder.glob("source*")
    with pa.OSFile(str(path)) as file:
        start = file.read(6)
        file.seek(0)
        reader = pa.ipc.open_file(file) if start == b"ARROW1" else pa.ipc.open_stream(file)
        return _same(ours, reader.read_all().to_pylist())


def _mixed() -> list[dict[str, Any]]:
    return [*chats(6, 1), *[record | {"text": "é\u2028 x", "messages": None} for record in token_records(4, 2)]]


def _write_table(path: Path, table: pa.Table, rows: int = 4) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
        return
    make = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def _lines(records: list[Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


# ---------------------------------------------------------------------- token ids, packed


def _pack(folder: Path, name: str = "source*", out: str = "out") -> list[tuple[int, list[int], list[int]]]:
    """Pack, prove by check that the result is right in itself, and return the samples in the order of the source."""
    (path,) = folder.glob(name)
    packed = pack(str(path), folder / out, SPEC, on_error="skip")
    refuse_unsound(folder / out)
    return sorted(_samples(packed))


def refuse_unsound(folder: Path) -> None:
    """Raise where `check` finds anything in what was packed, other than that every record was skipped."""
    report = check(folder)
    expected = [] if len(cloison.open(folder)) else ["nothing_to_check"]
    assert report.kinds("error") == expected, f"check finds {report.kinds('error')} in what was packed"


def _samples(packed: Any) -> list[tuple[int, list[int], list[int]]]:
    return [
        (number, sample.input_ids.tolist(), sample.labels.tolist())
        for block in packed
        for number, sample in zip(block.sample_ids.tolist(), block.samples(), strict=True)
    ]


def _judge_tokens(folder: Path, ours: list[tuple[int, list[int], list[int]]], whole: Any) -> str:
    """Compare packed samples with the rows as pyarrow reads them: each kept one is its row, cut at the capacity."""
    (path,) = folder.glob("source*")
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(pa.OSFile(str(path))).read_all()
    rows = table.to_pylist()
    for number, ids, labels in ours:
        row = rows[number]
        mask = row.get("completion_mask")
        wanted = row["input_ids"][:64]
        asked = [token if i and (mask is None or mask[i] == 1) else -100 for i, token in enumerate(wanted)]
        if (ids, labels) != (wanted, asked):
            return f"sample {number} is {ids}, {labels} and its row {wanted}, {asked}"
    return ""


def _token_table(count: int = 12) -> pa.Table:
    return pa.Table.from_pylist(token_records(count, 3))


# ---------------------------------------------------------------------- what we wrote


def _packed(folder: Path) -> None:
    write_lines(folder / "source.jsonl", token_records(40, 5))
    pack(str(folder / "source.jsonl"), folder / "out", SPEC)


def _open(folder: Path) -> Any:
    packed = cloison.open(folder / "out")
    blocks = list(packed)
    packed.segments(), packed.sample_ids()
    return packed, blocks, check(folder / "out")


def _judge_packed(folder: Path, result: Any, whole: Any) -> str:
    packed, blocks, report = result
    if not report.ok:
        return ""
    if blocks != whole[1]:
        return "check passes, and the blocks are others"
    counts = ("num_blocks", "num_segments", "num_tokens", "num_targets", "ledger", "columns")
    differ = [name for name in counts if _fact(packed, name) != _fact(whole[0], name)]
    return f"check passes, and the manifest says something else: {differ}" if differ else ""


def _fact(packed: Any, name: str) -> Any:
    value = getattr(packed.manifest, name)
    return value.to_dict() if hasattr(value, "to_dict") else value


def _again(folder: Path) -> Any:
    """Pack what is packed already with another seed, so that the token store is used."""
    packed = pack(str(folder / "source.jsonl"), folder / "again", SPEC.with_(seed=1))
    refuse_unsound(folder / "again")
    return _samples(packed), packed.ledger.to_dict()


def _interrupted(folder: Path) -> None:
    """Leave a run without its manifest: token store, shards, and the records of the work folder."""
    write_lines(folder / "source.jsonl", token_records(40, 5))
    kept = job.write_manifest
    job.write_manifest = _stop
    try:
        pack(str(folder / "source.jsonl"), folder / "out", SPEC)
    except KeyboardInterrupt:
        pass
    finally:
        job.write_manifest = kept


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def _go_on(folder: Path) -> Any:
    packed = pack(str(folder / "source.jsonl"), folder / "out", SPEC)
    refuse_unsound(folder / "out")
    return _samples(packed), packed.ledger.to_dict()


def _equal(folder: Path, result: Any, whole: Any) -> str:
    return "" if result == whole else "the result is another, and no error says so"


# ---------------------------------------------------------------------- what others wrote


def _import(name: str) -> Subject:
    format, write, options, _ = STORES[name]

    def read(folder: Path) -> Any:
        (folder / "in").mkdir()
        source = folder / "store" / "x" if format == "megatron" else folder / "store"
        done = import_tokens(source, folder / "in", format, **options)  # type: ignore[arg-type]
        rows = [row for path in done.files for row in pq.read_table(path).column("input_ids").to_pylist()]
        pack([str(folder / "in")], folder / "out", PackSpec(64, overflow="truncate"))
        refuse_unsound(folder / "out")
        return done, rows

    def judge(folder: Path, result: Any, whole: Any) -> str:
        done, rows = result
        if sum(map(len, rows)) != done.tokens or len(rows) != done.samples:
            return f"{done.tokens} tokens in {done.samples} samples are told, and {list(map(len, rows))} written"
        return "" if all(token >= 0 for row in rows for token in row) else "negative ids"

    def put(folder: Path) -> None:
        (folder / "store").mkdir()
        write(folder / "store", DOCUMENTS, MASKS)

    return Subject(put, "store/*", read, judge)


ROWS = [
    {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, -100, 8, 9], "seq_lengths": [2, 3], "position_ids": [0, 1, 0, 1, 2]},
    {"input_ids": [1, 2], "labels": [-100, 2], "seq_lengths": [2], "position_ids": [0, 1]},
]


def _check(folder: Path) -> Any:
    (path,) = folder.glob("source*")
    report = check(path)
    str(report), report.to_json()
    return report


def _exported(to: str) -> Subject:
    def write(folder: Path) -> None:
        write_lines(folder / "source.jsonl", token_records(12, 6))
        packed = pack(str(folder / "source.jsonl"), folder / "out", PackSpec(64))
        cloison.export(packed, folder / "theirs", to, lose=["labels", "columns", "blocks"])  # type: ignore[arg-type]

    def read(folder: Path) -> Any:
        report = check(folder / "theirs")
        str(report), report.to_json()
        return report

    return Subject(write, "theirs/**/*", read)


# ---------------------------------------------------------------------- small files


def _spec(folder: Path) -> PackSpec:
    return PackSpec.from_json((folder / "spec.json").read_text(encoding="utf-8", errors="surrogateescape"))


def _judge_spec(folder: Path, spec: PackSpec, whole: Any) -> str:
    return "" if PackSpec.from_json(spec.to_json()) == spec else "it does not come back from its own JSON"


def _command(*words: str) -> Callable[[Path], int]:
    """Return a reader that runs a command line in this process; what it printed must be an error of ours or a result."""

    def read(folder: Path) -> int:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([word.format(folder=folder) for word in words])
        assert status in (0, 1, 2), status
        assert status != 2 or out.getvalue() or err.getvalue().startswith("cloison "), err.getvalue()
        return status

    return read


def _tokenizer(folder: Path) -> None:
    home = Path(cloison.__file__).parent / "story" / "tokenizer"
    for path in home.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())


def _saved(folder: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(chats(8, 1)).save_to_disk(str(folder / "source"), num_shards=2)


SUBJECTS: dict[str, Subject] = {
    "lines": Subject(lambda f: (f / "source.jsonl").write_bytes(_lines(_mixed())), "source*", _records, _judge_json),
    "array": Subject(lambda f: (f / "source.json").write_text(json.dumps(_mixed())), "source*", _records, _judge_json),
    "gzip": Subject(
        lambda f: (f / "source.jsonl.gz").write_bytes(gzip.compress(_lines(_mixed()), mtime=0)),
        "source*",
        _records,
        _judge_json,
    ),
    "zstd": Subject(
        lambda f: (f / "source.json.zst").write_bytes(pa.compress(_lines(_mixed()), "zstd", asbytes=True)),
        "source*",
        _records,
        _judge_json,
    ),
    "table": Subject(
        lambda f: (f / "source.csv").write_text('prompt,completion\n"a ""b"", é\nc",d\n\ne,f\n'), "source*", _records
    ),
    "text": Subject(lambda f: (f / "source.txt").write_text("one é\ntwo\n"), "source*", _records),
    "parquet": Subject(
        lambda f: _write_table(f / "source.parquet", pa.Table.from_pylist(_mixed())), "source*", _records, _judge_parquet
    ),
    "arrow": Subject(
        lambda f: _write_table(f / "source.arrow", pa.Table.from_pylist(_mixed())), "source*", _records, _judge_arrow
    ),
    "arrow stream": Subject(
        lambda f: _write_table(f / "source-stream.arrow", pa.Table.from_pylist(_mixed())), "source*", _records, _judge_arrow
    ),
    "saved data set": Subject(_saved, "source/*", _records),
    "token parquet": Subject(lambda f: _write_table(f / "source.parquet", _token_table()), "source*", _pack, _judge_tokens),
    "token arrow": Subject(lambda f: _write_table(f / "source.arrow", _token_table()), "source*", _pack, _judge_tokens),
    "token lines": Subject(lambda f: write_lines(f / "source.jsonl", token_records(12, 3)), "source*", _pack),
    "manifest": Subject(_packed, "out/manifest.json", _open, _judge_packed),
    "blocks": Subject(_packed, "out/blocks-*", _open, _judge_packed),
    "token store": Subject(_packed, "tokens/*/*", _again, _equal),
    "work folder": Subject(_interrupted, "out/.work/*.json", _go_on, _equal),
    "unfinished tokens": Subject(
        lambda f: (_interrupted(f), [path.unlink() for path in f.glob("tokens/*/store.json")]), "tokens/*/*", _go_on, _equal
    ),
    **{f"import {name}": _import(name) for name in STORES if name not in ("megatron uint16", "olmo-core uint16")},
    "rows as lines": Subject(lambda f: write_lines(f / "source.jsonl", ROWS), "source*", _check),
    "rows as an array": Subject(lambda f: (f / "source.json").write_text(json.dumps(ROWS)), "source*", _check),
    "rows as parquet": Subject(lambda f: _write_table(f / "source.parquet", pa.Table.from_pylist(ROWS)), "source*", _check),
    "rows as arrow": Subject(lambda f: _write_table(f / "source.arrow", pa.Table.from_pylist(ROWS)), "source*", _check),
    **{f"export to {to}": _exported(to) for to in ("trl", "megatron-bridge", "mds")},
    "spec": Subject(
        lambda f: (f / "spec.json").write_text(SPEC.with_(columns={"text": "a"}, template_options={"x": [1]}).to_json()),
        "spec.json",
        _spec,
        _judge_spec,
    ),
    "lengths": Subject(
        lambda f: np.save(f / "lengths.npy", np.arange(1, 60)),
        "lengths.npy",
        _command("plan", "{folder}/lengths.npy", "--capacity", "64"),
    ),
    "tokenizer": Subject(_tokenizer, "*.json*", load_tokenizer),
}
