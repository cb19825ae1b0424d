"""Train a small model on one set-up of the story, and evaluate it on samples alone.

The set-ups differ in one thing each. The samples of every step, their order, the weights at the start and the optimizer are the
same, so that what differs afterwards comes from that one thing.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloison.segments import IGNORE
from cloison.story.configuration import Configuration, Run
from cloison.story.dialogs import Dialogs
from cloison.story.evaluation import answer_loss, loss_by_place
from cloison.story.setups import batch_of, steps_of

__all__ = ["Result", "model_of", "train"]


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
        watched: the report of `watch` on the first step of this training, as plain data.
    """

    run: Run
    training_loss: list[float]
    tokens_per_s: float
    targets_per_token: float
    answer_loss: float
    held_out_loss: float
    loss_by_place: list[float]
    watched: Mapping[str, Any]


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
        initializer_range=configuration.initial_deviation,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config)


def train(run: Run, configuration: Configuration, dialogs: Dialogs) -> Result:
    """Train and evaluate one run; its first step is watched.

    Cost: half a minute or less on one core.
    """
    import torch

    from cloison.proof.watch import watch

    model = model_of(configuration, run.seed, dialogs.vocabulary)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=configuration.learning_rate,
        betas=(0.9, configuration.second_beta),
        weight_decay=configuration.weight_decay,
        fused=True,
    )
    losses: list[float] = []
    valid = allocated = targets = 0
    seconds = 0.0
    steps = list(steps_of(dialogs, run, configuration))
    watched = watch(model, samples=dialogs.everything)
    for index, samples in enumerate(steps):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = configuration.learning_rate * _share(index, len(steps), configuration.warmup_steps)
        batch = batch_of(run.setup, samples, run.samples_per_block)
        with watched if index == 0 else nullcontext():
            loss = model(**batch).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), configuration.largest_gradient)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if index:  # the first step's time is the audit's
            seconds += time.perf_counter() - began
            valid += sum(map(len, samples))
            allocated += batch["input_ids"].numel()
            targets += int((batch["labels"][:, 1:] != IGNORE).sum())
    return Result(
        run,
        losses,
        valid / seconds,
        targets / allocated,
        answer_loss(model, dialogs.everything),
        answer_loss(model, dialogs.held_out),
        loss_by_place(model, run, steps[-run.samples_per_block :]),
        watched.report.to_dict(),
    )


def _share(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate of ``step`` over its largest: a straight rise, then half a cosine."""
    return min((step + 1) / warmup_steps, 1.0) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def main(dialogs_file: str, *jobs: str) -> None:
    """Run job files (a run and a configuration as JSON), and write each result beside its job."""
    import torch

    torch.set_num_threads(1)
    dialogs = Dialogs.load(Path(dialogs_file))
    for path in map(Path, jobs):
        plain = json.loads(path.read_text(encoding="utf-8"))
        shaped: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain["configuration"].items()}
        result = train(Run(**plain["run"]), Configuration(**shaped), dialogs)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(result)), encoding="utf-8")
        part.replace(path.with_suffix(".result"))


if __name__ == "__main__":
    main(*sys.argv[1:])
