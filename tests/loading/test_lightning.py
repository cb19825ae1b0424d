"""Lightning keeps a loader's state in its checkpoints by itself: a fresh process goes on in the middle of an epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cloison

pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

RUN = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.loading.test_lightning import trained
print(json.dumps(trained(Path(sys.argv[2]), 10, sys.argv[3])))
"""


def blocks() -> list[cloison.Block]:
    return cloison.pack_samples([[4 + n % 9] * (5 + n * 7 % 31) for n in range(160)], capacity=96)


def a_loader() -> Any:
    return cloison.loader(blocks(), ids, blocks_per_step=6, micro_batches=2, rank=1, world_size=2)


def ids(found: list[cloison.Block]) -> list[int]:
    return [i for block in found for i in block.sample_ids.tolist()]


def trained(folder: Path, steps: int, resume: str | None = None) -> list[list[int]]:
    """What a run until ``steps`` was given, batch by batch; it accumulates two of them a step."""
    import lightning

    seen = []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(1, 1)

        def training_step(self, batch: list[int], index: int) -> Any:
            seen.append(batch)
            return self.weight(torch.ones(1, 1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    saving = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="at", every_n_train_steps=steps)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    trainer = lightning.Trainer(
        max_steps=steps, accumulate_grad_batches=2, callbacks=[saving], default_root_dir=folder, **quiet
    )
    trainer.fit(Module(), train_dataloaders=a_loader(), ckpt_path=resume)
    assert trainer.global_step == steps
    return seen


@pytest.mark.filterwarnings("ignore")
def test_a_fresh_process_goes_on_where_lightning_stopped(tmp_path: Path) -> None:
    loader = a_loader()
    straight = [*loader, *loader, *loader, *loader][:20]
    assert len(loader) == 6, "the run stops in the middle of an epoch, and passes several"
    assert trained(tmp_path, 2) == straight[:4]
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(Path(__file__).parents[2]), str(tmp_path / "second")]
    done = subprocess.run([*command, str(tmp_path / "at.ckpt")], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == straight[4:]
