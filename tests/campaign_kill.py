"""Kill a real packing run at random moments, again and again, and compare what comes out with an undisturbed run.

    python tests/campaign_kill.py [--kills 100] [--seed 0] [--workers 2]

Not collected by pytest: the ordinary suite does the same with a few kills. Exit status 1 when a byte differs.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.packing.corpus import token_records, write_lines


def tree(folder: Path) -> dict[str, str]:
    """Return the files under ``folder`` with their hashes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> int:
    """Run the campaign and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", "--runs", type=int, default=100, dest="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        source = root / "source"
        source.mkdir()
        for number in range(12):
            write_lines(source / f"part-{number:02}.jsonl", token_records(60, number))

        def command(folder: Path) -> list[str]:
            words = ["pack", str(source), "--out", str(folder / "out"), "--capacity", str(1 << 22), "--max-segments", "10"]
            return [sys.executable, "-m", "cloison.cli", *words, "--workers", str(args.workers)]

        began = time.monotonic()
        subprocess.run(command(root / "undisturbed"), check=True, stdout=subprocess.DEVNULL)
        length = time.monotonic() - began
        expected = tree(root / "undisturbed")
        kills = runs = finished = 0
        while kills < args.kills:
            folder = root / f"run-{runs}"
            runs += 1
            # A few kills a run, the first mostly early, so that every stage is met.
            for _ in range(int(random.integers(1, 5))):
                process = subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(random.uniform(0, length))
                finished += process.poll() is not None
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            subprocess.run(command(folder), check=True, stdout=subprocess.DEVNULL)
            found = tree(folder)
            if found != expected:
                differ = {name for name in {*found, *expected} if found.get(name) != expected.get(name)}
                print(f"run {runs} differs after {kills} kills: {sorted(differ)}")
                return 1
            shutil.rmtree(folder)
        print(f"{kills} kills over {runs} runs ({finished} came after the end); every run ended with the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
