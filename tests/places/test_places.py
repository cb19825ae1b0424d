"""Places: the same verbs on the local disk, in memory, and on a store of objects that fails as such stores do."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloison.errors import ChangedError, InputError, MissingDependencyError, StoreError
from cloison.places import (
    Place,
    RangedFile,
    Remote,
    borrowed,
    create,
    fetched,
    forget,
    found,
    hold,
    local_folder,
    opened,
    place,
    put,
    read,
    remove,
    remove_tree,
    scratch,
    size,
    sizes,
    stamp,
)
from cloison.store.files import file_sha256, read_json, replacing, write_json
from tests.places.server import ObjectStore

CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=["disk", "memory", "loopback"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder that is not there yet, on each kind of file system."""
    if request.param == "disk":
        return tmp_path / "new" / "folder"
    request.getfixturevalue("bare_memory" if request.param == "memory" else "loopback")
    return place(f"{request.param}://bucket/new/folder")


def fill(folder: Place, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        at = folder
        *above, last = name.split("/")
        for part in above:
            at = at / part
        if isinstance(at, Path):
            at.mkdir(parents=True, exist_ok=True)
        with replacing(at / last) as part_file:
            part_file.write_bytes(content)


def test_a_url_is_remote_and_all_else_a_path(tmp_path: Path) -> None:
    assert place("s3://bucket/a/") == Remote("s3://bucket/a") == place(Remote("s3://bucket/a"))
    assert place(f"file://{tmp_path}/a") == tmp_path / "a" == place(tmp_path / "a") == place(str(tmp_path / "a"))
    assert place("a:b//c") == Path("a:b//c")
    assert place("simplecache::s3://bucket/a") == Remote("simplecache::s3://bucket/a")
    at = place("s3://bucket/a/b.json")
    assert isinstance(at, Remote)
    assert (at.protocol, at.name, at.parent, at.parent.parent.parent) == (
        "s3",
        "b.json",
        place("s3://bucket/a"),
        Remote("s3://"),
    )
    assert Remote("s3://") / "bucket" == Remote("s3://bucket")
    with pytest.raises(TypeError):
        os.fspath(at)  # type: ignore[call-overload]


def test_verbs_mean_the_same_everywhere(folder: Place) -> None:
    assert sizes(folder) == {}
    assert size(folder / "a") is None
    assert read_json(folder / "a.json") is None
    remove(folder / "a")
    remove_tree(folder)
    for missing in (read, stamp, opened):
        with pytest.raises(FileNotFoundError):
            missing(folder / "a")  # type: ignore[operator]
    fill(folder, {"a": CONTENT, "empty": b"", "sub/b": b"b", "sub/deep/c": b"cc"})
    write_json(folder / "a.json", {"x": [1]})
    assert sizes(folder) == {"a": len(CONTENT), "empty": 0, "a.json": size(folder / "a.json"), "sub": -1}
    assert sizes(folder / "a") == {} or isinstance(folder, Path)
    assert (read(folder / "a"), read(folder / "empty"), read_json(folder / "a.json")) == (CONTENT, b"", {"x": [1]})
    assert file_sha256(folder / "a") == hashlib.sha256(CONTENT).hexdigest()
    assert size(folder) is None
    before = stamp(folder / "a")
    assert before == stamp(folder / "a")
    assert before[0] == len(CONTENT)
    with replacing(folder / "a") as part:
        part.write_bytes(CONTENT[::-1])
    assert stamp(folder / "a") != before
    with opened(folder / "a", 100) as file:
        assert file.seek(-5, io.SEEK_END) == len(CONTENT) - 5
        assert file.read() == CONTENT[::-1][-5:]
        file.seek(0)
        assert file.read() == CONTENT[::-1]
    with borrowed(folder / "a") as copy:
        assert copy.read_bytes() == CONTENT[::-1]
    remove(folder / "a")
    assert size(folder / "a") is None
    remove_tree(folder)
    assert sizes(folder) == {}


def test_what_is_written_is_there_only_when_it_is_whole(folder: Place) -> None:
    fill(folder, {"a": b"old"})
    with pytest.raises(KeyboardInterrupt), replacing(folder / "a") as part:
        part.write_bytes(b"ne")
        raise KeyboardInterrupt
    assert read(folder / "a") == b"old"
    assert list(sizes(folder)) == ["a"]
    assert not list(scratch(folder).glob("*.part"))


def test_globs_and_folders_are_found_in_the_order_of_their_paths(bare_memory: Any, loopback: ObjectStore) -> None:
    files = ("b.jsonl", "a.jsonl", "a/z.jsonl", "a/b/c.jsonl.gz", "a-c/d.jsonl")
    for name in files:
        bare_memory.pipe_file(f"/data/x/{name}", b"{}")
        loopback.objects[f"data/x/{name}"] = b"{}"
    loopback.objects["both/a.jsonl"] = loopback.objects["both/a.jsonl/b.jsonl"] = b"{}"
    assert found("loopback://both") == ["loopback://both/a.jsonl", "loopback://both/a.jsonl/b.jsonl"], "one name for two"
    assert sizes(place("loopback://both")) == {"a.jsonl": 2}
    for protocol in ("memory", "loopback"):
        top = f"{protocol}://data/x"
        for pattern, names in (
            ("", ["a/b/c.jsonl.gz", "a/z.jsonl", "a-c/d.jsonl", "a.jsonl", "b.jsonl"]),
            ("/*.jsonl", ["a.jsonl", "b.jsonl"]),
            ("/[b-z].jsonl", ["b.jsonl"]),
            ("/*/*.jsonl", ["a/z.jsonl", "a-c/d.jsonl"]),
            ("/**/*.gz", ["a/b/c.jsonl.gz"]),
            ("/none*", []),
            ("/none", []),
        ):
            assert found(f"{top}{pattern}") == [f"{top}/{name}" for name in names], pattern


def test_a_listing_that_fails_hides_no_folder(loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's own walk leaves out what it cannot list, and samples would be lost in silence."""
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0,) * 9)
    for folder in range(30):
        loopback.objects[f"data/{folder:02}/a.jsonl"] = b"{}"
    loopback.fail(0.3, 0)
    assert len(found("loopback://data")) == 30
    assert loopback.failures


