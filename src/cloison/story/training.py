"""Train a small model on one set-up of the story, and evaluate it on samples alone.

The set-ups differ in one thing each. The samples of every step, their order, the weights at the start and the optimizer are the
same, so that what differs afterwards comes from that one thing.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloison.blocks import Block
from cloison.packing.memory import pack_samples
from cloison.samples import Sample
from cloison.segments import IGNORE
from cloison.story.configuration import Configuration, Run
from cloison.story.corpus import functions

__all__ = ["Result", "batches_of", "collate_as", "dialogs", "model_of", "steps_of", "train"]

TOKENIZER = Path(__file__).parent / "tokenizer"


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        run: which one.
        training_loss: [steps], as the set-up's own dashboard would show it.
        tokens_per_s: valid tokens a second of training.
        targets_per_token: targets over allocated token positions.
        answer_loss: mean loss per answer token, questions of the trained phrasings, samples alone.
        held_out_loss: the same with the phrasing that was kept out.
        loss_by_place: mean training-form loss of the answers by place in the block, at the end of training.
    """

    run: Run
    training_loss: list[float]
    tokens_per_s: float
    targets_per_token: float
    answer_loss: float
    held_out_loss: float
    loss_by_place: list[float]


def dialogs(configuration: Configuration, *, compact: bool = True) -> tuple[list[list[Sample]], list[Sample]]:
    """Return the trained samples of each function, and the held-out ones: a question, and the start of its docstring.

    With ``compact`` the ids that occur are numbered anew from 0; without it they are the tokenizer's.
    """
    found: dict[str, str] = {}
    for module, name, doc, _ in functions():
        answer = " ".join(doc.split())[: configuration.answer_characters].strip()
        if len(answer) >= 20 and not name.rsplit(".", 1)[-1].startswith("_"):
            found.setdefault(f"{module}.{name}", answer)
    names = list(found)
    picked = [names[int(index * len(names) / configuration.functions)] for index in range(configuration.functions)]

    questions = [*configuration.phrasings, configuration.held_out]
    asked = [(question.format(name), found[name]) for name in picked for question in questions]
    samples = _renumbered(_encoded(asked)) if compact else _encoded(asked)
    groups = [samples[start : start + len(questions)] for start in range(0, len(samples), len(questions))]
    return [group[:-1] for group in groups], [group[-1] for group in groups]


def _encoded(asked: Sequence[tuple[str, str]]) -> list[Sample]:
    from cloison.spec import PackSpec
    from cloison.text.encode import Encoded, Encoder
    from cloison.text.targets import labels

    records = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in asked]
    encoder = Encoder(str(TOKENIZER), PackSpec(capacity=1))
    try:
        done = encoder.encode_batch(records)
    finally:
        encoder.close()
    out = []
    for record in done:
        if not isinstance(record, Encoded):
            raise record
        out.append(Sample(record.input_ids, *labels(record.input_ids, record.spans, record.shape, "assistant")))
    return out


def _renumbered(samples: Sequence[Sample]) -> list[Sample]:
    """Give the ids that occur the numbers 0, 1, ...: a small vocabulary, so that a small model's time goes to its layers."""
    used = np.unique(np.concatenate([sample.input_ids for sample in samples]))
    return [
        Sample(
            np.searchsorted(used, s.input_ids).astype(np.int32),
            np.where(s.labels == IGNORE, IGNORE, np.searchsorted(used, s.labels)).astype(np.int32),
        )
        for s in samples
    ]


def steps_of(trained: list[list[Sample]], run: Run, configuration: Configuration) -> Iterator[list[Sample]]:
    """Yield the samples of every step of the training, in order: the same for every set-up."""
    order = random.Random(run.seed)
    for _ in range(configuration.epochs):
        groups = [list(group) for group in trained]
        order.shuffle(groups)
        samples = [sample for group in groups for sample in group]
        if run.neighbours == "unrelated":
            order.shuffle(samples)
        size = configuration.samples_per_step
        yield from (samples[start : start + size] for start in range(0, len(samples) - size + 1, size))


def batches_of(setup: str, samples: Sequence[Sample], samples_per_block: int) -> dict[str, Any]:
    """Return one step's batch, as ``setup`` would feed it to the model."""
    size = 1 if setup == "alone" else samples_per_block
    groups = _grouped(samples, size)
    return collate_as(setup, [pack_samples(group, capacity=sum(map(len, group)), order="input")[0] for group in groups])


