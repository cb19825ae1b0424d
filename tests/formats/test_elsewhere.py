"""Exports to, and imports from and into, file systems that are not the local disk: whole or not there, and the same bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloison
from cloison.cli import main
from cloison.errors import InputError, StoreError
from cloison.formats import new_folder
from cloison.formats.exporting import LOSSES, TARGETS
from cloison.formats.importing import Format
from cloison.places import Remote, download
from tests.formats import fact_readers
from tests.places.server import ObjectStore

DEST = "loopback://bucket/dest"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three files."""
    folder = tmp_path_factory.mktemp("packed")
    random = np.random.default_rng(5)
    rows = []
    for _ in range(12):
        ids = random.integers(5, 70_000, random.integers(2, 9)).tolist()
        rows.append({"input_ids": ids, "labels": [-100] * (1 + len(ids) // 3) + ids[1 + len(ids) // 3 :]})
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = cloison.PackSpec(capacity=1 << 22, max_segments=4)
    assert len(cloison.pack(folder / "a.jsonl", folder / "out", spec).manifest.shards) == 3
    return folder / "out"


@pytest.fixture(scope="module")
def narrow(packed: Path) -> Path:
    """The same samples in rows that a format of fixed width may take."""
    cloison.pack(packed.parent / "a.jsonl", packed.parent / "narrow", cloison.PackSpec(capacity=16))
    return packed.parent / "narrow"


def _files(store: ObjectStore) -> dict[str, bytes]:
    return {key.removeprefix("bucket/dest/"): content for key, content in store.objects.items() if "/dest/" in key}


def _fetch(store: ObjectStore, folder: Path) -> Path:
    for name, content in _files(store).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("to", TARGETS)
def test_an_export_by_url_is_that_of_the_local_disk(to: str, narrow: Path, tmp_path: Path, loopback: ObjectStore) -> None:
    here = cloison.export(narrow, tmp_path / "here", to, lose=list(LOSSES))
    there = cloison.export(narrow, DEST, to, lose=list(LOSSES))
    files = _files(loopback)
    assert there.path == Remote(DEST) and {str(file) for file in there.files} == {f"{DEST}/{name}" for name in files}
    wanted = {str(file.relative_to(here.path)): file.read_bytes() for file in here.files}  # type: ignore[union-attr,arg-type]
    if to == "olmo-core":  # it names its packing by where the tokens lie
        assert sorted(files.values()) == sorted(wanted.values()) and len(set(files) - set(wanted)) == 3
    else:
        assert files == wanted
    order = [key for method, key in loopback.asked if method == "PUT" and ".work" not in key]
    assert f"loopback://{order[-1]}" == str(there.files[-1]), "what makes the set whole comes last"
    read = getattr(fact_readers, to.replace("-", "_"))
    assert read(_fetch(loopback, tmp_path / "fetched")) == read(here.path)
    assert DEST in there.usage and json.loads(json.dumps(there.to_dict()))["path"] == DEST


def test_the_packing_of_olmo_core_is_found_by_the_url_of_its_tokens(narrow: Path, loopback: ObjectStore) -> None:
    from cloison.formats.olmo_core import _Packing

    cloison.export(narrow, DEST, "olmo-core")
    files = _files(loopback)
    (tokens,) = (name for name in files if name.startswith("tokens-") and name.endswith(".npy"))
    metadata = files[tokens.replace(".npy", ".csv.gz")]
    key = _Packing(Remote(f"{DEST}/{tokens}"), len(files[tokens]), hashlib.sha256(metadata).hexdigest(), 16).key()
    assert sum(key in name for name in files) == 3


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_store_that_fails_some_requests_costs_time_only(
    share: float, packed: Path, loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0,) * 8)
    loopback.fail(share, 1)
    cloison.export(packed, DEST, "trl")
    wanted = {f"train-{n:05d}.parquet": (packed / f"blocks-{n:05d}.parquet").read_bytes() for n in range(3)}
    assert _files(loopback) == wanted


@pytest.mark.parametrize("what", [KeyboardInterrupt(), StoreError("no")])
def test_an_export_that_fails_while_it_puts_leaves_nothing(
    what: BaseException, packed: Path, loopback: ObjectStore, own_scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = new_folder.put

    def failing(local: Path, at: Remote) -> None:
        if at.name == "train-00002.parquet":
            raise what
        real(local, at)

    monkeypatch.setattr(new_folder, "put", failing)
    with pytest.raises(type(what)):
        cloison.export(packed, DEST, "trl")
    assert not _files(loopback) and ("PUT", "bucket/dest/train-00000.parquet") in loopback.asked
    assert not [path for path in own_scratch.rglob("*") if path.is_file()]


def test_what_a_killed_export_left_is_removed_by_the_next(
    packed: Path, narrow: Path, loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # it can neither go on nor clear away
        patch.setattr(new_folder, "remove", killed)
        real = new_folder.put
        patch.setattr(new_folder, "put", lambda local, at: killed() if "00002" in at.name else real(local, at))
        with pytest.raises(KeyboardInterrupt):
            cloison.export(packed, DEST, "trl")
    assert sorted(_files(loopback)) == [".work/publishing.json", "train-00000.parquet", "train-00001.parquet"]
    loopback.objects["bucket/dest/mine"] = b"x"
    with pytest.raises(StoreError, match="new or empty folder"):
        cloison.export(narrow, DEST, "trl")
    del loopback.objects["bucket/dest/mine"]
    cloison.export(narrow, DEST, "trl")
    assert _files(loopback) == {"train-00000.parquet": (narrow / "blocks-00000.parquet").read_bytes()}


def test_one_that_was_taken_over_publishes_nothing(
    packed: Path, loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = new_folder.write_record

    def taken(path: Remote, record: dict[str, Any]) -> None:
        real(path, record)
        loopback.objects["bucket/dest/.work/claim.json"] = b'{"writer": "another", "machine": "m", "process": 1}'
        loopback.objects["bucket/dest/train-00000.parquet"] = b"another's"

    monkeypatch.setattr(new_folder, "write_record", taken)
    monkeypatch.setattr(new_folder, "put", lambda local, at: None)
    with pytest.raises(StoreError, match="takes one run at a time"):
        cloison.export(packed, DEST, "trl")
    assert _files(loopback)["train-00000.parquet"] == b"another's"


def test_used_places_and_the_data_set_itself_are_refused(packed: Path, loopback: ObjectStore) -> None:
    loopback.objects["bucket/dest/deep/mine"] = b"x"
    loopback.objects["bucket/file"] = b"x"
    for dest in (DEST, f"{DEST}/deep/mine", "loopback://bucket/file"):
        with pytest.raises(StoreError, match="new or empty folder"):
            cloison.export(packed, dest, "trl")
    for path in packed.iterdir():
        loopback.objects[f"bucket/set/{path.name}"] = path.read_bytes()
    for dest in ("loopback://bucket/set", "loopback://bucket/set/inner"):
        with pytest.raises(InputError, match="must not be inside"):
            cloison.export("loopback://bucket/set", dest, "trl")
    cloison.export("loopback://bucket/set", "loopback://bucket/set-out", "trl")
    assert loopback.objects["bucket/set-out/train-00000.parquet"] == loopback.objects["bucket/set/blocks-00000.parquet"]


SOURCES: dict[Format, tuple[str, dict[str, Any]]] = {
    "megatron": ("/samples_text_document", {}),
    "olmo-core": ("", {"dtype": "uint32"}),
    "mds": ("", {}),
}


@pytest.mark.parametrize("format", SOURCES)
def test_an_import_by_url_is_that_of_the_local_disk(
    format: Format, narrow: Path, tmp_path: Path, loopback: ObjectStore, own_scratch: Path
) -> None:
    suffix, options = SOURCES[format]
    lose = list(LOSSES)
    cloison.export(narrow, tmp_path / "store", format, lose=lose)
    cloison.export(narrow, DEST, format, lose=lose)
    here = cloison.import_tokens(f"{tmp_path}/store{suffix}", tmp_path / "here", format, **options)
    there = cloison.import_tokens(DEST + suffix, "loopback://bucket/taken", format, **options)
    assert (there.samples, there.tokens, there.masked) == (here.samples, here.tokens, here.masked)
    for ours, theirs in zip(here.files, there.files, strict=True):
        assert isinstance(ours, Path) and loopback.objects[str(theirs).partition("://")[2]] == ours.read_bytes()
    assert not [path for path in own_scratch.rglob("*") if path.is_file()], "copies are gone"
    again = cloison.pack("loopback://bucket/taken", tmp_path / "again", cloison.PackSpec(capacity=16))
    assert again.manifest.num_tokens == cloison.open(narrow).manifest.num_tokens


@pytest.mark.parametrize("format", ["olmo-core", "datatrove"])
def test_one_file_brings_what_lies_beside_it(format: Format, tmp_path: Path, bare_memory: Any) -> None:
    ids = np.arange(5, 25, dtype="<u4")
    asked = np.arange(20) % 3 > 0
    if format == "olmo-core":
        files = {"part-7.npy": ids, "label_mask-7.npy": asked, "part-8.npy": ids, "label_mask-8.npy": asked}
        name, options = "part-7.npy", {"dtype": "uint32", "eos_token_id": 14}
    else:
        ends = np.array([10, 20], "<u8")
        files = {"a.ds": ids, "a.ds.index": ends, "a.ds.loss": asked, "b.ds": ids, "b.ds.index": ends, "b.ds.loss": asked}
        name, options = "a.ds", {}
    for path, array in files.items():
        bare_memory.pipe_file(f"/bucket/in/{path}", array.tobytes())
    done = cloison.import_tokens(f"memory://bucket/in/{name}", tmp_path / "one", format, **options)
    assert (done.samples, done.tokens, done.masked) == (2, 20, True)
    done = cloison.import_tokens("memory://bucket/in", tmp_path / "all", format, **options)
    assert (done.samples, done.tokens) == (4, 40)


def test_errors_of_an_import_name_the_url(tmp_path: Path, bare_memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "memory://bucket/none", str(tmp_path / "x"), "--from", "mds"]) == 2
    assert "memory://bucket/none must be a token store.\nNone of its files is there." in capsys.readouterr().err
    bare_memory.pipe_file("/bucket/in/a.ds", b"x" * 40)
    bare_memory.pipe_file("/bucket/in/a.ds.index", np.array([11], "<u8").tobytes())
    for source in ("memory://bucket/in", "memory://bucket/in/a.ds"):
        assert main(["import", source, str(tmp_path / "x"), "--from", "datatrove"]) == 2
        said = capsys.readouterr().err
        assert "memory://bucket/in/a.ds must hold the 11 tokens of its index" in said and "cloison-" not in said
    assert not (tmp_path / "x").exists()


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, loopback: ObjectStore) -> None:
    loopback.objects["bucket/in/../../../escaped.ds"] = b"x"
    loopback.objects["bucket/in/a.ds"] = b"x"
    with pytest.raises(StoreError, match="must hold files of plain names"):
        cloison.import_tokens("loopback://bucket/in", tmp_path / "x", "datatrove")


def test_a_download_is_whole(tmp_path: Path, loopback: ObjectStore) -> None:
    loopback.objects["bucket/a"] = b"abc"
    download(Remote("loopback://bucket/a"), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"abc"
    with pytest.raises(FileNotFoundError):
        download(Remote("loopback://bucket/b"), tmp_path / "b")
