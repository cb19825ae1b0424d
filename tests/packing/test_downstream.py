"""What is packed is taken by the real libraries: ``datasets`` finds the blocks, ``trl.SFTTrainer`` trains on them exactly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloison import Packed, PackSpec, pack, unpack
from tests.packing.corpus import chats, write_lines

datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def packed(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A few blocks of chats, beside the token store in the same parent folder."""
    folder = tmp_path_factory.mktemp("downstream")
    source = write_lines(folder / "chats.jsonl", chats(60, 11))
    spec = PackSpec(192, train_on="assistant", carry=("source",))
    return pack(str(source), folder / "out", spec, tokenizer=tokenizer)


def test_datasets_finds_the_blocks_and_nothing_else(packed: Packed, tmp_path: Path) -> None:
    found = datasets.load_dataset(str(packed.path), cache_dir=str(tmp_path))
    assert list(found) == ["train"]
    rows = found["train"]
    assert rows.column_names == ["input_ids", "labels", "seq_lengths", "sample_ids", "source"]
    assert len(rows) == len(packed)
    assert rows[3]["input_ids"] == packed[3].input_ids.tolist()
    assert rows[3]["labels"] == packed[3].labels.tolist()
    assert rows[3]["source"] == packed[3].segment_columns["source"]


def test_datasets_finds_no_unfinished_work(packed: Packed, tmp_path: Path) -> None:
    import shutil

    copied = tmp_path / "copied"
    shutil.copytree(packed.path, copied)
    work = copied / ".work"
    work.mkdir()
    (work / "offsets.npy").write_bytes(b"")
    (work / "blocks-00000.parquet.json").write_text("{}")
    assert len(datasets.load_dataset(str(copied), cache_dir=str(tmp_path / "cache"))["train"]) == len(packed)


def test_a_real_trainer_has_the_loss_of_the_samples_unpacked(
    packed: Packed, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    trl = pytest.importorskip("trl")
    monkeypatch.setenv("WANDB_DISABLED", "true")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=packed.manifest.tokenizer["size"],
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    alone = copy.deepcopy(model)
    rows = datasets.load_dataset("parquet", data_files=str(packed.path / "*.parquet"), cache_dir=str(tmp_path / "cache"))[
        "train"
    ]

    class InOrder(trl.SFTTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    steps = 5
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path / "trained"),
        padding_free=True,
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        per_device_train_batch_size=1,
        max_steps=steps,
        logging_steps=1,
        optim="sgd",
        learning_rate=0.5,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    processing = transformers.AutoTokenizer.from_pretrained(tokenizer)
    trainer = InOrder(model, args=arguments, train_dataset=rows, processing_class=processing)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    expected = []
    for step in range(steps):
        block = packed[step]
        loss = torch.zeros(())
        for sample in unpack([block]):
            ids = torch.tensor(sample.input_ids[None].astype(np.int64))
            labels = torch.tensor(sample.labels.astype(np.int64))
            logits = alone(input_ids=ids, use_cache=False).logits[0, :-1]
            loss = loss + torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")
        loss = loss / block.num_targets
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    torch.set_num_threads(threads)
    assert len(logged) == steps
    assert expected[0] - expected[-1] > 0.01, "the steps must change the model, or equality says little"
    np.testing.assert_allclose(logged, expected, rtol=0, atol=2e-6)