def test_reads_and_puts_outlive_a_store_that_fails(
    loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0,) * 12)
    (tmp_path / "a").write_bytes(CONTENT)
    loopback.fail(0.4, 1)
    for number in range(40):
        at = place(f"loopback://bucket/{number}")
        assert isinstance(at, Remote)
        put(tmp_path / "a", at)
        assert read(at) == CONTENT, "a short answer is no answer"
        assert opened(at, 3000).read() == CONTENT
        assert fetched(at).read_bytes() == CONTENT
        assert create(at.parent / f"{number}.claim", b"mine"), "ours, though the answer to the first try may be lost"
        assert not create(at.parent / f"{number}.claim", b"theirs")
    assert loopback.failures > 100
    assert loopback.objects["bucket/0.claim"] == b"mine"


def test_a_large_folder_is_removed_from_a_store_that_fails(loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sixty requests in a row one nearly always fails: each has its own tries."""
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0,) * 6)
    loopback.objects |= {f"bucket/folder/{number % 3}/{number}": b"x" for number in range(60)} | {"bucket/folders": b"kept"}
    loopback.fail(0.2, 3)
    remove_tree(Remote("loopback://bucket/folder"))
    assert loopback.failures > 5 and list(loopback.objects) == ["bucket/folders"]


def test_a_store_that_stays_away_is_told_with_what_it_said(loopback: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloison.places.remote._WAITS_S", (0.0, 0.0))
    loopback.objects["bucket/a"] = CONTENT
    loopback.fail(1.0, 2)
    with pytest.raises(StoreError) as caught:
        read(place("loopback://bucket/a"))
    assert caught.value.asked == "loopback://bucket/a cannot be read."
    assert "failed 3 times" in caught.value.found
    assert loopback.failures == 3


def test_what_is_final_is_not_tried_again(loopback: ObjectStore) -> None:
    from cloison.places.remote import tried

    calls = []

    def forbidden(system: Any, path: str) -> None:
        calls.append(path)
        raise PermissionError("no rights")

    with pytest.raises(StoreError, match="PermissionError: no rights"):
        tried("read", Remote("loopback://bucket/a"), forbidden)
    assert calls == ["bucket/a"]


def test_ranges_that_are_held_cost_no_further_request(loopback: ObjectStore) -> None:
    loopback.objects["bucket/a"] = loopback.objects["bucket/b"] = CONTENT
    files = [RangedFile(Remote(f"loopback://bucket/{name}"), len(CONTENT)) for name in "ab"]
    hold([(files[0], 10, 200), (files[0], 9000, 9100), (files[0], 9200, 9900), (files[1], 0, 50)])
    assert loopback.asked["GET", "bucket/a"] == 2, "stretches that lie close together are one request"
    files[0].seek(9050)
    assert files[0].read(800) == CONTENT[9050:9850]
    files[0].seek(10)
    assert files[0].read(190) == CONTENT[10:200]
    assert loopback.asked["GET", "bucket/a"] == 2
    files[0].release()
    files[0].seek(10)
    assert files[0].read(10) == CONTENT[10:20]
    assert loopback.asked["GET", "bucket/a"] == 3


def test_a_copy_is_made_once_and_proven(loopback: ObjectStore) -> None:
    at = Remote("loopback://bucket/chunk")
    loopback.objects["bucket/chunk"] = CONTENT
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert fetched(at, sha256) == fetched(at, sha256)
    assert loopback.asked["GET", "bucket/chunk"] == 1
    first = fetched(at)
    loopback.objects["bucket/chunk"] = b"other"
    assert first.read_bytes() == CONTENT
    assert fetched(at).read_bytes() == b"other", "the object that is there now"
    forget(at.parent)
    with pytest.raises(ChangedError, match="must have the sha256"):
        fetched(at, sha256)
    assert not [path for path in scratch(at.parent).iterdir() if path.suffix != ".lock"]
    with pytest.raises(FileNotFoundError):
        fetched(Remote("loopback://bucket/none"))


def test_processes_that_want_one_copy_download_it_once(loopback: ObjectStore) -> None:
    loopback.objects["bucket/chunk"] = CONTENT * 100
    script = (
        "from cloison.places import fetched, place; print(fetched(place('loopback://bucket/chunk'), __import__('sys').argv[1]))"
    )
    words = [sys.executable, "-c", script, hashlib.sha256(CONTENT * 100).hexdigest()]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate()[0] for process in processes}
    assert len(paths) == 1
    assert loopback.asked["GET", "bucket/chunk"] == 1


def test_a_folder_is_copied_under_its_own_names(folder: Place) -> None:
    fill(folder, {"tokenizer.json": b"{}", "chat_template.jinja": b"x", "sub/other": b""})
    local = local_folder(folder)
    assert (local / "tokenizer.json").read_bytes() == b"{}"
    assert (local / "chat_template.jinja").read_bytes() == b"x"
    with replacing(folder / "chat_template.jinja") as part:
        part.write_bytes(b"y")
    assert (local_folder(folder) / "chat_template.jinja").read_bytes() == b"y"


def test_scratch_is_this_user_s_own(own_scratch: Path, tmp_path: Path) -> None:
    folder = scratch(Remote("s3://bucket/a"))
    assert folder.parent.parent == own_scratch
    assert folder.parent.stat().st_mode & 0o77 == 0, "others cannot look into it"
    assert scratch(tmp_path) == tmp_path
    (own_scratch / "elsewhere").mkdir()
    folder.rmdir()
    folder.parent.rmdir()
    folder.parent.symlink_to(own_scratch / "elsewhere")
    with pytest.raises(StoreError, match="this user's own folder"):
        scratch(Remote("s3://bucket/a"))


def test_what_is_not_installed_or_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Protocol not known: nope"):
        read(Remote("nope://bucket/a"))
    registry: Any = sys.modules["fsspec.registry"]
    monkeypatch.setitem(registry.known_implementations, "s3", {"class": "s3fs_of_no_kind.S3", "err": "no s3fs"})
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(registry._registry, "s3", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cloison\[s3\]'"):
        read(Remote("s3://bucket/a"))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cloison\[remote\]'"):
        read(Remote("s3://bucket/a"))
