"""Packing from and into file systems that are not the local disk: the same bytes, whatever fails on the way."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloison
from cloison import PackSpec, pack
from cloison.cli import main
from cloison.errors import ChangedError, InputError, ManifestError, RecordError, StoreError
from tests.packing.corpus import chats, token_records, write_lines
from tests.places.server import ObjectStore

Tree = Callable[[Path], dict[str, str]]

SPEC = PackSpec(1 << 22, max_segments=8, carry=("source",))
"""Blocks of a few samples, each as wide as a shard: many shards from little text."""


@pytest.fixture
def store(token_corpus: Path, loopback: ObjectStore) -> ObjectStore:
    """A store of objects that holds the corpus at ``bucket/in``."""
    for path in sorted(token_corpus.iterdir()):
        loopback.objects[f"bucket/in/{path.name}"] = path.read_bytes()
    return loopback


@pytest.fixture(scope="module")
def undisturbed(token_corpus: Path, tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> dict[str, str]:
    """The files of a run on the local disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert len(pack(str(token_corpus), folder / "out", SPEC).manifest.shards) > 10
    return tree(folder)


def made(store: ObjectStore) -> dict[str, str]:
    """Return what a run made in the store, without what it keeps of sources that are far away."""
    return {path: found for path, found in store.hashes("bucket").items() if not path.startswith(("in/", "tokens/.hashes"))}


def command(workers: int) -> list[str]:
    words = ["pack", "loopback://bucket/in/*.jsonl", "--out", "loopback://bucket/out", "--workers", str(workers)]
    words += ["--capacity", str(SPEC.capacity), "--max-segments", "8", "--carry", "source"]
    return [sys.executable, "-m", "cloison.cli", *words]


def test_in_memory_without_rename_the_bytes_are_those_of_the_local_disk(
    corpus: Path, tmp_path: Path, tokenizer: str, tree: Tree, bare_memory: Any, own_scratch: Path
) -> None:
    for path in sorted(corpus.iterdir()):
        bare_memory.put_file(str(path), f"/bucket/in/{path.name}")
    spec = PackSpec(192, carry=("score",))
    here = pack(str(corpus), tmp_path / "made" / "out", spec, tokenizer=tokenizer)
    there = pack("memory://bucket/in", "memory://bucket/out", spec, tokenizer=tokenizer)
    assert (there.fingerprint, there.manifest) == (here.fingerprint, here.manifest)
    found = {path.removeprefix("/bucket/"): bare_memory.cat_file(path) for path in bare_memory.find("/bucket")}
    files = {path: content for path, content in found.items() if not path.startswith(("in/", "tokens/.hashes"))}
    assert files == {path: (tmp_path / "made" / path).read_bytes() for path in tree(tmp_path / "made")}
    assert [block.input_ids.tolist() for block in there] == [block.input_ids.tolist() for block in here]
    there.verify()
    assert not [path for path in own_scratch.rglob("*") if path.is_file()], "the run left copies"


