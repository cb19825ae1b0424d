"""A training step of a tiny Llama under DDP with gloo, run by the tests: RANK WORLD_SIZE MEETING OUT."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import cloison
from cloison import losses
from cloison.segments import IGNORE


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(30)  # losses that differ from token to token, so that unlike means are unlike
    model = DistributedDataParallel(model)
    samples = [[5, 6, 7, 8, 9, 10, 11, 12], [3, 4], [9, 8, 7], [20, 21], [1, 2, 3, 4, 5, 6], [30, 31, 32]]
    untrained = cloison.Sample([7, 7, 7], [IGNORE] * 3)
    # Micro-batches of unlike sizes; rank 1 of 2 has one with nothing to train.
    groups = [[samples[0]], [samples[1], samples[2], samples[4], samples[5]], [samples[3]], [untrained]]
    mine = [cloison.pack_samples(group, capacity=16) for group in groups[rank::world]]
    out = {}
    for kind in ("token_mean", "sample_mean"):
        model.zero_grad()
        everything = [block for blocks in mine for block in blocks]
        weights = None
        if kind == "sample_mean":  # ids count from 0 in each of these little data sets, so each is weighed by itself
            weights = [w for blocks in mine for w in losses.sample_mean_weights(blocks, num_samples=1)]
        if weights is None:
            local = float(sum(block.num_targets for block in everything))
        else:
            local = sum(float(w.sum()) for w in weights)
        denominator = losses.step_denominator(local)
        total, local_sum = 0.0, 0.0
        for index, blocks in enumerate(mine):
            batch = cloison.collate(blocks)
            labels = batch.pop("labels")
            per_token = None if weights is None else torch.tensor(weights[index])[None]
            last = index == len(mine) - 1
            with torch.enable_grad() if last else model.no_sync():
                logits = model(**batch).logits
                loss = losses.token_mean(logits, labels, per_token, denominator=denominator, ranks=world)
                loss.backward()
            total += float(loss.detach())
            local_sum += float(losses.loss_sum(logits.detach(), labels, per_token)[0])
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        out[kind] = {"loss": total, "gradient": gradient[::97].tolist(), "local_mean": local_sum / local}
    Path(sys.argv[4]).write_text(json.dumps(out))
    distributed.barrier()
    os._exit(0)  # torch's gloo threads now and then abort an interpreter that ends by itself, when all is done


main()
