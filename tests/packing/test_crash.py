"""Whatever stops a run, the next one ends with the bytes of an undisturbed one, and nothing half is ever taken for whole."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloison
from cloison import PackSpec, pack
from cloison.errors import ChangedError, CloisonError, ManifestError, StoreError
from cloison.store import files
from tests.packing.corpus import token_records, write_lines

Tree = Callable[[Path], dict[str, str]]

SPEC = PackSpec(1 << 22, max_segments=8, carry=("source",))
"""Blocks of a few samples, each as wide as a shard: many shards from little text."""


@pytest.fixture(scope="module")
def undisturbed(token_corpus: Path, tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> dict[str, str]:
    """The files of a run that nothing disturbed: data set and tokens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    packed = pack(str(token_corpus), folder / "out", SPEC)
    assert len(packed.manifest.shards) > 10
    return tree(folder)


def command(source: Path, folder: Path, workers: int) -> list[str]:
    words = ["pack", str(source), "--out", str(folder / "out"), "--workers", str(workers)]
    words += ["--capacity", str(SPEC.capacity), "--max-segments", "8", "--carry", "source"]
    return [sys.executable, "-m", "cloison.cli", *words]


def test_an_interruption_at_any_step_leaves_a_state_that_goes_on(
    token_corpus: Path,
    tmp_path: Path,
    tree: Tree,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.replace
    steps = 0
    for stop_at in (*range(1, 70, 3), None):
        count = 0

        def interrupted(*args: Any, stop_at: int | None = stop_at) -> Any:
            nonlocal count
            count += 1
            if count == stop_at:
                raise KeyboardInterrupt
            return real(*args)

        monkeypatch.setattr(files.os, "replace", interrupted)
        try:
            pack(str(token_corpus), tmp_path / "out", SPEC)
            break
        except KeyboardInterrupt:
            steps += 1
            assert not (tmp_path / "out" / "manifest.json").exists()
            assert not list(tmp_path.rglob("*.part"))
    assert steps > 3
    assert tree(tmp_path) == undisturbed


def test_ctrl_c_says_how_to_go_on_and_leaves_no_worker(token_corpus: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        write_lines(source / f"{number}.jsonl", token_records(1500, number))
    process = subprocess.Popen(command(source, tmp_path, 2), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "tokens").glob("*/chunk-*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Run the same command again" in said
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_full_disk_is_said_and_leaves_nothing_half(
    token_corpus: Path, tmp_path: Path, tree: Tree, undisturbed: dict[str, str]
) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    words = command(token_corpus, tmp_path, 1)
    done = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=small_files)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert tree(tmp_path) == undisturbed


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(token_corpus: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(StoreError, match="cannot be used") as caught:
        pack(str(token_corpus), locked / "out", SPEC)
    assert "writable" in caught.value.remedy


def test_an_output_below_a_file_is_said(token_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used") as caught:
        pack(str(token_corpus), tmp_path / "file" / "out", SPEC)
    assert "Not a directory" in caught.value.found


@pytest.mark.parametrize("name", ["blocks-00002.parquet", "blocks-00000.parquet"])
def test_a_shard_that_changed_is_noticed(token_corpus: Path, tmp_path: Path, name: str) -> None:
    packed = pack(str(token_corpus), tmp_path / "out", SPEC)
    path = tmp_path / "out" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    cloison.open(tmp_path / "out")
    with pytest.raises(ChangedError, match="must have the sha256"):
        packed.verify()
    path.write_bytes(whole[:-1])
    with pytest.raises(ChangedError, match=f"{name} must have {len(whole):,} bytes"):
        cloison.open(tmp_path / "out")
    path.unlink()
    with pytest.raises(ChangedError, match="missing"):
        pack(str(token_corpus), tmp_path / "out", SPEC)


def test_a_shard_of_an_unfinished_run_that_changed_is_written_again(
    token_corpus: Path, tmp_path: Path, tree: Tree, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloison.packing import job

    def no_manifest(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "write_manifest", no_manifest)
    with pytest.raises(KeyboardInterrupt):
        pack(str(token_corpus), tmp_path / "out", SPEC)
    monkeypatch.undo()
    with pytest.raises(ManifestError, match="packing did not finish"):
        cloison.open(tmp_path / "out")
    (tmp_path / "out" / "blocks-00001.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "out" / "blocks-00003.parquet").unlink()
    pack(str(token_corpus), tmp_path / "out", SPEC)
    assert tree(tmp_path) == undisturbed


def test_an_unfinished_run_of_other_choices_is_begun_anew(
    token_corpus: Path, tmp_path: Path, tree: Tree, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloison.packing import job

    monkeypatch.setattr(job, "write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pack(str(token_corpus), tmp_path / "out", SPEC.with_(max_segments=2))
    monkeypatch.undo()
    pack(str(token_corpus), tmp_path / "out", SPEC)
    assert tree(tmp_path) == undisturbed


def test_blocks_whose_footer_was_damaged_are_an_error_or_read_as_they_were(token_corpus: Path, tmp_path: Path) -> None:
    """pyarrow raises errors of many kinds there; none of them passes through."""
    packed = pack(str(token_corpus), tmp_path / "out", PackSpec(256))
    path = tmp_path / "out" / "blocks-00000.parquet"
    whole, blocks, damaged = path.read_bytes(), list(packed), 0
    for place in range(9, 1500, 23):
        body = bytearray(whole)
        body[-place] ^= 0x80
        path.write_bytes(body)
        try:
            again = cloison.open(tmp_path / "out")
            found = list(again)
            again.segments()
        except CloisonError:
            damaged += 1
        else:
            assert [block.input_ids.size for block in found] == [block.input_ids.size for block in blocks]
    assert damaged > 5


def test_a_token_store_that_changed_is_noticed(token_corpus: Path, tmp_path: Path) -> None:
    pack(str(token_corpus), tmp_path / "out", SPEC)
    chunk = next((tmp_path / "tokens").glob("*/chunk-000003.arrow"))
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(ChangedError, match=r"chunk-000003.arrow must have the content") as caught:
        pack(str(token_corpus), tmp_path / "other", SPEC.with_(seed=1))
    assert str(chunk.parent) in caught.value.remedy


def test_a_source_that_changes_while_it_is_read_is_noticed(
    token_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloison.packing import tokenise

    source = tmp_path / "source"
    shutil.copytree(token_corpus, source)
    real = tokenise.run

    def meddling(state: Any, job: Any) -> Any:
        result = real(state, job)
        (source / "part-0.jsonl").write_text('{"text": "other"}\n')
        return result

    monkeypatch.setattr(tokenise, "run", meddling)
    with pytest.raises(ChangedError, match=r"part-0.jsonl must"):
        pack(str(source), tmp_path / "out", SPEC)
    assert not list((tmp_path / "tokens").glob("*/store.json"))


def test_two_runs_at_once_in_one_folder_are_refused(token_corpus: Path, tmp_path: Path) -> None:
    from cloison.packing.folder import working_in

    with (
        working_in(tmp_path / "out", "one"),
        pytest.raises(StoreError, match="one run at a time"),
        working_in(tmp_path / "out", "one"),
    ):
        pass


def test_a_manifest_that_was_edited_is_noticed(token_corpus: Path, tmp_path: Path) -> None:
    pack(str(token_corpus), tmp_path / "out", SPEC)
    path = tmp_path / "out" / "manifest.json"
    text = path.read_text()
    for changed, said in (
        (text.replace('"format_version": 1', '"format_version": 99'), "reads format version"),
        (text.replace('"samples_kept": 1', '"samples_kept": 2'), "It was changed"),
        (text.replace('"num_blocks"', '"num_blorks"'), "has all its fields"),
        ("[]", "JSON object"),
        ("{", "must be JSON"),
    ):
        path.write_text(changed)
        with pytest.raises(StoreError, match=said):
            cloison.open(tmp_path / "out")


def test_a_chunk_of_tokens_that_was_damaged_is_an_error_with_the_way_out(token_corpus: Path, tmp_path: Path) -> None:
    packed = pack(str(token_corpus), tmp_path / "out", SPEC)
    chunk = next((tmp_path / "tokens").glob("*/chunk-000000.arrow"))
    whole = chunk.read_bytes()
    for place in range(0, len(whole), 301):
        body = bytearray(whole)
        body[place] ^= 0xFF
        chunk.write_bytes(body)
        with pytest.raises(StoreError) as caught:
            pack(str(token_corpus), tmp_path / "other", SPEC.with_(seed=1))
        assert f"Remove {chunk.parent} and run again" in caught.value.remedy
    chunk.write_bytes(whole)
    assert len(pack(str(token_corpus), tmp_path / "other", SPEC.with_(seed=1))) == len(packed)
