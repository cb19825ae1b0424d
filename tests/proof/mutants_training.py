"""Faults planted in collators, labels, masks, losses and trainers, each beside its right version, in real trainings.

A `Mutant` builds a trainer, wrong or right, from one flag; everything else is the same. Faults of models are in
`mutants_model`. Long because it is a list: 44 small faults that are read beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cloison.proof.tiny import tiny_model
from tests.proof.trainers import EOS, PAD, hf, rows, sft

Batch = dict[str, Any]
Features = list[dict[str, Any]]


@dataclass(frozen=True)
class Mutant:
    """``make(tmp, wrong)`` gives a trainer; ``kinds`` are the errors that the wrong one must be called."""

    name: str
    kinds: tuple[str, ...]
    make: Callable[[Path, bool], Any]
    claim: str = "token_mean"


# ---------------------------------------------------------------------- collators


def flat(features: Features) -> Batch:
    """The right way: one row, positions restart, the first label of a sample is none, offsets and lengths beside."""
    ids = np.concatenate([f["input_ids"] for f in features])
    labels = np.concatenate([[-100, *f["labels"][1:]] for f in features])
    lengths = [len(f["input_ids"]) for f in features]
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    positions = np.concatenate([np.arange(n) for n in lengths])
    return {
        "input_ids": torch.from_numpy(ids.astype(np.int64))[None],
        "labels": torch.from_numpy(labels.astype(np.int64))[None],
        "position_ids": torch.from_numpy(positions.astype(np.int64))[None],
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def padded(features: Features, pad: int = PAD) -> Batch:
    """A sample a row, right-padded, masked by place."""
    width = max(len(f["input_ids"]) for f in features)
    rows_of = {"input_ids": pad, "labels": -100}
    batch = {n: torch.tensor([[*f[n], *[fill] * (width - len(f[n]))] for f in features]) for n, fill in rows_of.items()}
    sizes = torch.tensor([len(f["input_ids"]) for f in features])
    return batch | {"attention_mask": (torch.arange(width)[None] < sizes[:, None]).long()}


def lengths_of(batch: Batch) -> list[int]:
    return batch["cu_seq_lens_q"].diff().tolist()


def segment_ids(batch: Batch) -> torch.Tensor:
    lengths = lengths_of(batch)
    return torch.from_numpy(np.repeat(np.arange(1, len(lengths) + 1), lengths))[None]


def allowed(batch: Batch) -> torch.Tensor:
    segments = segment_ids(batch)[0]
    same = segments[:, None] == segments[None, :]
    return (same & torch.ones_like(same).tril())[None, None]


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


def boundary_target(batch: Batch) -> Batch:
    first = batch["cu_seq_lens_q"][:-1].long()
    batch["labels"][0, first] = batch["input_ids"][0, first]
    return batch


def shifted_twice(batch: Batch) -> Batch:
    batch["labels"] = functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    return batch


def terminator_masked(batch: Batch) -> Batch:
    batch["labels"][batch["input_ids"] == EOS] = -100
    return batch


def cut_early(batch: Batch) -> Batch:
    batch["labels"][0, batch["cu_seq_lens_q"][1:].long() - 1] = -100
    return batch


def ones(batch: Batch) -> Batch:
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def segments_as_mask(batch: Batch) -> Batch:
    return batch | {"attention_mask": segment_ids(batch)}


def order_of_offsets(batch: Batch) -> Batch:
    lengths = lengths_of(batch)
    offsets = torch.tensor([0, *np.cumsum(sorted(lengths))], dtype=torch.int32)
    assert sorted(lengths) != lengths
    return batch | {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}


def longest_too_short(batch: Batch) -> Batch:
    return batch | {"max_length_q": batch["max_length_q"] - 1, "max_length_k": batch["max_length_k"] - 1}


def reset_late(batch: Batch) -> Batch:
    """The positions of the second sample restart one token late."""
    first = int(batch["cu_seq_lens_q"][1])
    lengths = lengths_of(batch)
    moved = [lengths[0] + 1, lengths[1] - 1, *lengths[2:]]
    assert sum(moved[:1]) == first + 1
    return batch | {"position_ids": torch.cat([torch.arange(n) for n in moved])[None]}


def reversed_positions(batch: Batch) -> Batch:
    lengths = lengths_of(batch)[::-1]
    assert lengths != lengths[::-1]
    return batch | {"position_ids": torch.cat([torch.arange(n) for n in lengths])[None]}


def no_reset(batch: Batch) -> Batch:
    return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


def no_positions(batch: Batch) -> Batch:
    del batch["position_ids"]
    return batch


def one_boundary_missing(batch: Batch) -> Batch:
    lengths = lengths_of(batch)
    joined = [*lengths[:-2], lengths[-2] + lengths[-1]]
    return batch | {"position_ids": torch.cat([torch.arange(n) for n in joined])[None]}


def neighbour_mask(batch: Batch) -> Batch:
    """Each sample sees the one before it, and no other."""
    segments = segment_ids(batch)[0]
    near = torch.isin(segments[:, None] - segments[None, :], torch.tensor([0, 1]))
    return batch | {"attention_mask": additive((near & torch.ones_like(near).tril())[None, None])}


def edge_mask(batch: Batch) -> Batch:
    """One wrong cell: the first token of the second sample sees the last of the first."""
    mask = allowed(batch)
    at = int(batch["cu_seq_lens_q"][1])
    mask[0, 0, at, at - 1] = True
    return batch | {"attention_mask": additive(mask)}


def mask4d(batch: Batch) -> Batch:
    return batch | {"attention_mask": additive(allowed(batch))}


def bool_mask(batch: Batch) -> Batch:
    return batch | {"attention_mask": allowed(batch)}


def rolled(batch: Batch) -> Batch:
    """Labels shifted by a roll over the whole row, and passed as shifted."""
    whole = batch["labels"].clone()
    first = batch["cu_seq_lens_q"][:-1].long()
    whole[0, first] = batch["input_ids"][0, first]
    return batch | {"shift_labels": whole.roll(-1, 1)}


def shifted_inside(batch: Batch) -> Batch:
    return batch | {"shift_labels": functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]}


def labels_of_another_order(batch: Batch) -> Batch:
    asked = batch["labels"] != -100
    values = batch["labels"][asked]
    batch["labels"][asked] = values.flip(0)
    return batch


def nothing_matches(batch: Batch) -> Batch:
    return batch | {"labels": torch.full_like(batch["labels"], -100)}


def prompts(batch: Batch) -> Batch:
    labels = batch["input_ids"].clone()
    labels[0, batch["cu_seq_lens_q"][:-1].long()] = -100
    return batch | {"labels": labels}


def unknown_columns(batch: Batch) -> Batch:
    return batch


def planted(change: Callable[[Batch], Batch], right: Callable[[Batch], Batch] = unknown_columns, **options: Any) -> Any:
    """A flat batch with ``change`` where wrong, with ``right`` otherwise."""

    def make(tmp: Path, wrong: bool) -> Any:
        return hf(tmp, "llama", lambda fs: (change if wrong else right)(flat(fs)), steps=1, data=samples(), **options)

    return make


def samples(prompt: int = 2, equal: bool = False) -> Any:
    from datasets import Dataset

    made = rows(prompt=prompt)
    if equal:
        made = [{k: v[:4] + v[-1:] for k, v in row.items()} for row in made]
    return Dataset.from_list(made)


def tail(trained: bool) -> Callable[[Features], Batch]:
    """A flat row filled up with padding, whose labels are the padding itself where ``trained``."""

    def collate(features: Features) -> Batch:
        batch = flat(features)
        size = 64 - batch["input_ids"].shape[1]
        fill = functional.pad
        return {
            "input_ids": fill(batch["input_ids"], (0, size), value=PAD),
            "labels": fill(batch["labels"], (0, size), value=PAD if trained else -100),
            "position_ids": torch.cat([batch["position_ids"], torch.arange(size)[None]], 1),
        }

    return collate


def padded_with_end(features: Features, wrong: bool) -> Batch:
    """Padding and the end share an id; the labels are masked by that id where wrong."""
    batch = padded(features, EOS)
    if wrong:
        batch["labels"][batch["input_ids"] == EOS] = -100
    return batch


def padding_asked(features: Features, wrong: bool) -> Batch:
    batch = padded(features)
    if wrong:
        labels = batch["labels"]
        batch["labels"] = torch.where(batch["attention_mask"] == 0, torch.full_like(labels, PAD), labels)
    return batch


# ---------------------------------------------------------------------- losses


def shifted(outputs: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token losses and which count, the logits of a token against the label of the next."""
    logits = outputs["logits"][:, :-1].float()
    wanted = labels[:, 1:]
    losses = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)
    return losses, wanted != -100


