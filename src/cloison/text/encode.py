"""Encoder: records to token ids and spans by role; each chat is rendered whole and tokenised once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import RecordError
from cloison.samples import Sample
from cloison.spec import PackSpec
from cloison.text.sandbox import Sandbox
from cloison.text.targets import labels, span_array
from cloison.text.tokenizer import load_tokenizer

__all__ = ["Encoded", "Encoder", "encode"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """One record as tokens.

    Attributes:
        input_ids: int32 [tokens].
        spans: `cloison.text.targets.SPAN` [spans], by start.
        shape: one of `cloison.text.targets.SHAPES`.
        columns: what is carried along, by name.
        straddles: tokens that lie across an edge of a span and are counted as inside it.
    """

    input_ids: npt.NDArray[np.int32]
    spans: npt.NDArray[Any]
    shape: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    straddles: int = 0


class Encoder:
    """A tokenizer with the template and options of a spec, ready to encode."""

    def __init__(self, tokenizer: Any, spec: PackSpec) -> None:
        self.vocabulary = load_tokenizer(tokenizer)
        self.spec = spec
        templates = {"default": spec.chat_template} if spec.chat_template is not None else self.vocabulary.templates
        self._sandbox = Sandbox(templates, {**self.vocabulary.special, **spec.template_options}, spec.date or "2026-01-01")
        self.token_key = self.vocabulary.content_hash

    def encode_batch(self, records: Sequence[Mapping[str, Any]]) -> list[Encoded | RecordError]:
        """Return for each record its Encoded, or the RecordError that says why there is none."""
        texts = self._sandbox.render([("default", list(r["messages"]), r.get("tools"), None, {}) for r in records])
        good = [text for text in texts if isinstance(text, str)]
        done = iter(self.vocabulary.backend.encode_batch(good, add_special_tokens=False))
        out: list[Encoded | RecordError] = []
        for text in texts:
            if not isinstance(text, str):
                out.append(text)
                continue
            out.append(Encoded(np.array(next(done).ids, np.int32), span_array([]), "messages"))
        return out

    def close(self) -> None:
        """End the renderer process."""
        self._sandbox.close()


def encode(record: Mapping[str, Any], tokenizer: Any, train_on: str = "auto", **options: Any) -> Sample:
    """Return the Sample of one record."""
    encoder = Encoder(tokenizer, PackSpec(capacity=1, **options))
    try:
        (done,) = encoder.encode_batch([record])
    finally:
        encoder.close()
    if isinstance(done, RecordError):
        raise done
    made, weights = labels(done.input_ids, done.spans, done.shape, train_on)
    return Sample(done.input_ids, made, weights, done.columns)
