"""encode: one record to its Sample, with an encoder that the calls of a loop share."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloison.errors import InputError, RecordError
from cloison.samples import Sample
from cloison.spec import PackSpec, canonical_hash, need_spec
from cloison.text.encoder import Encoder
from cloison.text.targets import labels

__all__ = ["encode"]

_ENCODERS: OrderedDict[Any, tuple[Any, Encoder]] = OrderedDict()
"""The last encoders that `encode` made, each with the tokenizer it was made from, so that a loop over records starts one."""


def _encoder(tokenizer: Any, spec: PackSpec) -> Encoder:
    if isinstance(tokenizer, (str, os.PathLike)):
        path = Path(tokenizer)
        files = sorted(path.glob("*.j*")) if path.is_dir() else [path]
        identity: Any = (str(path.resolve()), [(file.name, file.stat().st_mtime_ns) for file in files if file.is_file()])
    else:
        identity = (id(tokenizer), getattr(tokenizer, "chat_template", None))
    key = canonical_hash([repr(identity), spec.token_options()])
    if key not in _ENCODERS:
        _ENCODERS[key] = (tokenizer, Encoder(tokenizer, spec))
        while len(_ENCODERS) > 4:
            _ENCODERS.popitem(last=False)[1][1].close()
    _ENCODERS.move_to_end(key)
    return _ENCODERS[key][1]


def encode(
    record: Mapping[str, Any], tokenizer: Any, train_on: str = "auto", *, spec: PackSpec | None = None, **options: Any
) -> Sample:
    """Return the Sample of one record: the tokens of its rendering, and labels for what ``train_on`` trains.

    Args:
        record: in any shape that the readers know: messages, prompt/completion, text, ShareGPT, alpaca, input_ids.
        tokenizer: a path, a `tokenizers.Tokenizer`, a fast transformers tokenizer, or an `Encoder` (whose own spec holds).
        train_on: "auto" (assistant for chats, completion for pairs, all for documents), "assistant", "last-assistant",
            "completion" or "all".
        spec: where ``columns``, ``chat_template`` and the like come from; or name them as ``options``.

    Raises:
        RecordError: the record is in no known shape; TemplateError, SpanError where its template fails.
        InputError: it is no record.

    Cost: a millisecond a record; the first call with a tokenizer loads it and starts its renderer, which the next calls share.
    """
    if not isinstance(record, Mapping):
        remedy = 'Pass {"text": ...} for a document, or {"messages": [...]} for a chat.'
        if isinstance(record, (list, tuple)):
            remedy = 'Pass {"messages": [...]} for a chat, and records one by one.'
        raise InputError("a record is a mapping of columns, as a line of JSONL.", f"It is a {type(record).__name__}.", remedy)
    chosen = need_spec(PackSpec(capacity=1) if spec is None else spec).with_(**options)
    encoder = tokenizer if isinstance(tokenizer, Encoder) else _encoder(tokenizer, chosen)
    (done,) = encoder.encode_batch([record])
    if isinstance(done, RecordError):
        raise done
    made, weights = labels(done.input_ids, done.spans, done.shape, train_on)
    return Sample(done.input_ids, made, weights, done.columns)