def collate_as(setup: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the batch that ``setup`` makes of ``blocks``: the first two of `SETUPS` are right, each other has one fault."""
    import torch

    from cloison.forms import hf

    if setup == "packed":
        return hf.flat(blocks)
    if setup == "boundary targets":
        batch = hf.flat(blocks)
        lengths = np.concatenate([block.segments.seq_lengths for block in blocks])
        first = torch.from_numpy(np.cumsum(lengths)[:-1])
        batch["labels"][0, first] = batch["input_ids"][0, first]
        return batch
    batch = hf.rows(blocks, capacity=max(block.num_tokens for block in blocks))
    if setup == "alone":
        return batch
    if setup == "plain causal":
        width = batch["input_ids"].shape[1]
        return batch | {"position_ids": torch.arange(width).expand(len(blocks), width)}
    if setup == "prompts and padding":
        return batch | {"labels": batch["input_ids"].clone()}
    raise KeyError(setup)


def model_of(configuration: Configuration, seed: int, vocabulary: int) -> Any:
    """Return the small Llama of the story, with the weights of ``seed``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=configuration.width,
        intermediate_size=configuration.width * 4,
        num_hidden_layers=configuration.layers,
        num_attention_heads=configuration.heads,
        num_key_value_heads=configuration.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config)


def train(run: Run, configuration: Configuration) -> Result:
    """Train and evaluate one run. Cost: a minute or less on one core."""
    import torch

    trained, held_out = dialogs(configuration)
    everything = [sample for group in trained for sample in group]
    vocabulary = 1 + max(int(sample.input_ids.max()) for sample in [*everything, *held_out])
    model = model_of(configuration, run.seed, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=configuration.learning_rate, weight_decay=configuration.weight_decay)
    losses: list[float] = []
    valid = allocated = targets = 0
    began = time.perf_counter()
    steps = list(steps_of(trained, run, configuration))
    for index, samples in enumerate(steps):
        share = min((index + 1) / configuration.warmup_steps, 1.0) * (1 - 0.9 * index / len(steps))
        for group in optimizer.param_groups:
            group["lr"] = configuration.learning_rate * share
        batch = batches_of(run.setup, samples, run.samples_per_block)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        valid += sum(map(len, samples))
        allocated += batch["input_ids"].numel()
        targets += int((batch["labels"][:, 1:] != IGNORE).sum())
    seconds = time.perf_counter() - began
    return Result(
        run,
        losses,
        valid / seconds,
        targets / allocated,
        answer_loss(model, everything),
        answer_loss(model, held_out),
        loss_by_place(model, run, steps[-configuration.samples_per_block :]),
    )


def token_losses(model: Any, batch: dict[str, Any]) -> Any:
    """Return float32 [B, T]: the loss of predicting each token from the ones before it, 0 at the first of a row."""
    import torch

    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        logits = model(**inputs).logits[:, :-1].float()
    ids = batch["input_ids"]
    found = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return torch.nn.functional.pad(found.view(ids.shape[0], -1), (1, 0))


def answer_loss(model: Any, samples: Sequence[Sample]) -> float:
    """Return the mean loss per answer token of ``samples``, each alone in its row."""
    model.eval()
    total = count = 0.0
    for start in range(0, len(samples), 64):
        batch = batches_of("alone", samples[start : start + 64], 1)
        asked = batch["labels"] != IGNORE
        total += float(token_losses(model, batch)[asked].sum())
        count += int(asked.sum())
    model.train()
    return total / count


def loss_by_place(model: Any, run: Run, steps: Sequence[Sequence[Sample]]) -> list[float]:
    """Return the mean answer loss by place in the block, in the form that the set-up trains in."""
    model.eval()
    sums, counts = np.zeros(run.samples_per_block), np.zeros(run.samples_per_block)
    for samples in steps:
        batch = batches_of(run.setup, samples, run.samples_per_block)
        losses = token_losses(model, batch).numpy()
        rows = [[sample] for sample in samples] if run.setup == "alone" else _grouped(samples, run.samples_per_block)
        if losses.shape[0] == 1:
            rows = [list(samples)]
        place = 0
        for row, group in enumerate(rows):
            start = 0
            for sample in group:
                asked = sample.labels != IGNORE
                sums[place % run.samples_per_block] += losses[row, start : start + len(sample)][asked].sum()
                counts[place % run.samples_per_block] += asked.sum()
                start += len(sample)
                place += 1
    model.train()
    return [float(value) for value in sums / np.maximum(counts, 1)]


def _grouped(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    return [list(samples[start : start + size]) for start in range(0, len(samples), size)]


def main(job: str) -> None:
    """Run the job file ``job`` (a run and a configuration as JSON) and write the result beside it."""
    import torch

    torch.set_num_threads(1)
    path = Path(job)
    plain = json.loads(path.read_text(encoding="utf-8"))
    shaped: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain["configuration"].items()}
    result = train(Run(**plain["run"]), Configuration(**shaped))
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(result)), encoding="utf-8")
    part.replace(path.with_suffix(".result"))


if __name__ == "__main__":
    main(sys.argv[1])
