"""A training loop without a trainer: ``python loop_script.py right|wrong OUTPUT``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloison.proof.tiny import tiny_model

if __name__ == "__main__":
    model = tiny_model("llama")[0].train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    ids = torch.tensor([[11, 12, 13, 14, 21, 22, 23]])
    labels = torch.tensor([[-100, 12, 13, 14, -100, 22, 23]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    for _ in range(3):
        batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
        loss = model(**batch, use_cache=sys.argv[1] == "wrong").loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    (Path(sys.argv[2]) / "trained").write_text("the loop went on")
