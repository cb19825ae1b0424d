"""Right set-ups of a suspicious user that were accused once, and wrong ones that passed, by verify and in real trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.nn import functional
from transformers import Trainer

import cloison
from cloison import verify
from cloison.proof.repeated import digests, repeated_rows
from cloison.proof.signals import signal
from cloison.proof.tiny import tiny_model
from tests.proof.mutants_training import flat, padded
from tests.proof.trainers import BOS, EOS, hf, rows, sft

pytestmark = pytest.mark.filterwarnings("ignore")

Batch = dict[str, Any]


def status(report: Any) -> dict[str, str]:
    return {verdict.experiment: verdict.status for verdict in report.verdicts}


def errors(report: Any) -> list[str]:
    return [finding.kind for finding in report.findings if finding.severity == "error"]


# ---------------------------------------------------------------------- verify


class Autocast(nn.Module):
    """A wrapper of the user's own, in whose forward layers compute in bfloat16; it names nothing of the model inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, **batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(**batch)


def test_autocast_is_held_against_its_own_rounding() -> None:
    """Neither the dtype of the weights nor that of a copy in float64 says in what layers compute."""
    report = verify(Autocast(tiny_model("llama")[0]))
    assert report.ok, str(report)
    assert report["equality"].evidence["comparisons"]["logits"]["allowed"] > 1e-3
    assert status(report)["targets"] == "right"  # the head is found inside the wrapper
    assert errors(verify(Autocast(tiny_model("llama")[0]), collate=signal("none"), fix=False)) == ["leak"]


def test_equality_says_nothing_where_rounding_does_everything() -> None:
    """bfloat16 alone sends tokens of this model to other experts: no mismatch would show, and no remedy is called exact."""
    report = verify(Autocast(tiny_model("gpt_oss")[0]))
    assert errors(report) == ["leak"] and status(report)["equality"] == "not tested"
    assert "a mismatch would not show" in report["equality"].summary
    fix = report.findings[0].fix
    assert "start anew" not in fix and "exact.)" not in fix  # positions alone leak in this model


def left(blocks: Any, *, mask: bool = True, positions: bool = True) -> Batch:
    """A sample a row, padded on the left."""
    parts = [sample.input_ids for block in blocks for sample in block.samples()]
    width = max(map(len, parts))
    ids, valid = torch.zeros(len(parts), width, dtype=torch.long), torch.zeros(len(parts), width, dtype=torch.long)
    for row, part in enumerate(parts):
        ids[row, width - len(part) :] = torch.from_numpy(part.astype(np.int64))
        valid[row, width - len(part) :] = 1
    batch = {"input_ids": ids, "use_cache": False}
    batch |= {"attention_mask": valid} if mask else {}
    return batch | ({"position_ids": (valid.cumsum(1) - 1).clamp(min=0)} if positions else {})


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_padding_on_the_left_is_right_with_its_mask_and_positions(kind: str) -> None:
    """In float64 a wholly masked row of padding overflows: the copy is left out, and the model is not accused of it."""
    report = verify(tiny_model(kind)[0], collate=left)
    assert report.ok and status(report)["equality"] == "exact", str(report)


def test_padding_on_the_left_without_one_of_them_is_a_mismatch() -> None:
    assert errors(verify(tiny_model("llama")[0], collate=lambda b: left(b, mask=False, positions=False))) == ["mismatch"]
    report = verify(tiny_model("gpt2")[0], collate=lambda b: left(b, positions=False))
    assert errors(report) == ["mismatch"] and status(report)["positions"] == "wrong"


def test_scales_of_a_quantized_model_are_coupling() -> None:
    """Dynamic int8 scales go by the largest number of the whole row: nobody reads a neighbour, and numbers move."""
    model = torch.ao.quantization.quantize_dynamic(tiny_model("llama")[0], {nn.Linear}, dtype=torch.qint8)
    report = verify(model)
    assert report.ok, str(report)
    assert {status(report)[name] for name in ("isolation", "look-ahead", "equality")} == {"coupled"}
    assert "leak" in errors(verify(model, collate=signal("none"), fix=False))


