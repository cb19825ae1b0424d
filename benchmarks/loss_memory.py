"""What the loss takes where the vocabulary is large: logits kept, logits made in pieces, and the model's own loss.

One row of 8,192 tokens through a llama of 2 layers, 128 wide, with a vocabulary of 50,000: a forward and a backward, each in a
process of its own. Printed are the peak of the resident memory above what the process held before the step, and the seconds of
the best of ``--rounds`` steps. Run alone::

    OMP_NUM_THREADS=2 python benchmarks/loss_memory.py [--tokens 8192] [--vocabulary 50000] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

WAYS = ("adapt, keep_logits=False", "adapt", "position_ids, own loss")


def measure(way: str, tokens: int, vocabulary: int, rounds: int) -> None:
    """Print the peak and the time of a step as JSON; run in a process of its own."""
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
    lengths = [256] * (tokens // 256)
    block = block_of(lengths, rng.integers(4, vocabulary, tokens))
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=vocabulary,
        max_position_embeddings=512, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    adapter = adapt(model, keep_logits=way == "adapt", show=False)
    call, batch = (model, signal("positions")([block])) if way.endswith("own loss") else (adapter, adapter.collate([block]))
    before = psutil.Process().memory_info().rss
    taken = []
    for _ in range(rounds):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        call(**batch).loss.backward()
        taken.append(time.perf_counter() - start)
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, "seconds": min(taken)}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", metavar="WAY")
    options = parser.parse_args()
    sizes = (options.tokens, options.vocabulary, options.rounds)
    if options.one:
        measure(options.one, *sizes)
        return
    megabytes = 4 * options.tokens * options.vocabulary / 1e6
    print(f"{options.tokens:,} tokens, vocabulary {options.vocabulary:,}: float32 logits take {megabytes:,.0f} MB")
    for way in WAYS:
        arguments = ["--tokens", str(sizes[0]), "--vocabulary", str(sizes[1]), "--rounds", str(sizes[2]), "--one", way]
        done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{way:26s} peak {found['peak'] / 1e6:8,.0f} MB   {found['seconds']:6.2f} s a step")


if __name__ == "__main__":
    main()
