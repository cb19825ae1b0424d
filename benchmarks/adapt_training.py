"""Training on the host: packed through adapt, against what people do today, on the same samples in the same run.

A llama of 6 layers, 256 wide, 8 heads; lengths lognormal with a median of 180 tokens (sigma 0.8, capped at the capacity); one
forward and one backward a step. The peers: ``position_ids`` (transformers makes a dense mask of the whole row), padding to the
longest of 16 samples, and padding every sample to 1,024. Tokens a second count valid tokens only. Run alone::

    OMP_NUM_THREADS=2 python benchmarks/adapt_training.py [--steps 4] [--attn sdpa]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cloison.exact import adapt
from cloison.packing.memory import pack_samples
from cloison.proof.signals import signal

CAPACITY = 4096
VOCABULARY = 8192


def model_of(attn: str) -> Any:
    """Return the model, in training mode."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=VOCABULARY, max_position_embeddings=CAPACITY, attn_implementation=attn,
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


def samples_of(tokens: int, longest: int) -> list[np.ndarray]:
    """Return samples of about ``tokens`` tokens in all."""
    rng = np.random.default_rng(0)
    samples, total = [], 0
    while total < tokens:
        length = int(np.clip(rng.lognormal(np.log(180), 0.8), 2, longest))
        samples.append(rng.integers(4, VOCABULARY, length).astype(np.int32))
        total += length
    return samples


def padded(samples: list[np.ndarray], width: int | None) -> dict[str, torch.Tensor]:
    """Return a right-padded batch with the mask of its valid tokens."""
    width = width or max(map(len, samples))
    ids = torch.zeros(len(samples), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = torch.from_numpy(sample.astype(np.int64))
        mask[row, : len(sample)] = 1
        labels[row, 1 : len(sample)] = ids[row, 1 : len(sample)]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "use_cache": False}


def seconds(call: Callable[..., Any], model: Any, batch: dict[str, Any]) -> float:
    """Return the seconds of a forward and a backward."""
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    call(**batch).loss.backward()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--attn", default="sdpa")
    options = parser.parse_args()
    model = model_of(options.attn)
    samples = samples_of(3 * CAPACITY, CAPACITY)
    block = pack_samples(samples, capacity=CAPACITY)[0]
    adapter = adapt(model)
    positions = signal("positions")
    sixteen = samples[:16]
    short = [sample for sample in samples if len(sample) <= 1024][:8]
    ways: dict[str, tuple[Callable[..., Any], dict[str, Any], int]] = {
        "packed, adapt": (adapter, adapter.collate([block]), block.num_tokens),
        "packed, position_ids": (model, positions([block]), block.num_tokens),
        "padded to the longest of 16": (model, padded(sixteen, None), sum(map(len, sixteen))),
        "padded to 1,024": (model, padded(short, 1024), sum(map(len, short))),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds + 1):  # one after the other, so that whatever else the machine does falls on all alike
        for name, (call, batch, _count) in ways.items():
            taken[name].append(seconds(call, model, batch))
    speeds = {name: count / min(taken[name][1:]) for name, (_, _, count) in ways.items()}
    print(
        f"{torch.get_num_threads()} threads, {options.attn}, rows of {CAPACITY}, best of {options.rounds}; {adapter.way.name}"
    )
    for name, (_, batch, count) in ways.items():
        shape = " x ".join(map(str, batch["input_ids"].shape))
        ratio = speeds["packed, adapt"] / speeds[name]
        print(
            f"{name:28s} {count:6d} of {shape:>10s} tokens {speeds[name]:8.0f} tokens/s   adapt is {ratio:5.2f} times as fast"
        )


if __name__ == "__main__":
    main()