def test_prompt_tuning_drops_the_positions_that_tell_samples_apart() -> None:
    """PEFT puts virtual tokens before the row and hands on no position_ids: packed rows leak, as it warns in passing."""
    from peft import LoraConfig, PromptTuningConfig, get_peft_model

    tuned = get_peft_model(tiny_model("llama")[0], PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    assert errors(verify(tuned, fix=False)) == ["leak"]
    chosen = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    assert verify(get_peft_model(tiny_model("llama")[0], chosen)).ok


class Plain(nn.Module):
    """A model of one's own with names of its own: ``idx`` in, logits out, no configuration, causal over the row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.out = nn.Embedding(96, 32), nn.Linear(32, 96), nn.Linear(32, 96)

    def forward(self, idx: Any) -> Any:
        x = self.embed(idx)
        query, key, value = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        return self.out(x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)[:, 0])


def test_ids_of_another_name_are_found_in_flat_and_in_padded_rows() -> None:
    leaks = verify(Plain(), collate=lambda blocks: {"idx": cloison.collate(blocks)["input_ids"]})
    assert errors(leaks) == ["leak"] and status(leaks)["where"] == "leak", str(leaks)

    def rows_apart(blocks: Any) -> Batch:
        return {"idx": left(blocks)["input_ids"].flip(1)}

    mirrored = verify(Plain(), collate=rows_apart)  # rows that hold other tokens than the blocks are not taken for them
    assert errors(mirrored) == ["error"]

    def rows_of_samples(blocks: Any) -> Batch:
        parts = [torch.from_numpy(s.input_ids.astype(np.int64)) for block in blocks for s in block.samples()]
        return {"idx": nn.utils.rnn.pad_sequence(parts, batch_first=True)}

    right = verify(Plain(), collate=rows_of_samples)
    assert right.ok and {status(right)[name] for name in ("isolation", "gradients", "equality")} == {"exact"}, str(right)


# ---------------------------------------------------------------------- inside real trainings


def audit(trainer: Any, **options: Any) -> Any:
    made = cloison.Audit(**options)
    trainer.add_callback(made)
    trainer.train()
    return made.report


def left_rows(features: Any, *, mask: bool = True, positions: bool = True) -> Batch:
    """The batch of `padded` with its padding on the left; the first token of a sample is no target."""
    batch = padded(features)
    width, lengths = batch["input_ids"].shape[1], batch["attention_mask"].sum(1)
    order = (torch.arange(width)[None] - (width - lengths)[:, None]) % width
    batch = {name: values.gather(1, order) for name, values in batch.items()}
    counted = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    batch["labels"][(counted == 0) & (batch["attention_mask"] == 1)] = -100
    batch |= {"position_ids": counted} if positions else {}
    return batch if mask else {name: values for name, values in batch.items() if name != "attention_mask"}


def one_late(features: Any) -> Batch:
    batch = {name: values for name, values in flat(features).items() if name in ("input_ids", "labels", "position_ids")}
    return batch | {"position_ids": batch["position_ids"] + 1}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_left_padded_rows_are_not_accused(kind: str, tmp_path: Path) -> None:
    report = audit(hf(tmp_path, kind, left_rows, steps=1))
    assert report.ok and status(report)["equality"] == "exact", str(report)


@pytest.mark.parametrize(
    ("kind", "collator", "cause"),
    [
        ("gpt2", one_late, "wrong_start"),
        ("gpt2", lambda features: left_rows(features, positions=False), "position_offset"),
        ("llama", lambda features: left_rows(features, mask=False, positions=False), "padding"),
    ],
    ids=["positions from one", "no positions", "no mask"],
)
def test_a_sample_that_is_not_what_it_is_alone_is_found_in_the_step(
    kind: str, collator: Callable[[Any], Batch], cause: str, tmp_path: Path
) -> None:
    report = audit(hf(tmp_path, kind, collator, steps=1))
    assert status(report)["isolation"] == "exact" and errors(report) == ["mismatch"], str(report)
    found = next(finding for finding in report.findings if finding.kind == "mismatch")
    assert found.where["cause"] == cause and found.fix


def test_positions_that_a_model_reads_as_distances_may_start_anywhere(tmp_path: Path) -> None:
    assert audit(hf(tmp_path, "llama", one_late, steps=1)).ok


@pytest.mark.parametrize(
    "make",
    [
        lambda tmp: hf(tmp, "llama", flat, steps=1, bf16=True),
        lambda tmp: hf(tmp, "mixtral", padded, steps=1),
        lambda tmp: hf(tmp, "llama", flat, steps=1, neftune_noise_alpha=5.0, label_smoothing_factor=0.1),
        lambda tmp: hf(tmp, "llama", flat, steps=1, gradient_checkpointing=True),
        lambda tmp: sft(tmp, "qwen3", steps=1, packing=True, bf16=True),
        lambda tmp: sft(tmp, "llama", steps=1, padding_free=True, max_length=None),
    ],
    ids=["bfloat16", "experts", "noise", "checkpointing", "trl packing", "trl padding_free"],
)
def test_samples_of_a_right_step_are_what_they_are_alone(make: Any, tmp_path: Path) -> None:
    report = audit(make(tmp_path))
    assert report.ok and status(report)["equality"] == "exact", str(report)


def with_opening(features: Any) -> Batch:
    """A collator that puts the begin-of-text id before every sample, as tokenizers' own do."""
    return padded([{"input_ids": [BOS, *f["input_ids"]], "labels": [-100, *f["labels"]]} for f in features])


def test_an_opening_that_the_collator_adds_is_no_padding(tmp_path: Path) -> None:
    report = audit(hf(tmp_path, "llama", with_opening, steps=1))
    assert report.ok and status(report)["equality"] == "exact", str(report)
    assert "the samples, found in the rows" in report["isolation"].summary


class Twice(Trainer):
    """R-Drop's way: the same rows through the model twice, and half of each loss."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        outputs = [model(**inputs, num_items_in_batch=num_items_in_batch) for _ in range(2)]
        loss = (outputs[0].loss + outputs[1].loss) / 2
        return (loss, outputs[0]) if return_outputs else loss


class Distilled(Trainer):
    """Targets that are another model's probabilities."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        asked = inputs.pop("labels")[:, 1:] != -100
        outputs = model(**inputs)
        with torch.no_grad():
            wanted = tiny_model("llama", seed=5)[0](**inputs).logits[:, :-1].softmax(-1)
        each = functional.kl_div(outputs.logits[:, :-1].log_softmax(-1), wanted, reduction="none").sum(-1)
        loss = each[asked].sum() / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("trainer_class", [Twice, Distilled])
def test_losses_of_another_kind_are_not_accused(trainer_class: Any, tmp_path: Path) -> None:
    """In every micro-batch: only the first is probed for what kind of loss it is."""
    report = audit(hf(tmp_path, "llama", flat, steps=1, trainer_class=trainer_class))
    assert report.ok, str(report)
    assert status(report)["weights"] == ("right" if trainer_class is Twice else "not tested")


class Own(nn.Module):
    """A model of one's own that computes its loss inside; its head has a name that heads have, or none of them."""

    def __init__(self, head: str, leaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.named, self.leaks = nn.Embedding(96, 32), nn.Linear(32, 96), head, leaks
        setattr(self, head, nn.Linear(32, 96))

    def forward(self, input_ids: Any, position_ids: Any, labels: Any, num_items_in_batch: Any = 1, **_: Any) -> Any:
        x = self.embed(input_ids)
        query, key, value = self.qkv(x).chunk(3, -1)
        segments, causal = (position_ids == 0).cumsum(1), torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        seen = causal if self.leaks else causal & (segments[:, :, None] == segments[:, None, :])
        x = x + (query @ key.transpose(1, 2) / 5).masked_fill(~seen, -1e30).softmax(-1) @ value
        logits = getattr(self, self.named)(x)
        loss = functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum") / num_items_in_batch
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize(("head", "targets"), [("lm_head", "right"), ("to_words", "not tested")])
def test_a_loss_computed_inside_a_model_of_ones_own_is_no_missing_loss(head: str, targets: str, tmp_path: Path) -> None:
    report = audit(hf(tmp_path, "", flat, steps=1, model=Own(head)))
    assert report.ok and status(report)["isolation"] == "exact" and status(report)["targets"] == targets, str(report)
    assert errors(audit(hf(tmp_path, "", flat, steps=1, model=Own(head, leaks=True)))) == ["leak"]


class Stream(torch.utils.data.IterableDataset):  # the class that trainers know streams by
    """Rows that come one after the other, and that no audit may read ahead."""

    def __init__(self, listed: list[dict[str, list[int]]]) -> None:
        self.listed = listed

    def __iter__(self) -> Any:
        return iter(self.listed)


def test_offsets_that_a_dispatcher_cut_are_named(tmp_path: Path) -> None:
    """accelerate hands out slices of every tensor of a streamed batch, one entry a row: of cu_seq_lens the 0 is left."""
    report = audit(hf(tmp_path, "llama", flat, steps=1, data=Stream(rows(64))))
    assert errors(report) == ["lengths_disagree"]
    assert "dispatch_batches" in next(finding for finding in report.findings if finding.kind == "lengths_disagree").fix
    whole = hf(tmp_path, "llama", flat, steps=1, data=Stream(rows(64)), accelerator_config={"dispatch_batches": False})
    assert audit(whole).ok


def test_rows_that_look_packed_and_say_nothing_of_it_are_a_warning(tmp_path: Path) -> None:
    """Three texts a row without boundaries, in a stream: nothing is known, and that is said; it is no accusation."""
    parts = rows(120, seed=5)
    joined = [
        {name: [n for part in parts[at : at + 3] for n in part[name]] for name in ("input_ids", "labels")}
        for at in range(0, 120, 3)
    ]
    report = audit(hf(tmp_path, "llama", padded, steps=1, data=Stream(joined)))
    assert report.ok
    warning = next(finding for finding in report.findings if finding.kind == "no_boundaries")
    assert warning.severity == "warning" and "A guess" in warning.message and "4 of 4 rows" in warning.message
    # Where the samples are known, an end inside a sample is a turn of its talk, and nothing is said.
    turns = [{"input_ids": [9, 8, EOS, 7, 6, EOS], "labels": [9, 8, EOS, 7, 6, EOS]}] * 8
    assert not audit(hf(tmp_path, "llama", padded, steps=1, data=Dataset.from_list(turns))).findings


def test_ranks_with_the_same_rows_are_told_from_ranks_with_some_in_common() -> None:
    ids = np.arange(48).reshape(2, 24)
    one = digests(ids, np.ones(ids.shape, bool))
    other = digests(ids[:, ::-1], np.ones(ids.shape, bool))
    assert repeated_rows([one, one], sure=True)[0].severity == "error"
    hedged = repeated_rows([other, one, one], sure=False)[0]
    assert hedged.severity == "warning" and hedged.where["ranks"] == [1, 2] and "tensor" in hedged.message
    assert not repeated_rows([one, other], sure=True) and not repeated_rows([one], sure=True)
    assert not repeated_rows([one, one | other], sure=True) and not repeated_rows([{}, {}], sure=True)
    assert digests(ids, ids >= 24) == digests(ids[1:], ids[1:] >= 24)  # padding counts for nothing