def token_mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    losses, _ = shifted(outputs, labels)
    return losses.sum() / num_items_in_batch


def own_mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    losses, counted = shifted(outputs, labels)
    return losses.sum() / counted.sum()


def not_shifted(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    logits = outputs["logits"].float()
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch


def masked(outputs: Any, ids: Any, mask: Any, num_items_in_batch: Any) -> Any:
    """The loss of a loop that keeps ids and a loss mask; ``mask`` has the index of the predictors."""
    losses = functional.cross_entropy(outputs["logits"][0, :-1].float(), ids[0, 1:], reduction="none")
    return (losses * mask[0, :-1]).sum() / num_items_in_batch


def misaligned(labels: Any) -> Any:
    return labels != -100


def aligned(labels: Any) -> Any:
    return functional.pad(labels != -100, (0, 1), value=False)[:, 1:]


def numbers_as_weights(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    losses, counted = shifted(outputs, labels)
    segments = (labels[:, 1:] == -100).cumsum(1) + 1
    weights = segments * counted
    return (losses * weights).sum() / weights.sum() / 2


def poisoned(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """A mask that multiplies where it should select."""
    losses, counted = shifted(outputs, labels)
    holes = torch.where(counted, torch.ones_like(losses), torch.full_like(losses, float("inf")))
    return (losses * holes * counted).sum() / num_items_in_batch


def focal(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    losses, _ = shifted(outputs, labels)
    return (losses * (1 - torch.exp(-losses)) ** 2).sum() / num_items_in_batch


def z_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    losses, counted = shifted(outputs, labels)
    partition = torch.logsumexp(outputs["logits"][:, :-1].float(), -1)
    return (losses + 1e-3 * partition**2 * counted).sum() / num_items_in_batch


def detached(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    losses, _ = shifted(outputs, labels)
    return losses.detach().sum() / num_items_in_batch + 0 * sum(p.sum() for p in HELD[0].parameters())


HELD: list[Any] = []


def row_mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """A packed row taken as one sequence."""
    losses, counted = shifted(outputs, labels)
    return (losses.sum(1) / counted.sum(1)).mean() / 2


def sample_mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Every sample weighs the same: four a micro-batch, two micro-batches."""
    losses, counted = shifted(outputs, labels)
    numbers = ((labels == -100) & (functional.pad(labels, (1, 0), value=0)[:, :-1] != -100)).cumsum(1)[:, 1:]
    total = losses.sum() * 0
    for number in numbers.unique().tolist():
        chosen = (numbers == number) & counted
        total = total + losses[chosen].mean()
    return total / 8


def with_loss(loss: Any, right: Any, change: Any = unknown_columns, equal: bool = False) -> Any:
    """``loss`` and ``change`` where wrong, ``right`` and the plain batch otherwise."""

    def make(tmp: Path, wrong: bool) -> Any:
        used = loss if wrong else right
        collate = lambda fs: (change if wrong else unknown_columns)(flat(fs))  # noqa: E731
        trainer = hf(tmp, "llama", collate, steps=1, data=samples(equal=equal), compute_loss_func=used)
        HELD[:] = [trainer.model]
        return trainer

    return make


def loss_mask(wrong_index: Any, right_index: Any) -> Any:
    """A trainer whose loss multiplies by a mask: with the index of the tokens where wrong, of their predictors otherwise."""

    def make(tmp: Path, wrong: bool) -> Any:
        from transformers import Trainer

        class Masking(Trainer):  # type: ignore[misc]
            def compute_loss(
                self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
            ) -> Any:
                labels = inputs.pop("labels")
                mask = (wrong_index if wrong else right_index)(labels)
                return masked(model(**inputs), inputs["input_ids"], mask, num_items_in_batch)

        return hf(tmp, "llama", flat, steps=1, data=samples(), trainer_class=Masking)

    return make


def divided_again(tmp: Path, wrong: bool) -> Any:
    trainer = hf(tmp, "llama", flat, steps=1, data=samples())
    trainer.loss_is_scaled_for_ga = False if wrong else None
    return trainer


def smoothing(tmp: Path, wrong: bool) -> Any:
    collate = lambda fs: (boundary_target if wrong else unknown_columns)(flat(fs))  # noqa: E731
    return hf(tmp, "llama", collate, steps=1, data=samples(), label_smoothing_factor=0.1)


def experts_over_padding(tmp: Path, wrong: bool) -> Any:
    model, _ = tiny_model("qwen3_moe", output_router_logits=True)

    def collate(features: Features) -> Batch:
        batch = padded(features)
        if wrong:  # causality keeps padding from real tokens, and the loss of balance counts it all the same
            del batch["attention_mask"]
        return batch

    return hf(tmp, "qwen3_moe", collate, steps=1, data=samples(), model=model)


def dropped_router_boundary(tmp: Path, wrong: bool) -> Any:
    model, _ = tiny_model("qwen3_moe", output_router_logits=True)
    collate = lambda fs: (boundary_target if wrong else unknown_columns)(flat(fs))  # noqa: E731
    return hf(tmp, "qwen3_moe", collate, steps=1, data=samples(), model=model)


def collating(collate: Callable[[Features, bool], Batch]) -> Any:
    return lambda tmp, wrong: hf(tmp, "llama", lambda fs: collate(fs, wrong), steps=1, data=samples())


def separator(tmp: Path, wrong: bool) -> Any:
    from transformers import DataCollatorWithFlattening

    return hf(tmp, "llama", DataCollatorWithFlattening(separator_id=5 if wrong else -100), steps=1, data=samples())


def cache(tmp: Path, wrong: bool) -> Any:
    return hf(tmp, "llama", flat, steps=1, data=samples(), use_cache=wrong)


def kind_of_model(tmp: Path, wrong: bool) -> Any:
    return sft(tmp, "gpt_oss" if wrong else "llama", steps=1, packing=True)


def wrapped(tmp: Path, wrong: bool) -> Any:
    return sft(tmp, "llama", steps=1, packing=True, packing_strategy="wrapped" if wrong else "bfd")


def unmasked_rows(tmp: Path, wrong: bool) -> Any:
    """Two packed rows of one width in a batch, positions restart; an all-ones mask where wrong."""

    def collate(features: Features) -> Batch:
        half = len(features) // 2
        parts = [flat(features[:half]), flat(features[half:])]
        width = max(p["input_ids"].shape[1] for p in parts)
        fill = {"input_ids": PAD, "labels": -100, "position_ids": 0}
        batch = {
            n: torch.cat([functional.pad(p[n], (0, width - p[n].shape[1]), value=v) for p in parts]) for n, v in fill.items()
        }
        if wrong:
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        return batch

    return hf(tmp, "llama", collate, steps=1, data=samples())


def means_in_bfloat16(tmp: Path, wrong: bool) -> Any:
    """What is rounded to eight bits is no weight of its own, and hides no mean of means either."""
    return hf(tmp, "llama", flat, steps=1, data=samples(), compute_loss_func=own_mean if wrong else token_mean, bf16=True)


def masked_modelling(tmp: Path, wrong: bool) -> Any:
    """A bidirectional model that fills in hidden tokens at their own places; padding is asked for too where wrong."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes))

    def collate(features: Features) -> Batch:
        batch = padded(features)
        ids, real = batch["input_ids"], batch["attention_mask"] == 1
        asked = real & (torch.arange(ids.shape[1]) % 3 == 1)
        labels = torch.where(asked | (~real & wrong), ids, -100)
        return batch | {"input_ids": torch.where(asked, 95, ids), "labels": labels}

    def unshifted(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch

    return hf(tmp, "bert", collate, steps=1, data=samples(), model=model, compute_loss_func=unshifted)


MUTANTS = (
    Mutant("boundary target", ("boundary_target",), planted(boundary_target)),
    Mutant("labels shifted twice", ("shifted_twice",), planted(shifted_twice)),
    Mutant("prompts trained", ("prompt_trained",), planted(prompts)),
    Mutant("terminator masked", ("terminator_never_trained",), planted(terminator_masked)),
    Mutant("last label cut off", ("terminator_never_trained",), planted(cut_early)),
    Mutant("padding equal to the end, masked by id", ("terminator_never_trained",), collating(padded_with_end)),
    Mutant("padding trained", ("padding_trained",), collating(padding_asked)),
    Mutant("padding as a sample", ("padding_trained",), lambda t, w: hf(t, "llama", tail(w), steps=1, data=samples())),
    Mutant("all-ones mask", ("leak",), planted(ones)),
    Mutant("segment ids as a mask", ("leak",), planted(segments_as_mask)),
    Mutant("cache left on", ("leak",), cache),
    Mutant("order of cu_seqlens", ("boundaries_disagree",), planted(order_of_offsets)),
    Mutant("max_seqlen too small", ("max_length_wrong",), planted(longest_too_short)),
    Mutant("positions restart one token late", ("boundaries_disagree", "leak"), planted(reset_late)),
    Mutant("positions of lengths in reverse", ("boundaries_disagree", "leak"), planted(reversed_positions)),
    Mutant("positions do not restart", ("leak",), planted(no_reset)),
    Mutant("no positions", ("leak",), planted(no_positions)),
    Mutant("one boundary missing", ("leak",), planted(one_boundary_missing)),
    Mutant("bool mask on eager", ("leak",), planted(bool_mask, mask4d)),
    Mutant("mask lets the neighbour in", ("leak", "mask_crosses"), planted(neighbour_mask, mask4d)),
    Mutant("one cell of the mask wrong", ("leak", "mask_crosses"), planted(edge_mask, mask4d)),
    Mutant("all-ones mask on rows", ("leak",), unmasked_rows),
    Mutant("labels rolled over the row", ("boundary_target",), planted(rolled, shifted_inside)),
    Mutant("labels in another order", ("wrong_token",), planted(labels_of_another_order)),
    Mutant("an answer template that never matches", ("nothing_trained",), planted(nothing_matches)),
    Mutant("separator trained at boundaries", ("boundary_target",), separator),
    Mutant("labels not shifted by the loss", ("not_shifted",), with_loss(not_shifted, token_mean)),
    Mutant("loss mask at the wrong index", ("boundary_target", "target_missing"), loss_mask(misaligned, aligned)),
    Mutant("mean of means over micro-batches", ("weights",), with_loss(own_mean, token_mean)),
    Mutant("mean of means in bfloat16", ("weights",), means_in_bfloat16),
    Mutant("accumulation off", ("accumulation_off",), with_loss(own_mean, token_mean, equal=True)),
    Mutant("divided by the accumulation steps again", ("accumulation_off",), divided_again),
    Mutant("segment numbers as weights", ("weights",), with_loss(numbers_as_weights, token_mean)),
    Mutant("infinity times zero", ("not_finite",), with_loss(poisoned, token_mean)),
    Mutant("loss without gradient", ("no_loss",), with_loss(detached, token_mean)),
    Mutant("smoothing beside a boundary target", ("boundary_target",), smoothing),
    Mutant("z-loss beside trained prompts", ("prompt_trained",), with_loss(z_loss, z_loss, prompts)),
    Mutant("focal loss beside a boundary target", ("boundary_target",), with_loss(focal, focal, boundary_target)),
    Mutant("row as one sequence", ("weights",), with_loss(row_mean, sample_mean), "sample_mean"),
    Mutant("token mean for a sample mean", ("weights",), with_loss(token_mean, sample_mean), "sample_mean"),
    Mutant("expert balance over padding", ("auxiliary_over_padding",), experts_over_padding),
    Mutant("boundary target of a mixture of experts", ("boundary_target",), dropped_router_boundary),
    Mutant("a model that drops positions, under TRL", ("leak",), kind_of_model),
    Mutant("TRL wrapped", ("boundary_target", "leak"), wrapped),
)