def test_every_command_reads_it(
    corpus: Path,
    tmp_path: Path,
    tokenizer: str,
    bare_memory: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for path in sorted(corpus.iterdir()):
        bare_memory.put_file(str(path), f"/bucket/in/{path.name}")
    given = ["memory://bucket/in/part-[0-3].jsonl", "--capacity", "192", "--tokenizer", tokenizer, "--workers", "1"]
    there = "memory://bucket/out"
    for words, said in (
        (["pack", *given, "--out", there, "--tokens", "memory://cache/tokens"], "4 files"),
        (["plan", *given, "--tokens", "memory://cache/tokens"], "look_ahead"),
        (["pack", *given, "--dry-run", "--tokens", "memory://cache/tokens"], "nothing tokenised again"),
        (["show", there], "segment 0"),
        (["check", there], "ok"),
        (["unpack", there, str(tmp_path / "samples.jsonl")], "100 samples"),
        (["unpack", there, "memory://other/samples.jsonl"], "100 samples"),
        (["export", there, str(tmp_path / "trl"), "--to", "trl"], "wrote"),
        (["export", there, "memory://bucket/mds", "--to", "mds"], 'StreamingDataset(remote="memory://bucket/mds"'),
        (
            ["import", "memory://bucket/mds", "memory://bucket/taken", "--from", "mds"],
            "wrote memory://bucket/taken: 100 samples",
        ),
    ):
        assert main(words) == 0, words
        assert said in capsys.readouterr().out, words
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 100
    assert bare_memory.cat_file("/other/samples.jsonl") == (tmp_path / "samples.jsonl").read_bytes()
    assert main(["show", there, "--html", "memory://bucket/page.html"]) == 2
    assert "must be on the local disk" in capsys.readouterr().err
    assert main(["unpack", there, "memory://other/samples.jsonl"]) == 2
    assert "The file exists" in capsys.readouterr().err
    assert not list((tmp_path / "cwd").iterdir()), "a URL is no path"
    bare_memory.pipe_file("/bucket/out/blocks-00000.parquet", b"x" * bare_memory.size("/bucket/out/blocks-00000.parquet"))
    with pytest.raises(ChangedError, match="sha256"):
        cloison.open(there).verify()
    bare_memory.rm_file("/bucket/out/manifest.json")
    with pytest.raises(ManifestError, match="packing did not finish"):
        cloison.open(there)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_on_a_store_of_objects_write_the_same_bytes(
    store: ObjectStore, undisturbed: dict[str, str], workers: int
) -> None:
    packed = pack("loopback://bucket/in", "loopback://bucket/out", SPEC, workers=workers)
    assert made(store) == undisturbed
    assert packed.manifest.num_segments == 150
    puts = {key: count for (method, key), count in store.asked.items() if method == "PUT" and "blocks" in key}
    assert set(puts.values()) == {1}
    order = [key for (method, key) in store.asked if method == "PUT"]
    assert order[-1] == "bucket/out/manifest.json", "the manifest comes last"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_store_that_fails_some_requests_costs_time_only(
    store: ObjectStore, undisturbed: dict[str, str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0,) * 8)
    store.fail(0.15, seed)
    packed = pack("loopback://bucket/in", "loopback://bucket/out", SPEC)
    assert store.failures > 20
    ids = [block.sample_ids.tolist() for block in packed]
    store.fail(0.0, seed)
    assert made(store) == undisturbed
    assert ids == [block.sample_ids.tolist() for block in packed]


def test_a_store_that_stays_away_is_named_and_the_next_run_goes_on(
    store: ObjectStore, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0,) * 4)
    monkeypatch.setattr("cloison.store.claims.GONE_S", 1.0)  # the first run could not remove its claim
    fate = store.fate

    def failing_from_the_fifth_shard() -> str:
        puts = sum(count for (method, key), count in store.asked.items() if method == "PUT" and key.endswith(".parquet"))
        return "refused" if puts >= 5 else fate()

    monkeypatch.setattr(store, "fate", failing_from_the_fifth_shard)
    with pytest.raises(StoreError, match=r"The request failed 5 times with OSError: 503.*what is finished is kept"):
        pack("loopback://bucket/in", "loopback://bucket/out", SPEC)
    monkeypatch.setattr(store, "fate", fate)
    with pytest.raises(ManifestError, match="did not finish"):
        cloison.open("loopback://bucket/out")
    before = {key for (method, key) in store.asked if method == "PUT" and key.endswith((".arrow", ".parquet.json"))}
    before -= {key for key in before if "/plan-" in key}  # which every run makes
    store.asked.clear()
    pack("loopback://bucket/in", "loopback://bucket/out", SPEC)
    assert made(store) == undisturbed
    again = {key for (method, key) in store.asked if method == "PUT"}
    assert not again & before, "what was finished is not done again"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_to_the_same_bytes(store: ObjectStore, undisturbed: dict[str, str], workers: int) -> None:
    random = np.random.default_rng(workers)

    def puts(kind: str) -> int:
        return sum(count for (method, key), count in store.asked.items() if method == "PUT" and key.endswith(kind))

    for kind, count in ((".arrow", 2), (".parquet", 3), (".parquet", 5))[workers - 1 :]:
        store.asked.clear()
        process = subprocess.Popen(command(workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while puts(kind) < count and process.poll() is None:
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was killed in the middle"
        assert "bucket/out/manifest.json" not in store.objects
    time.sleep(0.5)  # the workers leave, and what they had on the way arrives or does not
    store.asked.clear()
    recorded = {key.replace("/.work", "").removesuffix(".json") for key in store.objects if key.endswith(".parquet.json")}
    assert len(recorded) >= 7
    done = subprocess.run(command(workers), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert made(store) == undisturbed
    assert not recorded & {key for (method, key) in store.asked if method == "PUT"}, "a finished shard was done again"


def test_a_private_file_system_takes_no_worker_processes(bare_memory: Any) -> None:
    with pytest.raises(InputError, match="Pass workers=1"):
        pack("memory://bucket/in", "memory://bucket/out", SPEC, workers=2)


def test_the_top_of_a_bucket_has_nothing_beside_it(bare_memory: Any, tmp_path: Path) -> None:
    bare_memory.pipe_file("/in.jsonl", b'{"input_ids": [1, 2]}\n')
    with pytest.raises(InputError, match="pass tokens="):
        pack("memory://in.jsonl", "memory://out", PackSpec(8))
    assert len(pack("memory://in.jsonl", "memory://out", PackSpec(8), tokens=tmp_path / "tokens")) == 1


def test_sources_are_read_once_to_be_hashed(store: ObjectStore) -> None:
    key = "bucket/in/part-0.jsonl"
    first = pack("loopback://bucket/in", "loopback://bucket/out", PackSpec(64))
    store.asked.clear()
    second = pack("loopback://bucket/in", "loopback://bucket/other", PackSpec(128))
    assert store.asked["GET", key] == 1, "its first record, to see how it is read"
    assert first.manifest.token_key == second.manifest.token_key
    store.objects[key] = store.objects[key].replace(b"source", b"sauces")
    third = pack("loopback://bucket/in", "loopback://bucket/third", PackSpec(128))
    assert third.manifest.token_key != second.manifest.token_key
    store.objects["bucket/tokens/.hashes.json"] = b"{not JSON"
    assert pack("loopback://bucket/in", "loopback://bucket/fourth", PackSpec(128)).fingerprint == third.fingerprint


def test_sources_in_every_form_are_read_there_as_here(
    tmp_path: Path, tokenizer: str, bare_memory: Any, own_scratch: Path
) -> None:
    import gzip
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    records = token_records(40, 3)
    here = tmp_path / "in"
    here.mkdir()
    plain = "".join(json.dumps(record) + "\n" for record in records).encode()
    (here / "a.jsonl.gz").write_bytes(gzip.compress(plain))
    (here / "b.json.zst").write_bytes(pa.compress(json.dumps(records).encode(), "zstd", asbytes=True))
    table = pa.Table.from_pylist(records)
    pq.write_table(table, here / "c.parquet", row_group_size=15)
    with pa.ipc.new_file(here / "d.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    (here / "sub").mkdir()
    write_lines(here / "sub" / "e.jsonl", records)
    write_lines(here / ".hidden.jsonl", records)
    for path in here.rglob("*"):
        if path.is_file():
            bare_memory.put_file(str(path), f"/bucket/in/{path.relative_to(here)}")
    spec = PackSpec(64)
    local = pack(str(here), tmp_path / "out", spec)
    assert local.ledger.samples_in == 200
    assert pack("memory://bucket/in", "memory://bucket/out", spec).manifest == local.manifest
    assert not [path for path in own_scratch.rglob("*") if path.is_file()], "the run left copies"


def test_what_cloison_wrote_below_a_source_is_no_source(bare_memory: Any, tmp_path: Path, tokenizer: str) -> None:
    bare_memory.put_file(str(write_lines(tmp_path / "a.jsonl", chats(9, 0))), "/data/a.jsonl")
    first = pack("memory://data", "memory://data/packed/out", PackSpec(192), tokenizer=tokenizer)
    second = pack("memory://data", "memory://other/out", PackSpec(192), tokenizer=tokenizer)
    assert first.manifest == second.manifest


def test_standard_input_is_kept_where_the_tokens_are(bare_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    from types import SimpleNamespace

    lines = b'{"input_ids": [1, 2, 3]}\n' * 5
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    packed = pack("-", "memory://bucket/out", PackSpec(8))
    assert packed.ledger.samples_in == 5
    assert not bare_memory.glob("/bucket/tokens/stdin*")


def test_a_tokenizer_is_taken_from_there(bare_memory: Any, tmp_path: Path, tokenizer: str) -> None:
    for path in Path(tokenizer).iterdir():
        if path.is_file():
            bare_memory.put_file(str(path), f"/models/tok/{path.name}")
    source = write_lines(tmp_path / "a.jsonl", chats(9, 0))
    spec = PackSpec(192)
    there = pack(source, "memory://bucket/out", spec, tokenizer="memory://models/tok")
    assert there.manifest == pack(source, tmp_path / "out", spec, tokenizer=tokenizer).manifest
    with pytest.raises(InputError, match="no such place"):
        pack(source, "memory://bucket/other", spec, tokenizer="memory://models/none")


def test_a_broken_record_is_placed_by_its_url_and_line(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.text import sources

    monkeypatch.setattr(sources, "CHUNK_BYTES", 200)
    lines = store.objects["bucket/in/part-2.jsonl"].splitlines(keepends=True)
    lines[20] = b"{broken\n"
    store.objects["bucket/in/part-2.jsonl"] = b"".join(lines)
    with pytest.raises(RecordError, match=r"loopback://bucket/in/part-2.jsonl, line 21: "):
        pack("loopback://bucket/in", "loopback://bucket/out", PackSpec(64))
    packed = pack("loopback://bucket/in", "loopback://bucket/out", PackSpec(64), on_error="skip")
    assert packed.ledger.entries["skipped"].indices.tolist() == [70]


def test_a_source_that_changes_while_it_is_read_is_named(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.packing import tokenise

    real = tokenise.run

    def meddling(*args: Any) -> Any:
        result = real(*args)
        store.objects["bucket/in/part-5.jsonl"] += b'{"input_ids": [1]}\n'
        return result

    monkeypatch.setattr(tokenise, "run", meddling)
    with pytest.raises(ChangedError, match=r"loopback://bucket/in/part-5.jsonl must"):
        pack("loopback://bucket/in", "loopback://bucket/out", SPEC)
    assert not [key for key in store.objects if key.endswith("store.json")]


def test_every_export_and_check_of_a_url_are_those_of_the_local_disk(
    corpus: Path, tmp_path: Path, tokenizer: str, tree: Tree, bare_memory: Any
) -> None:
    from cloison.formats.exporting import LOSSES, TARGETS

    here = pack(str(corpus), tmp_path / "out", PackSpec(192), tokenizer=tokenizer)
    for path in (tmp_path / "out").iterdir():
        bare_memory.put_file(str(path), f"/bucket/out/{path.name}")
    for to in TARGETS:
        made = []
        for packed in (here, "memory://bucket/out"):  # to one place, since some formats name files by it
            cloison.export(packed, tmp_path / "dest", to, lose=list(LOSSES))
            made.append(tree(tmp_path / "dest"))
            shutil.rmtree(tmp_path / "dest")
        assert made[0] == made[1], to
    cloison.export(here, tmp_path / "trl", "trl")
    for path in (tmp_path / "trl").iterdir():
        bare_memory.put_file(str(path), f"/bucket/trl/{path.name}")
    there = cloison.check("memory://bucket/trl").to_dict()
    assert there == {**cloison.check(tmp_path / "trl").to_dict(), "source": "memory://bucket/trl"}
    with pytest.raises(StoreError, match="must be packed data"):
        cloison.check("memory://bucket/none")
