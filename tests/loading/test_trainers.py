"""Loops that are not ours take what the loader gives: torch's DataLoader with workers, transformers.Trainer, TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloison
from cloison.loading.torch_data import Batches

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trainers")
    rng = np.random.default_rng(0)
    lines = [json.dumps({"input_ids": rng.integers(4, 90, int(n)).tolist()}) for n in rng.integers(5, 40, 160)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return cloison.pack(str(folder / "data.jsonl"), folder / "out", cloison.PackSpec(96))


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, **sizes))


def _arguments(folder: Path, **options: Any) -> Any:
    quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    return transformers.TrainingArguments(str(folder), **{**quiet, **options})


def _sums(batches: Any) -> list[int]:
    return [int(batch["input_ids"].sum()) for batch in batches]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_worker_processes_give_the_batches_in_order(packed: Any, workers: int) -> None:
    loader = cloison.loader(packed, blocks_per_step=2, rank=1, world_size=2, balance_window=2)
    whole = _sums(loader)
    loader.set_epoch(0)
    loader.skip(3)
    rest = torch.utils.data.DataLoader(Batches(loader), batch_size=None, num_workers=workers)
    assert len(rest) == len(whole) - 3
    loader.skip(len(rest))
    assert loader.remaining == 0
    loader.set_epoch(1)
    assert _sums(rest) == whole[3:], "wherever the loader went since"


def test_a_run_with_workers_resumes_from_the_loaders_state(packed: Any) -> None:
    options = {"blocks_per_step": 4, "micro_batches": 2, "world_size": 2, "rank": 1}
    loader = cloison.loader(packed, **options)
    straight = [*_sums(loader), *_sums(loader)]
    first = cloison.loader(packed, **options)
    seen = []
    for batch in torch.utils.data.DataLoader(Batches(first), batch_size=None, num_workers=2, prefetch_factor=4):
        seen.append(int(batch["input_ids"].sum()))
        first.skip(1)
        if len(seen) == 3:  # the workers are many batches ahead by now
            break
    resumed = cloison.loader(packed, **options)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    seen += _sums(torch.utils.data.DataLoader(Batches(resumed), batch_size=None, num_workers=1))
    resumed.set_epoch(1)
    assert seen + _sums(resumed) == straight


def test_started_afresh_a_worker_finds_the_same(packed: Any) -> None:
    for source in (packed, cloison.pair_anew(packed)):
        loader = cloison.loader(source, blocks_per_step=4)
        loader.set_epoch(1)
        fresh = torch.utils.data.DataLoader(Batches(loader), batch_size=None, num_workers=1, multiprocessing_context="spawn")
        assert _sums(fresh) == _sums(loader)


def test_trainer_takes_packed_blocks_as_they_are(packed: Any, model: Any, tmp_path: Path) -> None:
    """Its default removes unused columns; boundaries survive, and every block comes once an epoch."""
    seen: list[int] = []
    firsts: list[int] = []

    def collate(blocks: list[cloison.Block]) -> dict[str, Any]:
        seen.extend(i for block in blocks for i in block.sample_ids.tolist())
        batch = cloison.collate(blocks)
        firsts.append(int((batch["position_ids"] == 0).sum()))
        return batch

    arguments = _arguments(tmp_path, num_train_epochs=1, per_device_train_batch_size=2)
    assert arguments.remove_unused_columns
    trainer = transformers.Trainer(model, arguments, train_dataset=packed, data_collator=collate)
    trainer.train()
    assert sorted(seen) == list(range(160))
    assert sum(firsts) == 160, "one position 0 a sample"


def test_trainer_on_packed_blocks_resumes_in_the_middle_of_an_epoch(packed: Any, model: Any, tmp_path: Path) -> None:
    """The Trainer's own sampler and skipping, over blocks: what was trained is not seen again, what was not comes."""
    options = {"max_steps": 15, "save_strategy": "steps", "save_steps": 5, "gradient_accumulation_steps": 2}

    def run(folder: Path, resume: Path | None = None) -> list[list[int]]:
        seen: list[list[int]] = []

        def collate(blocks: list[cloison.Block]) -> dict[str, Any]:
            seen.append([i for block in blocks for i in block.sample_ids.tolist()])
            return cloison.collate(blocks)

        arguments = _arguments(folder, per_device_train_batch_size=3, **options)
        trainer = transformers.Trainer(model, arguments, train_dataset=packed, data_collator=collate)
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        assert trainer.state.global_step == 15
        return seen

    straight = run(tmp_path / "one")
    epoch = -(-len(packed) // 3)
    assert sorted(i for batch in straight[:epoch] for i in batch) == list(range(160)), "each sample once in the first epoch"
    assert 10 < epoch < 30
    assert run(tmp_path / "two", tmp_path / "one" / "checkpoint-5")[-20:] == straight[10:30]


class _FromLoader(transformers.Trainer):
    """A Trainer whose batches are a loader's."""

    def __init__(self, loader: Any, *rest: Any, **named: Any) -> None:
        super().__init__(*rest, train_dataset=[0], **named)
        self._loader = loader

    def get_train_dataloader(self) -> Any:
        return self._loader


class _KeepState(transformers.TrainerCallback):
    """The loader's state in every checkpoint."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / "loader.json").write_text(json.dumps(self._loader.state_dict()))


def test_trainer_on_a_loader_resumes_in_the_middle_of_an_epoch(packed: Any, model: Any, tmp_path: Path) -> None:
    options = {
        "max_steps": 9,
        "save_strategy": "steps",
        "save_steps": 5,
        "gradient_accumulation_steps": 2,
        "ignore_data_skip": True,
    }

    def run(folder: Path, seen: list[list[int]], resume: Path | None = None) -> Any:
        def collate(blocks: list[cloison.Block]) -> dict[str, Any]:
            seen.append([i for block in blocks for i in block.sample_ids.tolist()])
            return cloison.collate(blocks)

        loader = cloison.loader(packed, collate, blocks_per_step=6, micro_batches=2, prefetch=0)
        if resume is not None:
            loader.load_state_dict(json.loads((resume / "loader.json").read_text()))
        trainer = _FromLoader(loader, model, _arguments(folder, **options), callbacks=[_KeepState(loader)])
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        assert trainer.state.global_step == 9
        return loader

    straight: list[list[int]] = []
    loader = run(tmp_path / "one", straight)
    assert len(straight) == 18
    assert len(loader) == 2 * -(-len(packed) // 6)
    first = [i for batch in straight[: len(loader)] for i in batch if i >= 0]
    assert sorted(first) == list(range(160)), "the first epoch has each sample once"
    resumed: list[list[int]] = []
    run(tmp_path / "two", resumed, tmp_path / "one" / "checkpoint-5")
    assert resumed == straight[10:]


def test_trl_takes_a_loader(packed: Any, model: Any, tmp_path: Path) -> None:
    """TRL's own trainer, which shifts and pads by itself, on batches that are collated already."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from tests.proof.trainers import tokenizer

    losses: list[float] = []
    loader = cloison.loader(packed, blocks_per_step=2)

    class FromLoader(trl.SFTTrainer):  # type: ignore[name-defined, misc]
        def get_train_dataloader(self) -> Any:
            return loader

        def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            loss = super().training_step(model, inputs, *rest, **named)
            losses.append(float(loss))
            return loss

    quiet = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "save_strategy": "no"}
    quiet |= {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None}
    trainer = FromLoader(
        model,
        args=trl.SFTConfig(str(tmp_path), max_steps=3, learning_rate=0.0, **quiet),
        train_dataset=datasets.Dataset.from_dict({"input_ids": [[5, 6]]}),
        processing_class=tokenizer(),
    )
    trainer.train()
    again = cloison.loader(packed, blocks_per_step=2)
    with torch.no_grad():
        expected = [float(model.eval()(**batch).loss) for batch, _ in zip(again, range(3), strict=False)]
    assert losses == pytest.approx(expected, rel=1e-4)
