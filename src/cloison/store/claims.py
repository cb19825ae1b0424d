"""One writer at a time in a folder: a lock on the local disk, and elsewhere an object that the writer renews while it lives.

Stores of objects have no locks. There the writer puts ``claim.json``, which is created only where none is, and writes it anew
every few seconds. One that comes and finds it waits: when it changes, its writer lives, and the newcomer is refused; when it
stays as it is for `GONE_S`, or names a process of this very machine that is gone, the newcomer takes over. No clocks are
compared. A writer that was only asleep finds another's name in the claim, and leaves before it publishes anything.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloison.errors import StoreError
from cloison.places import Place, Remote, create, read, remove
from cloison.store.files import lives, store_errors, write_json

__all__ = ["BEAT_S", "GONE_S", "alone_in"]

BEAT_S = 4.0
"""How often a claim is renewed."""

GONE_S = 20.0
"""A claim that stays as it is for so long has no writer any more."""

_LOOK_S = 0.5

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Nothing is cut, no link followed and no pipe waited for: the folder may be one that others prepared."""


@contextmanager
def alone_in(work: Place, folder: Place) -> Iterator[Callable[[], None]]:
    """Let one writer at a time be inside; give what raises a StoreError when another has taken over meanwhile.

    Args:
        work: where the lock or the claim lies.
        folder: what the errors name.

    Raises:
        StoreError: another one is inside.
    """
    if isinstance(work, Path):
        with store_errors(f"{work / 'lock'} cannot be used"):
            lock = os.open(work / "lock", _LOCK_FLAGS, 0o666)
        try:
            _hold(lock, folder)
            yield lambda: None
        finally:
            os.close(lock)
    else:
        with _claimed(work / "claim.json", folder) as verify:
            yield verify


def _hold(lock: int, folder: Place) -> None:
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _busy(folder, "") from error


@contextmanager
def _claimed(claim: Remote, folder: Place) -> Iterator[Callable[[], None]]:
    mine = {"writer": uuid.uuid4().hex, "machine": _machine(), "process": os.getpid()}
    while not create(claim, json.dumps({**mine, "beat": 0}).encode()):
        theirs = _read(claim)
        if theirs is not None and not _gone(claim, theirs):
            raise _busy(folder, f" on {str(theirs.get('machine')).partition('/')[0]}, as process {theirs.get('process')}")
        remove(claim)
    stop = threading.Event()
    beats = threading.Thread(target=_renew, args=(claim, mine, stop), name="claim", daemon=True)
    beats.start()

    def verify() -> None:
        if not _is(claim, mine):
            raise StoreError(
                f"{folder} takes one run at a time.",
                "Another one took over, since this one could not be seen to live.",
                "Leave it to that one; nothing of this one is published.",
            )

    try:
        yield verify
    finally:
        stop.set()
        beats.join()
        with suppress(StoreError):  # one that stays is taken over
            if _is(claim, mine):
                remove(claim)


def _renew(claim: Remote, mine: dict[str, Any], stop: threading.Event) -> None:
    beat = 0
    while not stop.wait(BEAT_S):
        with suppress(StoreError):  # the next beat may arrive
            if not _is(claim, mine):
                return
            beat += 1
            write_json(claim, {**mine, "beat": beat})


def _gone(claim: Remote, theirs: dict[str, Any]) -> bool:
    """Return whether the writer of ``theirs`` is gone. Cost: up to `GONE_S`, unless it ran here or is seen to live."""
    process = theirs.get("process")
    if theirs.get("machine") == _machine() and isinstance(process, int) and not lives(process):
        return True
    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
        now = _read(claim)
        if now != theirs:
            return now is None
    return True


def _read(claim: Remote) -> dict[str, Any] | None:
    """Return what the claim says, None where there is none."""
    try:
        found = json.loads(read(claim))
    except FileNotFoundError:
        return None
    except ValueError:  # half of one, on a store that shows such
        return {}
    return found if isinstance(found, dict) else {}


def _is(claim: Remote, mine: dict[str, Any]) -> bool:
    return bool((_read(claim) or {}).get("writer") == mine["writer"])


def _machine() -> str:
    """Return a name of this machine since it was started: process numbers mean something on it only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{platform.node()}/{boot}"


def _busy(folder: Place, where: str) -> StoreError:
    return StoreError(
        f"{folder} takes one run at a time.", f"Another one is packing into it{where}.", "Wait for it, or name another folder."
    )
