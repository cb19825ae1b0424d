"""Train the small tokenizer that the demo ships: ``python -m cloison.story.train_tokenizer DIR``.

A byte-level BPE of 4,096 entries over the demo's own texts, with a chat template. It was run once; what it wrote stands in
``story/tokenizer/``, so that the demo gives the same tokens on every machine, whatever its Python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cloison.story.corpus import chats

__all__ = ["CHAT_TEMPLATE", "train"]

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content | trim + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>\\n' -}}
{%- endif -%}
"""
SPECIALS = ("<|endoftext|>", "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def train(out: Path, vocab_size: int = 4096) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` to the folder ``out``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (message["content"] for chat in chats() for message in chat["messages"])
    tokenizer.train_from_iterator(texts, trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|pad|>",
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
