"""Small real trainings for tests: a tokenizer, texts, and trainers of transformers and TRL on tiny models."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

from cloison.proof.tiny import tiny_model

PAD, BOS, EOS = 0, 1, 2

gc.collect()
gc.freeze()  # trainers collect garbage when they begin, which takes longer than what is tested here


def tokenizer() -> Any:
    """A word-level tokenizer of 96 words, with padding 0, begin 1, end 2 and unknown 3."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<s>": BOS, "</s>": EOS, "<unk>": 3} | {f"w{i}": i for i in range(4, 96)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def texts(count: int = 64, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randint(4, 95)}" for _ in range(draw.randint(3, 12))) for _ in range(count)]


def rows(count: int = 64, seed: int = 0, prompt: int = 0) -> list[dict[str, list[int]]]:
    """Tokenised samples that end with EOS; the first ``prompt`` tokens are no targets."""
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        ids = [draw.randint(4, 95) for _ in range(draw.randint(4, 12))] + [EOS]
        out.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return out


def sft(
    tmp: Path, kind: str, steps: int = 2, accumulation: int = 2, data: Any = None, attn: str = "eager", **options: Any
) -> Any:
    """An SFTTrainer on a tiny model of ``kind``."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, _ = tiny_model(kind, attn=attn)
    given: dict[str, Any] = {"max_length": 32, "per_device_train_batch_size": 2, "bf16": False}
    args = SFTConfig(
        output_dir=str(tmp), max_steps=steps, report_to=[], save_strategy="no", logging_steps=1, use_cpu=True,
        gradient_accumulation_steps=accumulation, disable_tqdm=True, seed=1, **(given | options),
    )  # fmt: skip
    dataset = Dataset.from_dict({"text": texts()}) if data is None else data
    return SFTTrainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer())


def hf(
    tmp: Path, kind: str, collator: Any, steps: int = 2, accumulation: int = 2, data: Any = None, model: Any = None,
    trainer_class: Any = None, compute_loss_func: Any = None, attn: str = "eager", **options: Any,
) -> Any:  # fmt: skip
    """A transformers Trainer on a tiny model of ``kind``."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    model = model or tiny_model(kind, attn=attn)[0]
    args = TrainingArguments(
        output_dir=str(tmp), max_steps=steps, report_to=[], save_strategy="no", logging_steps=1, use_cpu=True,
        gradient_accumulation_steps=accumulation, disable_tqdm=True, seed=1, per_device_train_batch_size=4, **options,
    )  # fmt: skip
    dataset = Dataset.from_list(rows()) if data is None else data
    return (trainer_class or Trainer)(
        model=model, args=args, train_dataset=dataset, data_collator=collator, compute_loss_func=compute_loss_func
    )


def flattening() -> Any:
    from transformers import DataCollatorWithFlattening

    return DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)


def history(trainer: Any) -> list[dict[str, Any]]:
    """What was logged, without what depends on the clock."""
    clocks = ("runtime", "per_second", "_time")
    return [{k: v for k, v in entry.items() if not any(c in k for c in clocks)} for entry in trainer.state.log_history]
