"""Fixtures of the text tests: a small tokenizer of our own, trained once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloison.spec import PackSpec
from cloison.text.encoder import Encoder

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEXTS = ["the cat sat on the mat", "user assistant system", "hello there, yo yo", "12 34 56", "a b c d e f g"]


def make_tokenizer(folder: Path, *, bos: bool = False, metaspace: bool = False) -> Path:
    """Write a small BPE tokenizer with a chat template; with ``bos`` its post-processor puts <s> before a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if metaspace else None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if metaspace else pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Metaspace() if metaspace else decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = [] if metaspace else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small byte-level tokenizer whose pad and EOS are one token."""
    return make_tokenizer(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a BOS that the tokenizer adds."""
    return make_tokenizer(tmp_path_factory.mktemp("bos"), bos=True)


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that writes blanks into its words, as SentencePiece does."""
    return make_tokenizer(tmp_path_factory.mktemp("meta"), metaspace=True)


@pytest.fixture
def encoders() -> Iterator[Any]:
    """A maker of encoders, all closed at the end."""
    made: list[Encoder] = []

    def make(tokenizer: Any, **fields: Any) -> Encoder:
        made.append(Encoder(tokenizer, PackSpec(**({"capacity": 64} | fields))))
        return made[-1]

    yield make
    for encoder in made:
        encoder.close()
