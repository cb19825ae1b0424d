"""Short instructions in fixed rows of 1,024 tokens: what a step trains when rows are packed, and when they are padded.

gsm8k train as chats (assistant-only targets), the Qwen3 tokenizer and its whole vocabulary, a qwen3 of 4 layers, 256 wide.
Every step has the same shape, ``--rows`` x 1,024, a forward and a backward. Packed rows go through `cloison.adapt`; padded rows
hold a sample each, with the mask of its valid tokens. Steps alternate, the best time of each side counts. Run alone::

    OMP_NUM_THREADS=2 python benchmarks/fixed_rows.py [--rows 1] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adapt_training import seconds
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import cloison

SHARED = Path(os.environ.get("CLOISON_SHARED", Path(__file__).resolve().parents[2] / "shared"))
WIDTH = 1024


def samples_of(count: int) -> list[Any]:
    """Return the first ``count`` chats as samples."""
    tokenizer = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "qwen3")
    lines = (SHARED / "data" / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    rows = map(json.loads, lines)
    chats = [
        {"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]}
        for row in rows
    ]
    return [cloison.encode(chat, tokenizer, train_on="assistant") for chat in chats]


def model_of() -> Any:
    """Return the model, in training mode."""
    torch.manual_seed(0)
    words = Tokenizer.from_file(str(SHARED / "tokenizers" / "qwen3" / "tokenizer.json")).get_vocab_size()
    config = Qwen3Config(
        hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
        vocab_size=words, max_position_embeddings=WIDTH, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    return Qwen3ForCausalLM(config).train()


def padded(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Return a row of 1,024 for each sample, right-padded, with the mask of its valid tokens."""
    shape = (len(samples), WIDTH)
    ids, mask, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
    for row, sample in enumerate(samples):
        size = len(sample.input_ids)
        ids[row, :size] = torch.from_numpy(sample.input_ids.astype(np.int64))
        labels[row, :size] = torch.from_numpy(sample.labels.astype(np.int64))
        mask[row, :size] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "use_cache": False}


def packed_rows(blocks: list[Any]) -> dict[str, Any]:
    """Return a row of 1,024 for each block, with its lengths."""
    most = max(len(block.segments.seq_lengths) for block in blocks)
    lengths = [[*block.segments.seq_lengths.tolist(), *[0] * (most - len(block))] for block in blocks]
    return cloison.forms.hf.rows(blocks, WIDTH) | {"seq_lengths": torch.tensor(lengths)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=7473)
    options = parser.parse_args()
    samples = samples_of(options.samples)
    tokens = np.array([len(sample.input_ids) for sample in samples])
    blocks = cloison.pack_samples(samples, capacity=WIDTH)
    filled = np.array([block.num_tokens for block in blocks])
    print(
        f"{len(samples):,} chats, {tokens.mean():.1f} tokens each (longest {tokens.max()}), {len(blocks):,} blocks of {WIDTH:,}"
    )
    print(f"valid tokens a step of {options.rows} x {WIDTH:,}, mean of the data: packed {options.rows * filled.mean():.0f}, "
          f"padded {options.rows * tokens.mean():.0f}: {filled.mean() / tokens.mean():.2f} times")  # fmt: skip
    model = model_of()
    adapter = cloison.adapt(model)
    sides: dict[str, tuple[Callable[..., Any], list[dict[str, Any]], list[int]]] = {
        "packed, adapt": (adapter, [], []),
        "padded": (model, [], []),
    }
    for step in range(options.rounds + 1):
        chosen = blocks[step * options.rows : (step + 1) * options.rows]
        few = samples[step * options.rows : (step + 1) * options.rows]
        for side, batch, valid in (
            ("packed, adapt", packed_rows(chosen), sum(block.num_tokens for block in chosen)),
            ("padded", padded(few), sum(len(sample.input_ids) for sample in few)),
        ):
            sides[side][1].append(batch)
            sides[side][2].append(valid)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for step in range(options.rounds + 1):
        for side, (call, batches, _) in sides.items():
            taken[side].append(seconds(call, model, batches[step]))
    print(f"{torch.get_num_threads()} threads, vocabulary {model.config.vocab_size:,}, best of {options.rounds} steps")
    speed = {side: np.mean(sides[side][2][1:]) / min(times[1:]) for side, times in taken.items()}
    for side, times in taken.items():
        valid, best = np.mean(sides[side][2][1:]), min(times[1:])
        print(f"{side:15s} {valid:7.0f} valid tokens a step, {best:6.2f} s a step, {speed[side]:6.0f} tokens/s")
    print(f"a packed step takes {min(taken['packed, adapt'][1:]) / min(taken['padded'][1:]):.2f} times as long, and trains "
          f"{speed['packed, adapt'] / speed['padded']:.2f} times as many tokens a second")  # fmt: skip


if __name__ == "__main__":
    main()
