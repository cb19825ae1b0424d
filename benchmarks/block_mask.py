"""FlexAttention's BlockMask: from the boundaries, against torch's ``create_block_mask`` and ``from_kv_blocks``, on the CPU.

    python benchmarks/block_mask.py            # create_block_mask at 32,768 tokens takes about half a minute and 10 GB
    python benchmarks/block_mask.py --small    # stops it at 8,192

Each measurement runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from cloison.segments import Segments


def packed_row(width: int) -> Segments:
    """Return a row of lognormal samples (median 400 tokens), with a short padding tail."""
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while True:
        length = int(np.clip(rng.lognormal(6, 1), 1, 8192))
        if sum(lengths) + length > width:
            return Segments.from_lengths([lengths], width)
        lengths.append(length)


def measure(what: str, width: int) -> dict[str, float]:
    """Return seconds (the best of several) and peak memory of one way at one width."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    from cloison.forms import flex

    torch.set_num_threads(1)
    segments = packed_row(width)
    ids = torch.tensor(segments.segment_ids())
    ours = flex.block_mask(segments)

    def theirs() -> object:
        return create_block_mask(lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (k <= q), 1, None, width, width, device="cpu")

    def from_kv_blocks() -> object:
        return BlockMask.from_kv_blocks(
            ours.kv_num_blocks, ours.kv_indices, ours.full_kv_num_blocks, ours.full_kv_indices, mask_mod=ours.mask_mod
        )

    call = {"cloison": lambda: flex.block_mask(segments), "create_block_mask": theirs, "from_kv_blocks": from_kv_blocks}[what]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(1 if what == "create_block_mask" else 7):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"s": min(times), "peak_mib": (after - before) / 1024}


def apart(what: str, width: int) -> dict[str, float]:
    """Return `measure` run in a fresh process."""
    out = subprocess.run([sys.executable, __file__, "--one", what, str(width)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(out.stdout)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", nargs=2)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    print(f"{'tokens':>8} {'way':<18} {'ms':>10} {'peak MiB':>9} {'against cloison':>16}")
    for width in (8192, 32768, 131072):
        base = apart("cloison", width)
        print(f"{width:>8,} {'cloison':<18} {base['s'] * 1e3:>10.3f} {base['peak_mib']:>9.0f} {'1':>16}")
        ways = ["from_kv_blocks"]
        if width <= (8192 if options.small else 32768):
            ways.append("create_block_mask")
        for way in ways:
            found = apart(way, width)
            print(
                f"{width:>8,} {way:<18} {found['s'] * 1e3:>10.1f} {found['peak_mib']:>9.0f} {found['s'] / base['s']:>15,.0f}x"
            )


if __name__ == "__main__":
    main()
