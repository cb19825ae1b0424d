"""What `cloison.Audit` costs: a training of one step with it beside the same training without it.

Run: python benchmarks/audit.py. A llama of 6 layers, 256 wide, 32,000 words; micro-batches of 8 samples, 1,536 tokens, through
transformers' Trainer and DataCollatorWithFlattening, and the same through a model that leaks (use_cache=True). With
`--vocabulary 151680 --width 16 --layers 2` the logits are all there is: a model so small that nothing else takes time.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from cloison import Audit, Guard

LENGTHS = [37, 512, 101, 64, 300, 211, 7, 304]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--runs", type=int, default=2, help="of which the shortest counts")
    return parser.parse_args()


def trainer(asked: argparse.Namespace, accumulation: int, cache: bool) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=asked.width, intermediate_size=4 * asked.width, num_hidden_layers=asked.layers,
        num_attention_heads=8, num_key_value_heads=8, vocab_size=asked.vocabulary, max_position_embeddings=2048,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    rows = [{"input_ids": draw.integers(4, asked.vocabulary, n).tolist()} for n in LENGTHS * accumulation * 2]
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=1, per_device_train_batch_size=8, gradient_accumulation_steps=accumulation,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, use_cache=cache,
    )  # fmt: skip
    collator: Any = DataCollatorWithFlattening(return_flash_attn_kwargs=True)  # type: ignore[no-untyped-call]
    return Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=Dataset.from_list(rows), data_collator=collator)


def seconds(asked: argparse.Namespace, accumulation: int, cache: bool, callback: Any = None) -> float:
    made = trainer(asked, accumulation, cache)
    if callback is not None:
        made.add_callback(callback)
    start = time.perf_counter()
    made.train()
    return time.perf_counter() - start


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    asked = parsed()
    seconds(asked, 1, False)
    print(f"{'set-up':<42}{'plain':>8}{'audited':>9}{'added':>8}{'ratio':>7}")
    for name, accumulation, cache, make in (
        ("Audit, 1 micro-batch, exact", 1, False, Audit),
        ("Audit, 4 micro-batches, exact", 4, False, Audit),
        ("Audit, 1 micro-batch, leak", 1, True, Audit),
        ("Guard, 1 micro-batch, exact", 1, False, lambda: Guard(1)),
    ):
        plain = min(seconds(asked, accumulation, cache) for _ in range(asked.runs))
        audited = min(seconds(asked, accumulation, cache, make()) for _ in range(asked.runs))
        print(f"{name:<42}{plain:>7.2f}s{audited:>8.2f}s{audited - plain:>7.2f}s{audited / plain:>7.1f}")


if __name__ == "__main__":
    main()
