"""A training script as users write them, for tests that launch it: ``python train_script.py SETTING OUTPUT``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.proof.trainers import flattening, hf, sft

if __name__ == "__main__":
    setting, output = sys.argv[1], Path(sys.argv[2])
    make = {
        "packing": lambda: sft(output, "llama", packing=True),
        "gpt_oss": lambda: sft(output, "gpt_oss", packing=True),
        "wrapped": lambda: sft(output, "llama", packing=True, packing_strategy="wrapped"),
        "cache": lambda: hf(output, "llama", flattening(), use_cache=True),
        "ranks": lambda: sft(output, "gpt_oss", packing=True, ddp_backend="gloo", average_tokens_across_devices=False),
    }
    trainer = make[setting]()
    trainer.train()
    (output / "trained").write_text("the script went on after train()")
