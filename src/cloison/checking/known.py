"""Known: what a caller or a manifest states about a packed data set beside its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Known", "known_of"]


@dataclass(frozen=True)
class Known:
    """Facts from outside the rows; None or empty where they are not known, and the rules that need them are named as not run.

    Attributes:
        capacity: tokens a row may hold.
        vocab_size: ids are below it.
        eos_token_id: the id that ends a text.
        bos_token_id: the id that begins one.
        terminators: ids that end a message or a text; the end-of-text id is one of them.
    """

    capacity: int | None = None
    vocab_size: int | None = None
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    terminators: tuple[int, ...] = ()


def known_of(tokenizer: Any, known: Known) -> Known:
    """Return ``known`` with what it leaves open taken from ``tokenizer`` (as `load_tokenizer` takes it; None adds nothing).

    The end-of-text id is always one of the terminators.
    """
    size, eos, bos = known.vocab_size, known.eos_token_id, known.bos_token_id
    if tokenizer is not None:
        from cloison.text.tokenizer import load_tokenizer

        vocabulary = load_tokenizer(tokenizer)
        if size is None:  # ids may have holes, so the count of tokens is not the bound
            size = max(vocabulary.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        eos = vocabulary.eos_id if eos is None else eos
        if bos is None and "bos_token" in vocabulary.special:
            bos = vocabulary.backend.token_to_id(vocabulary.special["bos_token"])
    ends = dict.fromkeys((*(() if eos is None else (eos,)), *known.terminators))
    return replace(known, vocab_size=size, eos_token_id=eos, bos_token_id=bos, terminators=tuple(ends))
