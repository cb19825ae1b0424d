"""Audit inside real trainings: the verdicts that were measured on TRL and transformers, and no trace left in them."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import cloison  # noqa: E402
from cloison.errors import FindingsError, InputError  # noqa: E402
from cloison.proof.audit import Audit  # noqa: E402
from cloison.proof.guard import Guard  # noqa: E402
from cloison.samples import Sample  # noqa: E402
from tests.proof.trainers import flattening, hf, history, rows, sft  # noqa: E402


def audited(trainer: Any, **options: Any) -> Any:
    audit = Audit(**options)
    trainer.add_callback(audit)
    trainer.train()
    assert audit.report is not None
    return audit.report


def kinds(report: Any, severity: str = "error") -> list[str]:
    return sorted(f.kind for f in report.findings if f.severity == severity)


def test_trl_packing_on_llama_is_exact(tmp_path: Path) -> None:
    report = audited(sft(tmp_path, "llama", packing=True))
    assert report.ok, str(report)
    assert report["isolation"].status == "exact"
    assert report["isolation"].evidence["boundaries"] == "seq_lengths of the data set's rows"
    assert report["targets"].status == "right" and report["targets"].evidence["place"] == "hidden"
    assert report["weights"].evidence["kind"] == "token_mean" and report["weights"].evidence["total"] == pytest.approx(
        1, abs=1e-3
    )
    assert report["throughput"].evidence["utilization"] == 1.0
    assert report.certificate["ranks"] == 1


def test_trl_packing_on_gpt_oss_leaks(tmp_path: Path) -> None:
    report = audited(sft(tmp_path, "gpt_oss", packing=True))
    assert kinds(report) == ["leak"]
    assert report["where"].evidence["module"] == "model.layers.0.self_attn"
    assert report["where"].evidence["nature"] == "attention"
    (leak,) = (f for f in report.findings if f.kind == "leak")
    assert "cloison.adapt" in leak.fix and leak.where["size"] > 0.1
    assert report.influence is not None and report.influence.shape[0] == report.influence.shape[1] > 2


def test_trl_wrapped_leaks_and_trains_boundaries(tmp_path: Path) -> None:
    report = audited(sft(tmp_path, "llama", packing=True, packing_strategy="wrapped"))
    assert kinds(report) == ["boundary_target", "leak"]
    assert "guess" in report["isolation"].evidence["boundaries"]
    assert all("guess" in f.message or "guess" in report["isolation"].summary for f in report.findings)


def test_trl_padding_free_is_exact_and_the_samples_are_found(tmp_path: Path) -> None:
    report = audited(sft(tmp_path, "llama", padding_free=True, max_length=None))
    assert report.ok, str(report)
    assert report["isolation"].evidence["boundaries"] == "the samples, found in the rows"
    assert report["targets"].evidence["labels"] == "known"


def test_flattening_is_exact_until_the_cache_is_on(tmp_path: Path) -> None:
    report = audited(hf(tmp_path, "llama", flattening()))
    assert report.ok, str(report)
    assert report["targets"].evidence["place"] == "logits"
    report = audited(hf(tmp_path, "llama", flattening(), use_cache=True))
    assert kinds(report) == ["leak"]
    assert "use_cache=False" in report.findings[0].fix and "Tried" in report.findings[0].fix


def test_plain_padding_is_right_and_isolation_of_single_samples_too(tmp_path: Path) -> None:
    def padded(features: list[dict[str, Any]]) -> dict[str, Any]:
        width = max(len(f["input_ids"]) for f in features)
        pad = lambda name, fill: torch.tensor([list(f[name]) + [fill] * (width - len(f[name])) for f in features])  # noqa: E731
        ids = pad("input_ids", 0)
        return {"input_ids": ids, "labels": pad("labels", -100), "attention_mask": (ids != 0).long()}

    report = audited(hf(tmp_path, "llama", padded))
    assert report.ok, str(report)
    assert report["throughput"].evidence["utilization"] < 1


SETTINGS: dict[str, Any] = {
    "packing": lambda tmp: sft(tmp, "llama", steps=3, packing=True),
    "leak": lambda tmp: sft(tmp, "gpt_oss", steps=3, packing=True),
    "padding_free": lambda tmp: sft(tmp, "qwen3_moe", steps=3, padding_free=True, max_length=None),
    "smoothing": lambda tmp: sft(tmp, "llama", steps=3, packing=True, label_smoothing_factor=0.1),
    "checkpointing": lambda tmp: sft(tmp, "llama", steps=3, packing=True, gradient_checkpointing=True),
    "neftune": lambda tmp: hf(tmp, "llama", flattening(), steps=3, neftune_noise_alpha=5),
    "dropout": lambda tmp: hf(tmp, "gpt2", flattening(), steps=3, model=dropping()),
    "bf16": lambda tmp: hf(tmp, "llama", flattening(), steps=3, bf16=True),
    "cache": lambda tmp: hf(tmp, "llama", flattening(), steps=3, use_cache=True),
    "dynamic": lambda tmp: hf(tmp, "dynamic", flattening(), steps=3, model=dynamic()),
}


def dropping() -> Any:
    from cloison.proof.tiny import tiny_model

    return tiny_model("gpt2", resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2)[0]


def dynamic() -> Any:
    """A model whose rotary scaling remembers the longest row that it has seen."""
    from cloison.proof.tiny import tiny_model

    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return tiny_model("llama", max_position_embeddings=16, rope_parameters=scaled)[0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_trace(setting: str, tmp_path: Path) -> None:
    logged, weights = [], []
    for callbacks in ([], [Audit(), Guard(2, on_findings="warn")]):
        trainer = SETTINGS[setting](tmp_path)
        if setting == "dropout":
            assert trainer.model.config.resid_pdrop > 0
        for callback in callbacks:
            trainer.add_callback(callback)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train()
        logged.append(history(trainer))
        weights.append([p.detach().clone() for p in trainer.model.parameters()])
        assert "training_step" not in vars(trainer) and "backward" not in vars(trainer.accelerator)
        assert not trainer.model._forward_pre_hooks and not trainer.model._forward_hooks
    assert logged[0] == logged[1]
    assert len(logged[0]) == 4
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_dropout_stays_on_and_is_said(tmp_path: Path) -> None:
    report = audited(hf(tmp_path, "gpt2", flattening(), model=dropping()))
    assert report["isolation"].status == "exact"
    assert "dropout_seeded" in kinds(report, "note")


def test_prompts_are_known_from_the_samples(tmp_path: Path) -> None:
    from datasets import Dataset

    report = audited(hf(tmp_path, "llama", flattening(), data=Dataset.from_list(rows(prompt=2))))
    assert report.ok, str(report)

    def careless(features: list[dict[str, Any]]) -> dict[str, Any]:
        return dict(flattening()([{"input_ids": f["input_ids"]} for f in features], return_tensors="pt"))

    report = audited(hf(tmp_path, "llama", careless, data=Dataset.from_list(rows(prompt=2))))
    assert kinds(report) == ["prompt_trained"]


def test_blocks_are_known_by_their_segments(tmp_path: Path) -> None:
    """A Trainer on cloison's own blocks: the samples of the blocks are the truth, and a collator that forgets them is named."""
    samples = [Sample(row["input_ids"], row["labels"]) for row in rows(40, prompt=2)]
    blocks = cloison.pack_samples(samples, capacity=48)
    report = audited(hf(tmp_path, "llama", cloison.collate, data=blocks))
    assert report.ok, str(report)
    assert report["isolation"].status == "exact" and "the samples" in report["isolation"].evidence["boundaries"]
    assert report["targets"].evidence["labels"] == "known"

    def forgetful(blocks: list[Any]) -> dict[str, Any]:
        batch = cloison.collate(blocks)
        return {"input_ids": batch["input_ids"], "labels": batch["input_ids"].clone()}

    report = audited(hf(tmp_path, "llama", forgetful, data=blocks))
    assert kinds(report) == ["boundary_target", "leak", "prompt_trained"]


