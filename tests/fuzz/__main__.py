"""Fuzz every reader: changed files give an error of ours or a right result; no crash, no hang over 10 s, no 1 GiB of memory.

    python -m tests.fuzz [NAME...] [--examples 200] [--seed 0] [--keep DIR]

Each kind of file is read in a process of its own. Exit status 1 when one was read wrong; --keep has the files that show it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.running import fuzz
from tests.fuzz.subjects import SUBJECTS


def main() -> int:
    """Run the subjects and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the cases that were read wrong")
    args = parser.parse_args()
    faults = 0
    for name in args.names or SUBJECTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cloison-fuzz-") as scratch:
            keep = None if args.keep is None else args.keep / name.replace(" ", "-")
            wrong = fuzz([name], Path(scratch), args.examples, args.seed, keep)
        faults += bool(wrong)
        print(f"{name:24} {'WRONG' if wrong else 'right'} ({time.monotonic() - began:.0f} s)", flush=True)
        if wrong:
            print("  " + wrong.replace("\n", "\n  "), flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
