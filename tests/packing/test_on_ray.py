"""The same job on a real Ray cluster of several processes: the same bytes, whatever dies, and errors that say what is wrong."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from cloison import PackSpec, pack
from cloison.errors import CloisonError, InputError, MissingDependencyError, RecordError, StoreError
from cloison.packing import on_ray
from cloison.packing.job import run_job
from cloison.packing.worker import Done
from tests.packing.corpus import token_records, write_lines

Tree = Callable[[Path], dict[str, str]]

SPEC = PackSpec(1 << 22, max_segments=8, carry=("source",))
"""Blocks of a few samples, each as wide as a shard: many shards from little text."""

WORDS = ["--capacity", str(SPEC.capacity), "--max-segments", "8", "--carry", "source", "--engine", "ray"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two CPUs on this machine, which ends with the module."""
    pytest.importorskip("ray")
    short = tempfile.TemporaryDirectory(
        prefix="r", dir="/tmp", ignore_cleanup_errors=True
    )  # the names of sockets have little room
    with short, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", short.name)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        settings = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, connect=False, head_node_args=settings)
        yield str(cluster.address)
        cluster.shutdown()


@pytest.fixture(scope="module")
def ray(address: str) -> Iterator[ModuleType]:
    """Ray, connected to the cluster: `pack` uses the connection that is there."""
    import ray

    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def undisturbed(token_corpus: Path, tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> dict[str, str]:
    """The files of a run on this machine that nothing disturbed: data set and tokens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert len(pack(str(token_corpus), folder / "out", SPEC).manifest.shards) > 10
    return tree(folder)


@pytest.fixture(scope="module")
def big_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files that each keep a worker busy for a while."""
    folder = tmp_path_factory.mktemp("big")
    for number in range(8):
        write_lines(folder / f"{number}.jsonl", token_records(2000, number, longest=160))
    return folder


def command(source: Path, folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "cloison.cli", "pack", str(source), "--out", str(folder / "out"), *WORDS, *words]


def wait_for(found: Callable[[], Any], seconds: float = 90) -> Any:
    """Return what ``found`` returns as soon as that is something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if seen := found():
            return seen
        time.sleep(0.002)
    raise AssertionError("it did not come")


# ------------------------------------------------------------------ the same bytes


@pytest.mark.parametrize("workers", [1, 3, None])
def test_the_bytes_are_those_of_the_local_engine_in_any_order(
    ray: ModuleType,
    corpus: Path,
    tokenizer: str,
    tmp_path: Path,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
) -> None:
    spec = PackSpec(256, max_segments=3, carry=("source", "score"))
    pack(str(corpus), tmp_path / "here" / "out", spec, tokenizer=tokenizer)
    real, orders = on_ray.run_jobs, []

    def shuffled(setup: Mapping[str, Any], jobs: Any, **rest: Any) -> Iterator[dict[str, Any]]:
        order = random.Random(workers or 0).sample(list(jobs), len(jobs))
        assert [job["index"] for job in order] != sorted(job["index"] for job in order) or len(order) < 3
        for record in real(setup, order, **rest):
            orders.append(record["index"])
            yield record

    monkeypatch.setattr(on_ray, "run_jobs", shuffled)
    monkeypatch.chdir(corpus.parent)  # sources named from here, which is not where the workers are
    there = tmp_path / "there"
    pack(corpus.name, there / "out", spec, tokenizer=tokenizer, engine="ray", workers=workers)
    assert len(orders) >= 12
    assert orders[6:12] != sorted(orders[6:12])
    assert tree(there) == tree(tmp_path / "here")


def test_tokens_pass_through_neither_this_process_nor_the_object_store(
    ray: ModuleType, big_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    real = on_ray._answer

    def weighed(ray: ModuleType, ref: Any, job: Mapping[str, Any]) -> Any:
        answer = real(ray, ref, job)
        sizes.append(len(pickle.dumps(answer)) + len(pickle.dumps(job)))
        return answer

    def no_objects(*_: Any, **__: Any) -> None:
        raise AssertionError("an object was put into the store")

    monkeypatch.setattr(on_ray, "_answer", weighed)
    monkeypatch.setattr(ray, "put", no_objects)
    free = ray.available_resources()["object_store_memory"]
    done: list[Done] = []
    packed, _ = run_job(str(big_corpus), tmp_path / "out", PackSpec(1 << 12), engine="ray", report=done.append)
    assert packed.manifest.num_tokens > 1_000_000
    assert len(sizes) == len(done) > 8
    assert max(sizes) < 8_000, "plain records, far below the 100 kB from which Ray puts a result into its store"
    assert ray.available_resources()["object_store_memory"] == free


def test_progress_goes_over_all_workers_in_one_count_and_every_piece_is_reported(
    ray: ModuleType, token_corpus: Path, tmp_path: Path
) -> None:
    said: list[tuple[str, int, int]] = []
    done: list[Done] = []
    packed, _ = run_job(
        str(token_corpus), tmp_path / "out", SPEC, engine="ray", progress=lambda *line: said.append(line), report=done.append
    )
    total = len(packed.manifest.shards)
    assert [line for line in said if line[0] == "tokenising"] == [("tokenising", n + 1, 6) for n in range(6)]
    assert [line for line in said if line[0] == "writing blocks"] == [("writing blocks", n + 1, total) for n in range(total)]
    assert sorted((one.step, one.index) for one in done) == [
        *(("fill", index) for index in range(total)),
        *(("hash", index) for index in range(6)),
        ("plan", 0),
        *(("tokenise", index) for index in range(6)),
    ]
    assert all(one.seconds > 0 and one.tries == 1 and one.node for one in done)


# ------------------------------------------------------------------ what dies


def test_a_worker_that_is_killed_in_the_middle_of_a_chunk_is_replaced(
    ray: ModuleType, big_corpus: Path, tmp_path: Path, tree: Tree
) -> None:
    pack(str(big_corpus), tmp_path / "here" / "out", PackSpec(1 << 12))
    killed: list[int] = []
    stop = threading.Event()

    def killer() -> None:
        while not stop.is_set() and len(killed) < 2:
            for part in tmp_path.glob("there/tokens/*/chunk-*.part"):
                victim = int(part.name.removesuffix(".part").rpartition("-")[2])
                if victim not in killed and part.exists():
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
            time.sleep(0.002)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        pack(str(big_corpus), tmp_path / "there" / "out", PackSpec(1 << 12), engine="ray")
    finally:
        stop.set()
        thread.join()
    assert len(killed) == 2
    assert os.getpid() not in killed
    assert tree(tmp_path / "there") == tree(tmp_path / "here"), "and no unfinished file of the killed is left"


def test_a_chunk_that_kills_every_worker_is_named_and_the_others_are_done(
    ray: ModuleType, big_corpus: Path, tmp_path: Path
) -> None:
    killed: set[int] = set()
    stop = threading.Event()

    def killer() -> None:
        while not stop.is_set():
            for part in tmp_path.glob("tokens/*/chunk-000002.arrow.*.part"):
                victim = int(part.name.removesuffix(".part").rpartition("-")[2])
                if victim not in killed:
                    os.kill(victim, signal.SIGKILL)
                    killed.add(victim)
            time.sleep(0.002)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        with pytest.raises(StoreError, match="job 2 must be done") as caught:
            pack(str(big_corpus), tmp_path / "out", PackSpec(1 << 12), engine="ray")
    finally:
        stop.set()
        thread.join()
    assert len(killed) == 3
    assert "Its worker died 3 times (WorkerCrashedError). (Chunk 2 failed so; of 8, 7 are done and kept.)" in caught.value.found
    assert "memory" in caught.value.remedy
    assert len(list(tmp_path.glob("tokens/*/chunk-*.arrow"))) == 7
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("store.json"))


@pytest.mark.parametrize("stage", ["tokens/*/chunk-*.json", "out/.work/blocks-*.json"])
def test_after_a_kill_of_the_driver_nothing_that_was_finished_is_done_again(
    address: str, ray: ModuleType, token_corpus: Path, tmp_path: Path, tree: Tree, undisturbed: dict[str, str], stage: str
) -> None:
    driver = subprocess.Popen(
        command(token_corpus, tmp_path, "--address", address, "--workers", "1"), stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len(list(tmp_path.glob(stage))) >= 2 or driver.poll() is not None)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL, "it was killed before its end"
    time.sleep(1)  # Ray ends its workers
    finished = {path: path.stat().st_ino for path in tmp_path.glob(stage)}
    step, names = ("tokenise", "chunk") if "chunk" in stage else ("fill", "blocks")
    whole = {int(path.name.partition(".")[0].removeprefix(f"{names}-")) for path in finished}
    assert len(whole) >= 2
    assert not (tmp_path / "out" / "manifest.json").exists()
    done: list[Done] = []
    packed, _ = run_job(str(token_corpus), tmp_path / "out", SPEC, engine="ray", report=done.append)
    total = 6 if step == "tokenise" else len(packed.manifest.shards)
    again = sorted(one.index for one in done if one.step == step)
    assert again == sorted(set(range(total)) - whole)
    if step == "tokenise":
        assert {path: path.stat().st_ino for path in finished} == finished, "the very files"
    assert tree(tmp_path) == undisturbed


def test_ctrl_c_stops_the_workers_and_says_how_to_go_on(address: str, big_corpus: Path, tmp_path: Path) -> None:
    words = command(big_corpus, tmp_path, "--address", address)
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list(tmp_path.glob("tokens/*/chunk-*.part")) or driver.poll() is not None)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130, said
    assert "Run the same command again" in said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.part"))
    files = sorted(path.name for path in tmp_path.rglob("*"))
    time.sleep(1)
    assert sorted(path.name for path in tmp_path.rglob("*")) == files, "nobody writes any more"
    assert "manifest.json" not in files


# ------------------------------------------------------------------ what fails


def test_a_shard_that_always_fails_is_named_at_the_end_and_the_others_are_done(
    ray: ModuleType, token_corpus: Path, tmp_path: Path, tree: Tree, undisturbed: dict[str, str]
) -> None:
    in_the_way = tmp_path / "out" / "blocks-00007.parquet" / "a folder"

    def progress(what: str, done: int, total: int) -> None:
        if what == "writing blocks" and done == 1:
            in_the_way.mkdir(parents=True)

    with pytest.raises(StoreError) as caught:
        pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray", workers=1, progress=progress)
    total = sum(name.startswith("out/blocks") for name in undisturbed)
    assert "blocks-00007.parquet cannot be written" in caught.value.asked
    assert "Is a directory" in caught.value.found
    assert f"(Shard 7 failed so; of {total}, {total - 1} are done and kept.)" in caught.value.found
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert len([path for path in (tmp_path / "out").glob("blocks-*.parquet") if path.is_file()]) == total - 1
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    done: list[Done] = []
    run_job(str(token_corpus), tmp_path / "out", SPEC, engine="ray", report=done.append)
    assert [(one.step, one.index) for one in done if one.step not in ("hash", "plan")] == [("fill", 7)]
    assert tree(tmp_path) == undisturbed


def test_broken_records_are_named_as_the_local_engine_does_and_counted(ray: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        lines = token_records(20, number)
        write_lines(source / f"{number}.jsonl", [*lines, {"input_ids": "no"}] if number in (1, 3) else lines)
    caught = []
    for engine in ("local", "ray"):
        with pytest.raises(RecordError) as error:
            pack(str(source), tmp_path / engine / "out", PackSpec(64), engine=engine)  # type: ignore[arg-type]
        caught.append(error.value)
    here, there = caught
    assert (type(there), there.asked, there.remedy) == (type(here), here.asked, here.remedy)
    assert there.found.startswith(here.found)
    assert "(2 failed, chunk 1 so; of 5, 3 are done and kept. Chunk 3: " in there.found
    assert "3.jsonl, line 21" in there.found
    assert len(list(tmp_path.glob("ray/tokens/*/chunk-*.arrow"))) == 3
    assert len(list(tmp_path.glob("ray/tokens/*/store.json"))) == 0


def test_a_store_that_fails_some_requests_costs_tries_only(
    ray: ModuleType,
    token_corpus: Path,
    tmp_path: Path,
    tree: Tree,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, failures = on_ray._answer, []

    def unlucky(ray: ModuleType, ref: Any, job: Mapping[str, Any]) -> Any:
        answer = real(ray, ref, job)
        if "chunk" in job and job["index"] in (1, 4) and failures.count(job["index"]) < 2:
            failures.append(job["index"])
            return on_ray._Failed(StoreError("it cannot be read.", "The system says: try again.", "Run again."), may_pass=True)
        return answer

    monkeypatch.setattr(on_ray, "_answer", unlucky)
    done: list[Done] = []
    run_job(str(token_corpus), tmp_path / "out", SPEC, engine="ray", report=done.append)
    assert sorted(failures) == [1, 1, 4, 4]
    assert {one.index: one.tries for one in done if one.step == "tokenise"} == {0: 1, 1: 3, 2: 1, 3: 1, 4: 3, 5: 1}
    assert tree(tmp_path) == undisturbed


def test_a_machine_that_does_not_see_the_files_says_so(
    ray: ModuleType, token_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = on_ray.publish

    def elsewhere(setup: Mapping[str, Any], scratch: Any) -> tuple[str, str]:
        where, seal = real(setup, scratch)
        Path(where).unlink()  # as if it were on a disk of this machine alone
        return where, seal

    monkeypatch.setattr(on_ray, "publish", elsewhere)
    with pytest.raises(StoreError, match="every worker must see the files of the run") as caught:
        pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray")
    assert str(tmp_path / "tokens") in caught.value.asked
    assert "does not see hash-" in caught.value.found
    assert "that all machines share" in caught.value.remedy


def test_a_worker_with_another_version_is_refused(
    ray: ModuleType, token_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other" / "cloison-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloison\nVersion: 9.9.9\n")
    let_workers_find(tmp_path / "other", ray, monkeypatch)
    with pytest.raises(MissingDependencyError, match=r"has cloison 9.9.9 in place of") as caught:
        pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray", workers=1)
    assert "Install the same versions on every machine" in caught.value.remedy


def test_a_worker_without_cloison_is_said(
    ray: ModuleType, token_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare" / "cloison"
    bare.mkdir(parents=True)
    (bare / "__init__.py").write_text("")
    let_workers_find(tmp_path / "bare", ray, monkeypatch)
    with pytest.raises(MissingDependencyError, match="every machine of the cluster must have cloison"):
        pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray", workers=1)


def let_workers_find(path: Path, ray: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tasks of this test run in processes that find ``path`` before all else."""
    real = ray.remote
    environment = {"env_vars": {"PYTHONPATH": str(path)}}
    monkeypatch.setattr(ray, "remote", lambda **options: real(**options, runtime_env=environment))


def test_a_failure_names_the_first_and_counts_the_rest() -> None:
    failed: dict[int, CloisonError] = {n: StoreError(f"{n} cannot be written.", "Full.", "Free space.") for n in range(3, 12)}
    error = on_ray._failure("shard", failed, 40)
    assert isinstance(error, StoreError)
    assert (error.asked, error.remedy) == ("3 cannot be written.", "Free space.")
    assert "(9 failed, shard 3 so; of 40, 31 are done and kept." in error.found
    assert "Shard 7: 7 cannot be written. Full. ... and 4 more.)" in error.found


# ------------------------------------------------------------------ the cluster


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", ":x"])
def test_an_address_of_another_form_is_refused(address: str, token_corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="HOST:PORT") as caught:
        pack(str(token_corpus), tmp_path / "out", SPEC, engine="ray", address=address)
    assert repr(address) in caught.value.found


def test_a_process_that_is_connected_stays_so(ray: ModuleType, address: str, token_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is connected to"):
        pack(str(token_corpus), tmp_path / "other", SPEC, engine="ray", address="other:6379")
    with on_ray.connected(address) as same:
        assert same is ray
    assert ray.is_initialized()


def test_a_cluster_of_its_own_ends_with_the_run_and_with_its_driver(
    token_corpus: Path, tree: Tree, undisturbed: dict[str, str]
) -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as short:
        environment = {**os.environ, "RAY_TMPDIR": short}
        environment.pop("RAY_ADDRESS", None)

        def its_processes() -> list[psutil.Process]:
            found = []
            for process in psutil.process_iter(["cmdline", "status"]):
                if process.info["status"] != psutil.STATUS_ZOMBIE and any(
                    short in word for word in process.info["cmdline"] or ()
                ):
                    found.append(process)
            return [process for process in found if "cloison.cli" not in process.info["cmdline"]]

        folder = Path(short) / "packed"
        words = command(token_corpus, folder, "--workers", "2")
        driver = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        wait_for(lambda: len(list(folder.glob("tokens/*/chunk-*.json"))) >= 2 or driver.poll() is not None)
        assert its_processes()
        driver.kill()
        driver.communicate()
        wait_for(lambda: not its_processes())
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert tree(folder) == undisturbed
        wait_for(lambda: not its_processes(), 10)
