"""One writer at a time where there are no locks: claims that are renewed, refused, taken over, and given back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cloison.errors import StoreError
from cloison.places import Remote
from cloison.store import claims
from cloison.store.claims import alone_in

OUT = Remote("memory://bucket/out")
WORK = OUT / ".work"


@pytest.fixture(autouse=True)
def quick(bare_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats and waits of a hundredth."""
    monkeypatch.setattr(claims, "BEAT_S", 0.04)
    monkeypatch.setattr(claims, "GONE_S", 0.4)
    monkeypatch.setattr(claims, "_LOOK_S", 0.02)


def claimed(bare_memory: Any) -> dict[str, Any]:
    return dict(json.loads(bare_memory.cat_file("/bucket/out/.work/claim.json")))


def test_one_is_inside_and_the_other_is_told_where(bare_memory: Any) -> None:
    with alone_in(WORK, OUT) as verify:
        said = r"memory://bucket/out takes one run at a time.*on .*, as process \d+"
        with pytest.raises(StoreError, match=said) as caught, alone_in(WORK, OUT):
            pass
        assert caught.value.remedy == "Wait for it, or name another folder."
        verify()
    assert not bare_memory.exists("/bucket/out/.work/claim.json")
    with alone_in(WORK, OUT) as verify:
        verify()


def test_a_claim_is_given_back_whatever_ends_the_run(bare_memory: Any) -> None:
    with pytest.raises(KeyboardInterrupt), alone_in(WORK, OUT):
        raise KeyboardInterrupt
    assert not bare_memory.exists("/bucket/out/.work/claim.json")
    assert not [thread for thread in threading.enumerate() if thread.name == "claim"]


def test_a_claim_that_nobody_renews_is_taken_over(bare_memory: Any) -> None:
    for left in (b'{"writer": "a", "machine": "elsewhere/1", "process": 7, "beat": 3}', b"half of {", b"[]"):
        bare_memory.pipe_file("/bucket/out/.work/claim.json", left)
        with alone_in(WORK, OUT) as verify:
            verify()


def test_a_process_of_this_machine_that_is_gone_is_not_waited_for(bare_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "GONE_S", 1e9)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    left = {"writer": "a", "machine": claims._machine(), "process": process.pid, "beat": 0}
    bare_memory.pipe_file("/bucket/out/.work/claim.json", json.dumps(left).encode())
    with alone_in(WORK, OUT):
        assert claimed(bare_memory)["writer"] != "a"


def test_a_run_that_slept_finds_itself_replaced_and_touches_nothing(bare_memory: Any) -> None:
    with alone_in(WORK, OUT) as verify:
        theirs = b'{"writer": "another"}'
        bare_memory.pipe_file("/bucket/out/.work/claim.json", theirs)
        with pytest.raises(StoreError, match="Another one took over"):
            verify()
        threading.Event().wait(0.1)
        assert bare_memory.cat_file("/bucket/out/.work/claim.json") == theirs, "its beats do not take it back"
    assert bare_memory.cat_file("/bucket/out/.work/claim.json") == theirs


def test_the_local_disk_has_a_lock(tmp_path: Path) -> None:
    with alone_in(tmp_path, tmp_path) as verify:
        verify()
        with pytest.raises(StoreError, match="one run at a time"), alone_in(tmp_path, tmp_path):
            pass
    with alone_in(tmp_path, tmp_path):
        pass
