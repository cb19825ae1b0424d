"""Subjects under fuzz, in a process of its own with limits of memory and time: `tests.fuzz` sees how it ends."""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cloison.errors import CloisonError
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.subjects import SUBJECTS, Subject

SECONDS = 10
MEMORY_BYTES = 1 << 30


def attempt(subject: Subject, folder: Path, whole: Any) -> str:
    """Return what is wrong with reading the changed files in ``folder``, "" for nothing."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        result = subject.read(folder)
        return subject.judge(folder, result, whole)
    except CloisonError as error:
        return "" if error.asked and (error.found or error.remedy) else f"an error without its parts: {error!r}"
    except BaseException:
        return traceback.format_exc(limit=-6)
    finally:
        faulthandler.cancel_dump_traceback_later()


def fence() -> None:
    """Let this process have so much more memory than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclass(frozen=True)
class Prepared:
    """A subject with its whole files, ready to be changed and read.

    Attributes:
        subject: what it is.
        kept: a folder with the whole files.
        case: where they go with one of them changed.
        contents: of those that are changed, by their place in the folder.
        whole: what the whole files read as.
    """

    subject: Subject
    kept: Path
    case: Path
    contents: Mapping[Path, bytes]
    whole: Any

    def read(self, victim: Path, content: bytes) -> str:
        """Return what is wrong with reading the files with ``victim`` changed to ``content``."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.kept, self.case)
        (self.case / victim).write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wrong = attempt(self.subject, self.case, self.whole)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if not wrong and grown > MEMORY_BYTES:
            wrong = f"memory grew by {grown:,} bytes"
        return f"{victim} changed: {wrong}" if wrong else ""


def prepare(name: str, scratch: Path) -> Prepared:
    """Write the whole files of the subject ``name``, read them, and fence what is to come."""
    subject = SUBJECTS[name]
    origin, kept = scratch / "whole", scratch / "kept"
    origin.mkdir(parents=True)
    subject.write(origin)
    shutil.copytree(origin, kept)
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    whole = subject.read(origin)
    victims = sorted(path.relative_to(kept) for path in kept.glob(subject.victims) if path.is_file())
    assert victims, f"nothing to change for {name}"
    wrong = subject.judge(origin, whole, whole)
    assert not wrong, f"the whole files are judged wrong: {wrong}"
    fence()
    return Prepared(subject, kept, scratch / "case", {victim: (kept / victim).read_bytes() for victim in victims}, whole)


def run(name: str, scratch: Path, examples: int, number: int) -> str:
    """Return what is wrong with the subject ``name``, in the smallest case that shows it, which stays in ``scratch``."""
    prepared = prepare(name, scratch)
    victims = list(prepared.contents)

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(victims))
        structured = victim.suffix == ".json" and data.draw(st.booleans())
        wrong = prepared.read(victim, data.draw((changed_json if structured else changed_bytes)(prepared.contents[victim])))
        assert not wrong, wrong

    try:
        fuzz()
    except AssertionError as error:
        return str(error)
    return ""


def main() -> None:
    """Run subjects one after the other; what is wrong with one goes to standard output, and ends the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for number, name in enumerate(args.names):
        print(f"{name}: ", end="", flush=True)
        wrong = run(name, args.scratch / str(number), args.examples, args.seed)
        print(wrong or "right", flush=True)
        if wrong:
            sys.exit(1)


if __name__ == "__main__":
    main()
