"""How long the proof takes, after imports: the minute that convinces, and a whole verification of a larger model.

The peer in the same run is the plain step that a proof is measured in: one forward and backward of the same packed batch.
"""

from __future__ import annotations

import resource
import time
import warnings
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, logging
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import cloison
from cloison.forms.hf import flat
from cloison.proof.blocks import synthetic
from cloison.proof.tiny import tiny_model


def trl_packing(blocks: list[cloison.Block]) -> dict[str, Any]:
    """What TRL 1.16 sends to a model with ``packing=True``: its own collator, and the cache off, as its trainer has it."""
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    examples = [{"input_ids": b.input_ids.tolist(), "seq_lengths": b.segments.seq_lengths.tolist()} for b in blocks]
    return {**collator(examples), "use_cache": False}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    started = time.perf_counter()
    for name in ("llama", "gpt_oss"):
        model, _ = tiny_model(name)
        print(f"{name} as TRL's packing=True feeds it")
        print(cloison.verify(model, collate=trl_packing), end="\n\n")
    print(f"the minute that convinces: {time.perf_counter() - started:.1f} s\n")

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    model = AutoModelForCausalLM.from_config(config)
    blocks = synthetic(config)
    started = time.perf_counter()
    model(**flat(blocks)).loss.backward()
    step = time.perf_counter() - started
    model.zero_grad()
    started = time.perf_counter()
    report = cloison.verify(model, blocks)
    took = time.perf_counter() - started
    parameters = sum(p.numel() for p in model.parameters())
    print(f"6 layers, 256 wide, {parameters:,} parameters, 8 segments: ok={report.ok} in {took:.1f} s,")
    print(f"as long as {took / step:.0f} plain steps (forward and backward of the same batch)")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
