"""TRL on packed data: whose labels count, and how it trains a model that position ids do not isolate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")

import cloison  # noqa: E402
from cloison.errors import InputError  # noqa: E402
from cloison.exact import adapt  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402

TOKENIZER = Path(cloison.__file__).parent / "story" / "tokenizer"
QUIET = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "max_length": None, "packing": False}
QUIET |= {"dataset_kwargs": {"skip_prepare_dataset": True}, "per_device_train_batch_size": 2, "max_steps": 1}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    chats = [
        {"messages": [{"role": "user", "content": f"Count to {n}."}, {"role": "assistant", "content": "1 2 3 " * (n % 5 + 1)}]}
        for n in range(30)
    ]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    return cloison.pack(folder / "chats.jsonl", folder / "packed", cloison.PackSpec(capacity=128), tokenizer=TOKENIZER)


def trainer_of(packed, folder, kind, name="llama", base=None, **arguments):
    model = tiny_model(name, vocab_size=4096)[0].train()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER))
    data = datasets.load_dataset(str(packed.path), split="train", cache_dir=str(folder / "cache"))
    config = trl.SFTConfig(str(folder), **QUIET | arguments)
    more = {} if base is None else {"data_collator": base[1]}
    return (base[0] if base else kind)(model, args=config, train_dataset=data, processing_class=tokenizer, **more)


@pytest.mark.parametrize("completion", [None, True])
def test_the_labels_of_the_blocks_are_what_trl_trains(packed, tmp_path, completion):
    """``completion_only_loss`` builds labels from prompts and completions; blocks have theirs, and keep them."""
    trainer = trainer_of(packed, tmp_path, trl.SFTTrainer, padding_free=True, completion_only_loss=completion)
    [batch] = [next(iter(trainer.get_train_dataloader()))]
    trained = sum(int((block.labels != -100).sum()) for block in packed)
    tokens = sum(block.num_tokens for block in packed)
    assert 0 < trained < tokens
    whole = trainer.data_collator([trainer.train_dataset[i] for i in range(len(packed))])
    assert int((whole["labels"] != -100).sum()) == trained
    assert int((batch["labels"] != -100).sum()) > 0
    audit = cloison.Audit(on_findings="raise", samples=[sample for block in packed for sample in block.samples()])
    trainer.add_callback(audit)
    trainer.train()
    assert audit.report.ok


def test_trl_refuses_to_look_for_assistants_in_packed_rows(packed, tmp_path):
    with pytest.raises(ValueError, match="the dataset is not conversational"):
        trainer_of(packed, tmp_path, trl.SFTTrainer, padding_free=True, assistant_only_loss=True)


def test_trl_trains_an_adapted_model(packed, tmp_path):
    """gpt_oss sees its neighbours in every packed row of TRL's own; through the adapter it does not."""
    model = tiny_model("gpt_oss", vocab_size=4096)[0].train()
    adapter = adapt(model, show=False)

    class PackedTrainer(trl.SFTTrainer):
        def compute_loss(self, model, inputs, *arguments, **named):
            return transformers.Trainer.compute_loss(self, adapter.within(model), inputs, *arguments, **named)

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER))
    data = datasets.load_dataset(str(packed.path), split="train", cache_dir=str(tmp_path / "cache"))
    trainer = PackedTrainer(
        model,
        args=trl.SFTConfig(str(tmp_path), **QUIET),
        train_dataset=data,
        processing_class=tokenizer,
        data_collator=adapter.collate,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    wanted = float(adapter(**batch).loss.detach())
    audit = cloison.Audit(on_findings="raise", samples=[sample for block in packed for sample in block.samples()])
    trainer.add_callback(audit)
    trainer.train()
    assert audit.report.ok, audit.report
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(wanted, rel=0.2)  # of another draw of the shuffle


def test_rows_of_a_loaded_data_set_are_blocks(packed, tmp_path):
    adapter = adapt(tiny_model("llama", vocab_size=4096)[0], show=False)
    rows = datasets.load_dataset(str(packed.path), split="train", cache_dir=str(tmp_path / "cache"))
    for collate in (adapter.collate, cloison.collate, cloison.forms.hf.rows):
        found, wanted = collate([rows[0], rows[1]]), collate([packed[0], packed[1]])
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value, name
    with pytest.raises(InputError, match="Item 0 is a dict without seq_lengths") as caught:
        adapter.collate([{"input_ids": [1], "labels": [-100]}])
    assert "remove_unused_columns=False" in caught.value.remedy
