"""What happens to a model and its adapter besides training: copies, files, other processes, wrappers, toggles, trainers."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import cloison  # noqa: E402
from cloison.errors import InputError  # noqa: E402
from cloison.exact import Adapter, adapt  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from tests.exact import helpers  # noqa: E402
from tests.exact.test_adapt import built, packed_against_alone  # noqa: E402
from tests.exact.test_without_loss import built as built_class  # noqa: E402


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value)), "torch.save": through_a_file}
WAYS = {"llama": "d", "mpt": "c", "deepseek_v32": "b", "jamba": "e", "bart": "f", "phi3+longrope": "f"}


@pytest.mark.parametrize("name", [*WAYS, "reward"])
def test_an_adapter_is_copied_with_its_model_and_its_proof(name):
    reward = name == "reward"
    model = built_class("LlamaForSequenceClassification", "llama", pad_token_id=0) if reward else built(name)
    adapter = adapt(model, show=False)
    assert adapter.way.rung == WAYS.get(name, "d")
    batch = adapter.collate(helpers.blocks_of())
    wanted = adapter(**batch).logits
    for kind, copied in COPIES.items():
        other = copied(adapter)
        assert other.model is not model, kind
        assert torch.equal(other(**batch).logits, wanted), kind
        assert other.certificate == adapter.certificate
        with torch.no_grad():
            for parameter in other.model.parameters():
                parameter.mul_(1.5)
        assert not torch.equal(other(**batch).logits, wanted), kind  # it runs its own weights
    assert torch.equal(adapter(**batch).logits, wanted)


def test_one_without_logits_too():
    adapter = adapt(built("llama").train(), keep_logits=False, show=False)
    batch = adapter.collate(helpers.blocks_of())
    other = copy.deepcopy(adapter)
    with torch.no_grad():
        other.model.lm_head.weight.mul_(2.0)
    assert float(other(**batch).loss.detach()) != pytest.approx(float(adapter(**batch).loss.detach()), rel=1e-2)
    other.model.load_state_dict(adapter.model.state_dict())
    found, wanted = (helpers.gradients(one.model, one(**batch).loss) for one in (other, adapter))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_in_a_fresh_process_it_runs_as_here(tmp_path):
    adapter = adapt(built("gpt_oss"), show=False)
    batch = adapter.collate(helpers.blocks_of())
    torch.save((adapter, batch), tmp_path / "adapter.pt")
    script = (
        "import sys, torch\n"
        "adapter, batch = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.save(adapter(**batch).logits, sys.argv[2])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "adapter.pt"), str(tmp_path / "logits.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), adapter(**batch).logits)


def test_a_copy_that_came_elsewhere_or_changed_before_is_refused():
    adapter = adapt(built("llama"), show=False)
    older = replace(adapter.certificate, set_up={**adapter.certificate.set_up, "versions": {"torch": "2.0"}})
    elsewhere = replace(adapter, certificate=older)
    with pytest.raises(InputError, match="runs where it was certified"):
        copy.deepcopy(elsewhere)
    adapter.model.to(torch.bfloat16)
    with pytest.raises(InputError, match="its dtype went from float32 to bfloat16"):
        pickle.dumps(adapter)
    adapter.restore()
    with pytest.raises(InputError, match="runs no more"):
        copy.deepcopy(adapter)()


class Blocks(torch.utils.data.Dataset):
    def __init__(self, blocks):
        self.blocks = blocks

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return self.blocks[index]


def test_collate_goes_to_spawned_workers_without_the_model():
    adapter = adapt(built("llama"), show=False)
    blocks = helpers.blocks_of(capacity=32)
    assert len(pickle.dumps(adapter.collate)) < 1000
    batches = list(
        torch.utils.data.DataLoader(
            Blocks(blocks), 2, collate_fn=adapter.collate, num_workers=1, multiprocessing_context="spawn"
        )
    )
    wanted = [adapter.collate(blocks[i : i + 2]) for i in range(0, len(blocks), 2)]
    assert [batch.keys() for batch in batches] == [batch.keys() for batch in wanted]
    assert all(torch.equal(a["seq_lengths"], b["seq_lengths"]) for a, b in zip(batches, wanted, strict=True))


# ---------------------------------------------------------------------- the model


def test_the_model_is_copied_averaged_and_saved_as_without_an_adapter(tmp_path):
    plain, model = built("gpt_oss"), built("gpt_oss")
    adapter = adapt(model.train(), show=False)
    batch = adapter.collate(helpers.blocks_of())
    adapter(**batch).loss.backward()
    assert list(model.state_dict()) == list(plain.state_dict())
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    ids = torch.arange(4, 12)[None]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), averaged.module):
        torch.testing.assert_close(other.eval()(input_ids=ids).logits, plain(input_ids=ids).logits)
    for one, folder in ((model, "adapted"), (plain, "plain")):
        one.save_pretrained(tmp_path / folder)
    assert (tmp_path / "adapted" / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "adapted", attn_implementation="eager")
    torch.testing.assert_close(loaded(input_ids=ids).logits, plain(input_ids=ids).logits)
    copied = adapt(averaged.module, show=False)  # an average gets an adapter of its own
    assert copied.way.name == adapter.way.name


def test_peft_weights_are_saved_as_without_an_adapter(tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(built("llama"), peft.LoraConfig(target_modules=["q_proj"], r=2))
    adapter = adapt(model, show=False)
    blocks = helpers.blocks_of()
    with model.disable_adapter():
        assert torch.isfinite(adapter(**adapter.collate(blocks)).loss)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(built("llama"), tmp_path)
    ids = torch.arange(4, 12)[None]
    torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits)
    copied = copy.deepcopy(adapter)
    assert torch.equal(copied(**adapter.collate(blocks)).logits, adapter(**adapter.collate(blocks)).logits)


@pytest.mark.parametrize("name", ["llama", "jamba", "bart"])
def test_modes_frozen_weights_and_a_larger_vocabulary_change_nothing(name):
    model = built(name).train()
    adapter = adapt(model, show=False)
    blocks = helpers.blocks_of()
    model.eval()
    assert packed_against_alone(adapter, blocks) < 5e-5
    model.train()
    model.get_input_embeddings().requires_grad_(False)
    model.resize_token_embeddings(104, mean_resizing=False)
    assert adapter(**adapter.collate(blocks)).logits.shape[-1] == 104
    assert packed_against_alone(adapter, blocks) < 5e-5
    more = helpers.blocks_of(vocabulary=104)
    _, wanted = helpers.alone_gradients(model, more)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(more)).loss), wanted)


# ---------------------------------------------------------------------- what wraps the model


def test_batches_go_through_what_wraps_the_model():
    model = built("jamba").train()
    adapter = adapt(model, show=False)
    batch = adapter.collate(helpers.blocks_of())
    calls = []

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = model

        def forward(self, **given):
            calls.append(sorted(given))
            out = self.module(**given)
            with torch.no_grad():
                self.module(input_ids=torch.arange(4, 9)[None], seq_lengths=torch.tensor([[2, 3]]))  # packed as well
            return out

    out = adapter.within(Wrapper())(**batch)
    assert calls == [sorted(batch)]
    torch.testing.assert_close(out.loss, adapter(**batch).loss)
    torch.testing.assert_close(adapter.within(model)(**batch).loss, out.loss)
    assert all("forward" not in vars(module) for module in model.modules())
    with pytest.raises(InputError, match="does not hold the JambaForCausalLM"):
        adapter.within(built("llama"))

    def failing(*_, **__):
        raise ZeroDivisionError

    wrapper = Wrapper()
    wrapper.forward = failing
    with pytest.raises(ZeroDivisionError):
        adapter.within(wrapper)(**batch)
    assert "forward" not in vars(model)


def test_a_trainer_trains_evaluates_and_saves_the_adapted_model(tmp_path):
    """gpt_oss leaks through every signal of positions: what the Trainer logs is the adapter's loss, and not the model's."""
    model = tiny_model("gpt_oss")[0]
    adapter = adapt(model.train(), show=False)
    blocks = helpers.blocks_of([7, 1, 11, 2, 5, 29, 3, 13, 9, 23, 30, 2], capacity=32)

    class PackedTrainer(transformers.Trainer):
        def compute_loss(self, model, inputs, *arguments, **named):
            return super().compute_loss(adapter.within(model), inputs, *arguments, **named)

    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=2, per_device_train_batch_size=1, gradient_accumulation_steps=2, logging_steps=1, use_cpu=True,
        learning_rate=1e-2, report_to="none", save_strategy="no", per_device_eval_batch_size=2,
    )  # fmt: skip
    trainer = PackedTrainer(model, args=arguments, train_dataset=blocks, eval_dataset=blocks, data_collator=adapter.collate)
    with torch.no_grad():
        before = float(adapter(**adapter.collate(blocks)).loss)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(before, rel=0.2)  # a mean of means of batches
    audit = cloison.Audit(on_findings="raise")
    trainer.add_callback(audit)
    trainer.train()
    assert audit.report.ok
    assert trainer.state.log_history[-1]["train_loss"] < 1.3 * before
    trainer.save_model(str(tmp_path / "saved"))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["GptOssForCausalLM"] and "cloison" not in json.dumps(config)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="eager")
    ids = torch.arange(4, 12)[None]
    torch.testing.assert_close(loaded(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


@pytest.mark.parametrize("name", ["llama", "jamba", "bart"])
@pytest.mark.parametrize("direct", [True, False])
def test_a_watched_step_of_an_adapter_is_repeated_by_the_adapter(name, direct):
    """Whatever rows run inside; called by itself or within a wrapper."""
    model = built(name).train()
    adapter = adapt(model, show=False)
    batch = adapter.collate(helpers.blocks_of([7, 2, 11], capacity=32, seed=2))
    with cloison.watch(model) as watched:
        (adapter if direct else adapter.within(model))(**batch).loss.backward()
    said = {verdict.experiment: verdict for verdict in watched.report.verdicts}
    assert said["isolation"].status == "exact" and "seq_lengths" in said["isolation"].summary, said["isolation"]
    assert watched.report.ok, watched.report


def test_a_watched_adapter_that_leaks_is_found():
    model = built("gpt_oss").train()
    right = adapt(model, show=False)
    llama = adapt(built("llama"), rungs="b", show=False)
    wrong = Adapter(model, llama.way)  # positions, which this type does not heed
    batch = right.collate(helpers.blocks_of([7, 2, 11], capacity=32))
    with cloison.watch(model) as watched:
        wrong(**batch).loss.backward()
    assert "leak" in {finding.kind for finding in watched.report.findings}


def test_an_audit_says_that_targets_were_not_read_where_other_rows_ran(tmp_path):
    adapter = adapt(built("bart").train(), show=False)
    assert adapter.way.rung == "f"

    class PackedTrainer(transformers.Trainer):
        def compute_loss(self, model, inputs, *arguments, **named):
            return super().compute_loss(adapter.within(model), inputs, *arguments, **named)

    arguments = transformers.TrainingArguments(tmp_path, max_steps=1, use_cpu=True, report_to="none", save_strategy="no")
    blocks = helpers.blocks_of([7, 2, 11, 5], capacity=32)
    trainer = PackedTrainer(adapter.model, args=arguments, train_dataset=blocks, data_collator=adapter.collate)
    audit = cloison.Audit(on_findings="raise")
    trainer.add_callback(audit)
    trainer.train()
    said = {verdict.experiment: verdict for verdict in audit.report.verdicts}
    assert said["isolation"].status == "exact"
    assert said["targets"].status == "not tested" and "Use cloison.verify" in said["targets"].summary
