"""Two ranks for a test: ``torchrun --nproc-per-node 2 two_ranks.py OUTPUT``. Ranks hold different numbers of samples."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from transformers import Trainer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cloison
from cloison.proof.tiny import tiny_model
from tests.proof.trainers import flattening, hf


def sharded(kind: str, lengths: list[int]) -> dict[str, object]:
    """A step of a model sharded by FSDP, watched."""
    model = tiny_model(kind)[0].train()
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ids = torch.arange(11, 11 + sum(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    labels = torch.where(positions == 0, -100, ids)
    with cloison.watch(model, seq_lengths=[lengths]) as w:
        model(input_ids=ids, position_ids=positions, labels=labels, use_cache=False).loss.backward()
    plain = w.report.to_dict()
    return {"verdicts": plain["verdicts"], "findings": plain["findings"], "influence": plain["influence"]}


def guarded(output: Path, cache: bool) -> dict[int, str]:
    """Steps of a trainer with data-parallel ranks, guarded."""
    trainer = hf(output, "llama", flattening(), steps=3, ddp_backend="gloo", use_cache=cache)
    guard = cloison.Guard(2, on_findings="warn")
    trainer.add_callback(guard)
    trainer.train()
    return {step: verdict.status for step, verdict in guard.verdicts.items()}


class Same(Trainer):
    """A trainer whose loader was never told how many ranks there are."""

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=4, collate_fn=self.data_collator)


def audited(output: Path, trainer_class: type[Trainer]) -> list[tuple[str, str]]:
    """What an audit of data-parallel ranks finds."""
    trainer = hf(output, "llama", flattening(), steps=1, trainer_class=trainer_class, ddp_backend="gloo")
    audit = cloison.Audit()
    trainer.add_callback(audit)
    trainer.train()
    assert audit.report is not None and audit.report["equality"].status == "exact"
    return [(finding.kind, finding.severity) for finding in audit.report.findings if finding.severity != "note"]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, output = dist.get_rank(), Path(sys.argv[1])
    said = {
        "llama": sharded("llama", [4, 5] if rank == 0 else [3, 1, 2, 2, 4]),
        # one rank has a single sample, and the other leaks
        "gpt_oss": sharded("gpt_oss", [9] if rank == 0 else [3, 3, 6]),
        "guard": guarded(output, False),
        "guard_cache": guarded(output, True),
        "dealt": audited(output, Trainer),
        "not dealt": audited(output, Same),
    }
    (output / f"rank{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    os._exit(0)  # torch's gloo threads now and then abort an interpreter that ends by itself, when all is done
