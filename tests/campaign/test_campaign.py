"""A small share of the campaign of faults: `make campaign` does the same a hundred times."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import cloison
from cloison import PackSpec, pack
from cloison.errors import ChangedError, RecordError
from cloison.packing import begun, job
from cloison.packing import tokens as tokens_module
from tests.campaign.changed_sources import changed_run
from tests.campaign.full_disks import full_run
from tests.campaign.kills import killed_run
from tests.campaign.read_errors import failed_run, hooked_run, write_kinds
from tests.campaign.runs import Job, tree, write_source
from tests.campaign.small_disks import can_mount, failing_disk
from tests.packing.corpus import chats, token_records, write_lines

needs_mount = pytest.mark.skipif(not can_mount("mkfs.ext4", "losetup"), reason="this process may not mount a disk")


@pytest.fixture(scope="session")
def tokenizer() -> str:
    return str(Path(cloison.__file__).parent / "story" / "tokenizer")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "source", files=6, records=12)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """The files of a run that nothing disturbed, and how long it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    done = Job(source, folder).run()
    assert done.returncode == 0, done.stderr
    return tree(folder), time.monotonic() - began


def test_a_killed_run_goes_on_to_the_same_bytes_and_does_nothing_twice(
    source: Path, tmp_path: Path, undisturbed: tuple[dict[str, str], float]
) -> None:
    expected, length = undisturbed
    wrong, _ = killed_run(Job(source, tmp_path / "run", 2), expected, np.random.default_rng(2), length, 2)
    assert not wrong


@needs_mount
def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(
    source: Path, tmp_path: Path, undisturbed: tuple[dict[str, str], float]
) -> None:
    wrong, full = full_run(Job(source, tmp_path / "disk", 2), undisturbed[0], 1 << 17, 1 << 26)
    assert not wrong and full


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A source with a file of every format, and the files of an undisturbed run."""
    folder = tmp_path_factory.mktemp("kinds")
    content = write_kinds(folder / "content", 40)
    done = Job(content, folder / "undisturbed").run()
    assert done.returncode == 0, done.stderr
    return content, tree(folder / "undisturbed")


@pytest.mark.parametrize(("name", "read", "workers"), [("c.jsonl.gz", 2, 2)])
def test_a_read_that_fails_names_its_file(
    kinds: tuple[Path, dict[str, str]], tmp_path: Path, name: str, read: int, workers: int
) -> None:
    wrong, failed = hooked_run(Job(kinds[0], tmp_path / "run", workers), kinds[1], name, read)
    assert not wrong and failed


@needs_mount
def test_a_failing_disk_is_said_and_the_run_goes_on_when_it_is_mended(
    kinds: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    with failing_disk(tmp_path, kinds[0]) as disk:
        wrong, failing = failed_run(Job(disk.folder, tmp_path / "run", 2), disk, kinds[1], "e.parquet")
    assert not wrong and failing >= 3


def test_sources_that_changed_between_the_runs_are_refused(
    source: Path, tmp_path: Path, undisturbed: tuple[dict[str, str], float]
) -> None:
    wrong, _ = changed_run(Job(source, tmp_path / "run"), undisturbed[0], "swap a letter", "part-03.jsonl", 0.3)
    assert not wrong


def test_after_an_error_mended_sources_are_no_change(tmp_path: Path) -> None:
    broken = write_lines(tmp_path / "a.jsonl", [*token_records(5, 0), {"input_ids": "no"}])
    with pytest.raises(RecordError):
        pack(str(broken), tmp_path / "out", PackSpec(64))
    write_lines(tmp_path / "a.jsonl", token_records(5, 0))
    assert pack(str(broken), tmp_path / "out", PackSpec(64)).ledger.samples_in == 5


def test_other_choices_begin_anew_and_the_same_ones_are_held_to_their_sources(tmp_path: Path) -> None:
    spec = PackSpec(64)
    begun.note_beginning(tmp_path, spec, [("a", "1" * 64), ("b", "2" * 64)])
    begun.note_beginning(tmp_path, spec, [("a", "1" * 64), ("b", "2" * 64)])
    with pytest.raises(ChangedError, match="b among them") as caught:
        begun.note_beginning(tmp_path, spec, [("a", "1" * 64), ("b", "3" * 64)])
    assert str(tmp_path) in caught.value.remedy
    with pytest.raises(ChangedError, match="It began with 2 files, and there are 1"):
        begun.note_beginning(tmp_path, spec, [("a", "1" * 64)])
    begun.note_beginning(tmp_path, spec.with_(seed=1), [("a", "1" * 64)])


def test_a_run_goes_on_with_the_day_that_it_began_on(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that asks for today gives another text the next day: a run that is killed at midnight must not."""

    class Day:
        today_is = "2024-02-29"

        @classmethod
        def today(cls) -> object:
            import datetime

            return datetime.date.fromisoformat(cls.today_is)

    monkeypatch.setattr(tokens_module, "date", Day)
    template = "{% for m in messages %}{{ strftime_now('%d %B') }} {{ m.content }}{% endfor %}"
    spec = PackSpec(512, chat_template=template)
    source = write_lines(tmp_path / "a.jsonl", chats(10, 0))
    expected = pack(str(source), tmp_path / "whole" / "out", spec, tokenizer=tokenizer)
    monkeypatch.setattr(job, "plan_tokens", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pack(str(source), tmp_path / "killed" / "out", spec, tokenizer=tokenizer)
    monkeypatch.undo()
    monkeypatch.setattr(tokens_module, "date", Day)
    Day.today_is = "2024-03-01"
    for _ in range(2):  # going on, and opening what is whole
        again = pack(str(source), tmp_path / "killed" / "out", spec, tokenizer=tokenizer)
        assert again.spec.date == "2024-02-29" and again.fingerprint == expected.fingerprint
