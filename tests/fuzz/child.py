"""One subject under fuzz, in a process of its own with limits of memory and time: `tests.fuzz` sees how it ends."""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import shutil
import sys
import traceback
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
    """Let this process have so much more memory than it has, and its baseline no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Run one subject; what is wrong goes to standard output, the smallest case that shows it to SCRATCH/case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    subject = SUBJECTS[args.name]
    origin, case = args.scratch / "whole", args.scratch / "case"
    origin.mkdir(parents=True)
    subject.write(origin)
    kept = args.scratch / "kept"
    shutil.copytree(origin, kept)
    whole = subject.read(origin)
    victims = sorted(path.relative_to(kept) for path in kept.glob(subject.victims) if path.is_file())
    assert victims, f"nothing to change for {args.name}"
    contents = {victim: (kept / victim).read_bytes() for victim in victims}
    wrong = subject.judge(origin, whole, whole)
    assert not wrong, f"the whole files are judged wrong: {wrong}"
    fence()

    @seed(args.seed)
    @settings(
        max_examples=args.examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(victims))
        change = changed_bytes
        if victim.suffix == ".json" and data.draw(st.booleans()):
            change = changed_json
        content = data.draw(change(contents[victim]))
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(kept, case)
        (case / victim).write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wrong = attempt(subject, case, whole)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        assert not wrong, f"{victim} changed: {wrong}"
        assert grown < MEMORY_BYTES, f"{victim} changed: memory grew by {grown:,} bytes"

    try:
        fuzz()
    except AssertionError as error:
        print(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
