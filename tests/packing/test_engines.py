"""Engines: the same job in processes that somebody else starts, with the same bytes; and what is no engine."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloison import PackSpec, pack
from cloison.errors import InputError, MissingDependencyError, RecordError, StoreError
from cloison.packing import on_ray
from cloison.packing.engines import Do
from cloison.packing.job import run_job
from cloison.packing.worker import Done
from cloison.store.files import writer
from tests.packing.corpus import chats, token_records, write_lines

Tree = Callable[[Path], dict[str, str]]
Jobs = Sequence[Mapping[str, Any]]

SPEC = PackSpec(1 << 22, max_segments=8, carry=("source", "score"))
"""Blocks of a few samples, each as wide as a shard: many shards from little text."""

ONE_JOB = """
import json, pickle, sys
do, job = pickle.load(open(sys.argv[1], "rb"))
json.dump(do(job), open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tokenizer: str, tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> dict[str, str]:
    """The files of a run in this process: data set and tokens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert len(pack(str(corpus), folder / "out", SPEC, tokenizer=tokenizer).manifest.shards) > 10
    return tree(folder)


def test_two_local_workers_give_the_bytes_of_one_and_report_every_piece(
    corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree, undisturbed: dict[str, str]
) -> None:
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        done: list[Done] = []
        packed, _ = run_job(str(corpus), folder / "out", SPEC, tokenizer=tokenizer, workers=workers, report=done.append)
        assert tree(folder) == undisturbed
        assert sorted((one.step, one.index) for one in done) == [
            *(("fill", index) for index in range(len(packed.manifest.shards))),
            *(("tokenise", index) for index in range(6)),
        ]
        assert all(one.seconds > 0 for one in done)


def test_a_plain_loop_over_shards_each_in_a_process_of_its_own(
    corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on = []

    def loop(do: Do, jobs: Jobs) -> Iterable[dict[str, Any]]:
        for job in reversed(jobs):
            given, got = tmp_path / "job.pickle", tmp_path / "record.json"
            given.write_bytes(pickle.dumps((do, job)))
            passed_on.append(given.stat().st_size)
            subprocess.run([sys.executable, "-c", ONE_JOB, str(given), str(got)], check=True, cwd="/")
            yield json.loads(got.read_text())

    monkeypatch.chdir(corpus)
    few, some = SPEC.with_(max_segments=30), ["part-4.jsonl", "part-0.jsonl"]
    pack(some, tmp_path / "here" / "out", few, tokenizer=tokenizer)
    pack(some, tmp_path / "there" / "out", few, tokenizer=tokenizer, engine=loop)
    assert len(passed_on) == 2 + 2 + 1 + 2, "files, chunks, the plan, shards"
    assert max(passed_on) < 2_000
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


def test_a_pool_of_processes(corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree, undisturbed: dict[str, str]) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        pack(str(corpus), tmp_path / "out", SPEC, tokenizer=tokenizer, engine=lambda do, jobs: pool.map(do, jobs))
    assert tree(tmp_path) == undisturbed


def test_an_array_of_slurm_jobs(corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree) -> None:
    """The engine of docs/scale.md, with an sbatch that runs its array here."""
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    code = text.partition("<!-- slurm -->")[2].partition("```python\n")[2].partition("```")[0]
    assert "def on_slurm" in code
    (tmp_path / "on_slurm.py").write_text(code.replace("TASKS = 200", "TASKS = 2"))
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(
        """#!/bin/bash
for word in "$@"; do case $word in --array=*) last=${word#--array=0-};; esac; done
for i in $(seq 0 $last); do SLURM_ARRAY_TASK_ID=$i bash -c "${@: -1}" || exit 1; done
"""
    )
    fake.chmod(0o755)
    script = f"""
import cloison
from on_slurm import on_slurm
spec = cloison.PackSpec({SPEC.capacity}, max_segments=30, carry=("source", "score"))
cloison.pack({str(corpus)!r}, "there/out", spec, tokenizer={tokenizer!r}, engine=on_slurm)
cloison.pack({str(corpus)!r}, "here/out", spec, tokenizer={tokenizer!r})
"""
    (tmp_path / "driver.py").write_text(script)
    path = f"{fake.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([sys.executable, "driver.py"], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


def test_an_error_in_a_job_comes_through_whatever_carried_it(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*token_records(3, 0), {"input_ids": "no"}])

    def carried(do: Do, jobs: Jobs) -> Iterable[dict[str, Any]]:
        for job in pickle.loads(pickle.dumps(jobs)):
            try:
                yield do(job)
            except RecordError as error:
                raise pickle.loads(pickle.dumps(error)) from None

    with pytest.raises(RecordError, match=r"a\.jsonl, line 4"):
        pack(source, tmp_path / "out", PackSpec(64), engine=carried)


def test_what_a_killed_driver_left_beside_the_stores_is_removed(token_corpus: Path, tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    node = writer().rpartition("-")[0]
    left = tmp_path / "tokens" / f".hashing-{node}-{dead.stdout.strip()}"
    another = tmp_path / "tokens" / ".hashing-another-1"
    for folder in (left, another):
        folder.mkdir(parents=True)
        (folder / "hash.setup.json").write_text("{}")
    pack(str(token_corpus), tmp_path / "out", SPEC.with_(carry=()), engine=lambda do, jobs: map(do, jobs))
    assert not left.exists()
    assert another.exists(), "it may be at work"
    assert [path.name for path in (tmp_path / "tokens").glob(".hashing-*")] == [another.name]


def test_an_engine_that_leaves_jobs_undone_is_no_engine(token_corpus: Path, tmp_path: Path) -> None:
    def lazy(do: Do, jobs: Jobs) -> Iterable[dict[str, Any]]:
        return map(do, jobs[:4] if "chunk" in jobs[0] else jobs)

    with pytest.raises(StoreError, match="2 of 6 are missing, job 4 first") as caught:
        pack(str(token_corpus), tmp_path / "out", SPEC.with_(carry=()), engine=lazy)
    assert "what is finished is kept" in caught.value.remedy
    with pytest.raises(InputError, match="the record of each job"):
        pack(str(token_corpus), tmp_path / "out", SPEC.with_(carry=()), engine=lambda do, jobs: [None for _ in map(do, jobs)])  # type: ignore[misc]
    assert not (tmp_path / "out" / "manifest.json").exists()
    pack(str(token_corpus), tmp_path / "out", SPEC.with_(carry=()), engine=lambda do, jobs: map(do, jobs))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": "rya"}, "'rya'"),
        ({"engine": None}, "None"),
        ({"workers": 0}, "It is 0."),
        ({"workers": True}, "It is True."),
        ({"engine": "ray", "workers": -1}, "It is -1."),
        ({"address": "head:6379"}, "The engine is 'local'."),
    ],
)
def test_what_is_no_engine_is_refused_before_anything_is_read(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        pack(tmp_path / "nothing", tmp_path / "out", SPEC, **change)
    assert said in caught.value.found
    assert not (tmp_path / "out").exists()


def test_memory_of_this_process_is_no_place_for_workers(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", chats(2, 0))
    with pytest.raises(InputError, match="in the memory of this one"):
        pack(tmp_path / "a.jsonl", "memory://bucket/out", SPEC, engine=lambda do, jobs: map(do, jobs))


def test_an_address_where_nobody_answers_is_said_at_once(
    token_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(on_ray, "_ANSWER_S", 0.3)
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        for port, said in ((silent.getsockname()[1], "timed out"), (closed.getsockname()[1], "refused")):
            with pytest.raises(StoreError, match="a Ray cluster must answer at") as caught:
                pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray", address=f"127.0.0.1:{port}")
            assert said in caught.value.found
            assert "ray status" in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_another_server_is_no_ray_head(token_corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            line, _ = server.accept()
            line.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            line.close()

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(StoreError, match="no Ray head"):
            pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray", address=f"127.0.0.1:{server.getsockname()[1]}")


def test_without_ray_the_extra_is_named(token_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"cloison\[ray\]"):
        pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray")
