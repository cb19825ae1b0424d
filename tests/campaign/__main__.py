"""The campaign of faults: the main job killed, on full and on failing disks, with sources that change between its runs.

    python -m tests.campaign [KIND...] [--runs 100] [--seed 0]

Exit status 1 when anything is not as it should be. The ordinary tests do the same with a few runs of each kind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.campaign import changed_sources, full_disks, kills, object_store, read_errors

KINDS = {
    "kills": kills.campaign,
    "full-disks": full_disks.campaign,
    "read-errors": read_errors.campaign,
    "changed-sources": changed_sources.campaign,
    "object-store": object_store.campaign,
}


def main() -> int:
    """Run the campaign and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--runs", type=int, default=100, help="of the kills; a fifth of it of each other kind")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    faults = 0
    for name in args.kinds or KINDS:
        began = time.monotonic()
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory(prefix="cloison-campaign-") as scratch:
            for wrong in KINDS[name](Path(scratch), args.seed, args.runs if name == "kills" else max(1, args.runs // 5)):
                faults += 1
                print(f"  WRONG: {wrong}", flush=True)
        print(f"  took {time.monotonic() - began:.0f} s", flush=True)
    print("nothing is wrong" if not faults else f"{faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
