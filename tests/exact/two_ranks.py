"""Two ranks for a test: ``torchrun --nproc-per-node 2 two_ranks.py OUTPUT``. Each has samples of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cloison
from cloison.errors import CloisonError
from cloison.exact import adapt
from cloison.proof.tiny import tiny_model
from tests.exact import helpers

LENGTHS = ([7, 1, 11, 2], [5, 29, 3, 13, 6])


def shard(model, **policy):
    """Shard every layer, and the rest, as FSDP2 is used."""
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def own(rank):
    return helpers.blocks_of(LENGTHS[rank], seed=rank)


def worst(model, kind):
    """The largest difference of the gradients from those of all samples of both ranks alone, over the largest gradient."""
    reference = tiny_model(kind)[0].train()
    _, wanted = helpers.alone_gradients(reference, own(0) + own(1))
    unit = max(float(g.abs().max()) for g in wanted.values())
    found = {name: p.grad for name, p in model.named_parameters()}
    whole = {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in found.items()}
    return max(float((whole[name] - g).abs().max()) for name, g in wanted.items()) / unit


def trained(kind, when, keep_logits=True, checkpointing=False, ddp=False, within=False, passed_by=False):
    """The difference of gradients after a step of an adapter made before or after the model was sharded, or wrapped by DDP."""
    model = tiny_model(kind)[0].train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if when == "after":
        shard(model)
    adapter = adapt(model, keep_logits=keep_logits, show=False)
    if when == "before" and not ddp:
        shard(model)
    wrapper = DistributedDataParallel(model) if ddp else model
    call = adapter.within(wrapper) if (ddp and not passed_by) or within else adapter
    items = sum(block.num_targets for rank in (0, 1) for block in own(rank))
    batch = adapter.collate(own(dist.get_rank()))
    call(**batch, num_items_in_batch=items / dist.get_world_size()).loss.backward()
    return worst(model, kind), adapter.way.rung


def watched(kind, shown):
    """What a watch, or an audit by its parts, says of a sharded step of an adapter."""
    model = tiny_model(kind)[0].train()
    adapter = adapt(model, show=False)
    shard(model)
    batch = adapter.collate(own(dist.get_rank()))
    with cloison.watch(model) as w:
        (adapter if shown else adapter.within(model))(**batch).loss.backward()
    return {verdict.experiment: verdict.status for verdict in w.report.verdicts}


def refused(call):
    try:
        call()
    except CloisonError as error:
        return str(error)
    return "not refused"


def in_another_precision():
    model = tiny_model("llama")[0].train()
    adapter = adapt(model, show=False)
    shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    adapter(**adapter.collate(own(dist.get_rank())))


def on_blocks_of_ones_own():
    adapt(shard(tiny_model("llama")[0]), own(0), show=False)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, output = dist.get_rank(), Path(sys.argv[1])
    said = {
        "before": trained("llama", "before"),
        "after": trained("jamba", "after"),
        "no logits": trained("llama", "before", keep_logits=False),
        "checkpointing": trained("gpt_oss", "before", checkpointing=True),
        "within": trained("llama", "before", within=True),
        "ddp": trained("gpt_oss", "before", ddp=True),
        "passed by": trained("llama", "before", ddp=True, passed_by=True)[0] > 0.1,
        "watched": watched("llama", True),
        "watched within": watched("llama", False),
        "precision": refused(in_another_precision),
        "blocks": refused(on_blocks_of_ones_own),
    }
    (output / f"rank{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    os._exit(0)  # torch's gloo threads now and then abort an interpreter that ends by itself, when all is done
