"""Peak memory of a forward and a backward as a packed row grows: our own attention against dense masks.

Rows of 4, 16 and 64 thousand tokens, of samples of the same lengths (uniform, 50 to 350 tokens), through a llama of 2 layers,
64 wide, with a small vocabulary, so that attention is what grows. Each measurement is a process of its own; the number is the
peak of its resident memory above what it held before the step. A process may take ``--limit`` GB. Run alone::

    OMP_NUM_THREADS=1 python benchmarks/adapt_memory.py [--limit 8]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

TOKENS = (4096, 16384, 65536)
WAYS = ("adapt", "position_ids", "mask4d")


def measure(way: str, tokens: int, limit: float) -> None:
    """Print the peak of one step as JSON; run in a process of its own."""
    import resource

    import numpy as np
    import psutil
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from cloison.exact import adapt
    from cloison.proof.blocks import block_of
    from cloison.proof.signals import signal

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(min(int(rng.integers(50, 351)), tokens - sum(lengths)))
    block = block_of(lengths, rng.integers(4, 256, tokens))
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256,
        max_position_embeddings=512, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    adapter = adapt(model, show=False)
    call, batch = (adapter, adapter.collate([block])) if way == "adapt" else (model, None)
    before = psutil.Process().memory_info().rss
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + int(limit * 2**30),) * 2)
    try:
        if batch is None:
            batch = signal({"position_ids": "positions"}.get(way, way))([block])
        call(**batch).loss.backward()
    except (MemoryError, RuntimeError) as error:
        print(json.dumps({"error": str(error).splitlines()[0][:80]}))
        return
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=8.0, help="GB that one step may take")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "TOKENS"))
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], int(options.one[1]), options.limit)
        return
    print("peak MB above the model   " + "".join(f"{tokens:>12,d}" for tokens in TOKENS) + "   tokens in the row")
    for way in WAYS:
        cells, first = [], None
        for tokens in TOKENS:
            command = [sys.executable, __file__, "--limit", str(options.limit), "--one", way, str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {"error": done.stderr[-80:]}
            if "peak" not in found:
                cells.append(f"> {options.limit:.0f} GB")
                continue
            first = first or found["peak"]
            cells.append(f"{found['peak'] / 1e6:.0f} ({found['peak'] / first:.1f}x)")
        print(f"{way:26s}" + "".join(f"{cell:>12s}" for cell in cells))


if __name__ == "__main__":
    main()