def test_samples_may_be_passed(tmp_path: Path) -> None:
    """TRL's wrapped rows hold no lengths: what was packed is known to whoever packed it."""
    from tests.proof.trainers import EOS, texts, tokenizer

    samples = [tokenizer()(text)["input_ids"] + [EOS] for text in texts()]
    report = audited(sft(tmp_path, "llama", packing=True, packing_strategy="wrapped"), samples=samples)
    assert kinds(report) == ["boundary_target", "leak"]
    assert report["isolation"].evidence["boundaries"] == "the samples and pieces of them, found in the rows"
    assert not any("guess" in finding.message for finding in report.findings)


def test_raise_stops_before_the_first_step(tmp_path: Path) -> None:
    trainer = hf(tmp_path, "llama", flattening(), use_cache=True)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.add_callback(Audit(on_findings="raise"))
    with pytest.raises(FindingsError, match="samples see each other"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    with pytest.raises(InputError, match="on_findings"):
        Audit(on_findings="shout")  # type: ignore[arg-type]


def test_the_report_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cloison"):
        audited(hf(tmp_path, "llama", flattening()))
        audited(hf(tmp_path, "llama", flattening(), use_cache=True))
    levels = [record.levelname for record in caplog.records if record.name == "cloison"]
    assert levels == ["INFO", "WARNING"]


def test_guard_checks_every_n_steps(tmp_path: Path) -> None:
    trainer = hf(tmp_path, "llama", flattening(), steps=5)
    guard = Guard(2)
    trainer.add_callback(guard)
    trainer.train()
    assert {step: verdict.status for step, verdict in guard.verdicts.items()} == {0: "exact", 2: "exact", 4: "exact"}
    trainer = hf(tmp_path, "llama", flattening(), steps=5, use_cache=True)
    trainer.add_callback(Guard(2))
    with pytest.raises(FindingsError, match="step 0: leak"):
        trainer.train()
    with pytest.raises(InputError, match="every"):
        Guard(0)
    with pytest.raises(InputError) as caught:
        Guard(trainer.model)
    assert caught.value.found == "It is a LlamaForCausalLM.", "the name of it, and not the model printed out"


def test_guard_on_a_mixture_of_experts_is_quiet(tmp_path: Path) -> None:
    trainer = sft(tmp_path, "qwen3_moe", steps=3, padding_free=True, max_length=None)
    guard = Guard(1)
    trainer.add_callback(guard)
    trainer.train()
    assert {verdict.status for verdict in guard.verdicts.values()} <= {"exact", "coupled"}


def test_a_loss_without_gradient_and_nan(tmp_path: Path) -> None:
    import transformers

    class Detached(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(model, inputs, *args, **kwargs).detach()

    trainer = hf(tmp_path, "llama", flattening(), trainer_class=Detached)
    audit = Audit()
    trainer.add_callback(audit)
    with pytest.raises(RuntimeError, match="does not require grad"):
        trainer.train()
    assert audit.report is None or "no_loss" in kinds(audit.report)

    def divided(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        loss = torch.nn.functional.cross_entropy(outputs.logits[0, :-1].float(), labels[0, 1:], reduction="none")
        return (loss * (labels[0, 1:] != -100) / (labels[0, 1:] * 0)).sum()

    report = audited(hf(tmp_path, "llama", flattening(), compute_loss_func=divided))
    assert "not_finite" in kinds(report)


def test_nothing_trained(tmp_path: Path) -> None:
    from datasets import Dataset

    data = Dataset.from_list([{**row, "labels": [-100] * len(row["input_ids"])} for row in rows()])
    report = audited(hf(tmp_path, "llama", flattening(), data=data))
    assert "nothing_trained" in kinds(report) or "no_loss" in kinds(report) or "not_finite" in kinds(report)
    assert not report.ok


def test_the_influence_matrix_has_every_segment(tmp_path: Path) -> None:
    report = audited(hf(tmp_path, "llama", flattening(), use_cache=True))
    assert report.influence is not None
    moved = np.nan_to_num(report.influence) > 0
    assert moved.diagonal().all() and not np.tril(moved, -1).any()


# ---------------------------------------------------------------------- right trainings of other kinds


def test_trl_in_bfloat16_is_not_accused_of_weights_of_its_own(tmp_path: Path) -> None:
    report = audited(sft(tmp_path, "llama", packing=True, steps=1, bf16=True))
    assert report.ok, str(report)
    assert report["targets"].evidence["place"] == "hidden"
    assert report["weights"].evidence["kind"] == "token_mean"


def pairs() -> Any:
    from datasets import Dataset

    prompts = [" ".join(f"w{4 + (7 * row + i) % 90}" for i in range(3 + row % 3)) for row in range(8)]
    return Dataset.from_list([{"prompt": p, "chosen": " w11 w12 w13", "rejected": " w21 w22"} for p in prompts])


def test_a_preference_loss_is_no_mean_over_tokens_and_is_not_accused(tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    from cloison.proof.tiny import tiny_model
    from tests.proof.trainers import tokenizer

    args = DPOConfig(
        output_dir=str(tmp_path), max_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
        per_device_train_batch_size=2, disable_tqdm=True,
    )  # fmt: skip
    model, reference = tiny_model("llama")[0], tiny_model("llama", seed=1)[0]
    report = audited(
        DPOTrainer(model=model, ref_model=reference, args=args, train_dataset=pairs(), processing_class=tokenizer())
    )
    assert report.ok, str(report)
    assert report["weights"].status == "not tested" and "preference" in report["weights"].summary


def test_a_classifier_has_no_targets_among_tokens_and_is_not_accused(tmp_path: Path) -> None:
    from transformers import LlamaForSequenceClassification

    from cloison.proof.tiny import tiny_config
    from tests.proof.mutants_training import padded

    config = tiny_config("llama")
    config.num_labels, config.pad_token_id = 2, 0
    model = LlamaForSequenceClassification(config)

    def collate(features: Any) -> Any:
        return padded(features) | {"labels": torch.tensor([len(f["input_ids"]) % 2 for f in features])}

    report = audited(hf(tmp_path, "llama", collate, steps=1, model=model))
    assert report.ok, str(report)
    assert report["targets"].status == "not tested" and "classifier" in report["targets"].summary
    assert report["isolation"].status == "exact"


def test_targets_of_an_encoder_decoder_are_not_sought_in_the_rows_of_the_encoder(tmp_path: Path) -> None:
    from transformers import DataCollatorForSeq2Seq, T5Config, T5ForConditionalGeneration

    from tests.proof.trainers import tokenizer

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(vocab_size=96, decoder_start_token_id=0, dropout_rate=0.0, **sizes))
    trainer = hf(tmp_path, "t5", DataCollatorForSeq2Seq(tokenizer(), model=model), steps=1, accumulation=1, model=model)
    report = audited(trainer)
    assert report.ok, str(report)
    assert report["targets"].status == "not tested" and "decoder" in report["targets"].summary


def test_masked_modelling_asks_for_tokens_of_their_own_places(tmp_path: Path) -> None:
    from tests.proof.mutants_training import masked_modelling

    report = audited(masked_modelling(tmp_path, False))
    assert report.ok, str(report)
    assert "masked_targets" in kinds(report, "note")
    report = audited(masked_modelling(tmp_path, True))
    assert "padding_trained" in kinds(report, "warning")
