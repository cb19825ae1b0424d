"""Fuzzing that is led by coverage: atheris changes one file of a subject towards code that was not reached before.

    python -m tests.fuzz.guided [NAME...] [--runs 2000]

It runs in an environment that has atheris; `make fuzz` makes one where the interpreter has a build of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import cloison

NAMES = (
    *("lines", "array", "text", "table", "arrow", "arrow stream", "token lines", "token arrow"),
    *("manifest", "token store", "work folder", "unfinished tokens", "spec", "lengths", "tokenizer"),
    *("import megatron", "import olmo-core", "import datatrove", "import mds", "export to mds"),
    *("rows as lines", "rows as an array", "rows as arrow"),
)
"""Subjects whose bytes mean something to code of ours. Of Parquet and of what is compressed, nearly all changes end in a
library, whose code is not watched; and some subjects are another's bytes in another width."""


def lead(name: str, runs: int, scratch: Path) -> None:
    """Fuzz one subject; ends the process, with another status than 0 where something is wrong."""
    import atheris

    home = Path(cloison.__file__).parent
    for path in home.rglob("*.py"):  # numba compiles no functions that are watched
        if "import njit" in path.read_text(encoding="utf-8"):
            import_module(".".join(("cloison", *path.relative_to(home).with_suffix("").parts)))
    with atheris.instrument_imports(include=["cloison"]):
        from tests.fuzz.child import MEMORY_BYTES, SECONDS, prepare

        prepared = prepare(name, scratch / "work")
    victims = list(prepared.contents)
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, victim in enumerate(victims):
        (corpus / str(number)).write_bytes(bytes([number]) + prepared.contents[victim])

    def read(data: bytes) -> None:
        if data and (wrong := prepared.read(victims[data[0] % len(victims)], data[1:])):
            raise RuntimeError(wrong)

    limits = [f"-runs={runs}", f"-timeout={2 * SECONDS}", f"-rss_limit_mb={(2 * MEMORY_BYTES) >> 20}", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={scratch}/", str(corpus)], read)
    atheris.Fuzz()


def main() -> int:
    """Run the subjects, each in a process of its own, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        lead(args.names[0], args.runs, args.one)
    faults = 0
    for name in args.names or NAMES:
        with tempfile.TemporaryDirectory(prefix="cloison-guided-") as scratch:
            words = [sys.executable, "-m", "tests.fuzz.guided", name, "--runs", str(args.runs), "--one", scratch]
            done = subprocess.run(words, capture_output=True, text=True, errors="replace")
        faults += done.returncode != 0
        print(f"{name:24} {'right' if not done.returncode else 'WRONG'}", flush=True)
        if done.returncode:
            print("  " + (done.stdout[-1500:] + done.stderr[-3000:]).replace("\n", "\n  "), flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
