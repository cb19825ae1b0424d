"""Encoder: records to token ids and spans by role. Each chat is rendered whole and tokenised once."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError, RecordError, TemplateError
from cloison.samples import token_array
from cloison.spec import FORMAT_VERSION, PackSpec, canonical_hash
from cloison.text.edges import Row, token_rows
from cloison.text.locate import Locator, special_texts
from cloison.text.provenance import CharSpan
from cloison.text.sandbox import Job, Sandbox
from cloison.text.shapes import Example, Reading, read_record, recognise, refuse_marks
from cloison.text.targets import ROLES, SAMPLE, role_code, span_array
from cloison.text.tokenizer import NO_VOCABULARY, load_tokenizer, save_tokenizer, tokenizer_errors
from cloison.text.tokens import read_tokens
from cloison.text.unwritten import refuse_unwritten

__all__ = ["Encoded", "Encoder"]

_PIECE = 512
"""Records that are rendered together, while those before them are tokenised."""


@dataclass(frozen=True, eq=False, slots=True)
class Encoded:
    """One record as tokens.

    Attributes:
        input_ids: int32 [tokens].
        spans: `cloison.text.targets.SPAN` [spans], by start.
        shape: one of `cloison.text.targets.SHAPES`.
        columns: what is carried along, by name.
        across: the tokens, in order, that lie across an outer edge of a span; they count as inside it.
    """

    input_ids: npt.NDArray[np.int32]
    spans: npt.NDArray[Any]
    shape: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    across: Sequence[int] = ()


@dataclass(frozen=True, eq=False, slots=True)
class _Text:
    """A text to tokenise, with its spans by characters as (start, stop, role, terminator, message, weight)."""

    text: str
    spans: list[Row]
    example: Example
    eos: bool


class Encoder:
    """A tokenizer with the template and options of a spec.

    Args:
        tokenizer: what `cloison.text.tokenizer.load_tokenizer` takes, or a folder that `save` wrote; None where every record
            holds input_ids already.
        spec: its ``columns``, ``carry``, ``chat_template``, ``template_options``, ``append_eos`` and ``date`` count here.
        reading: how all records are to be read, as `cloison.text.sources.Source` found the first; a record in another layout is
            then a RecordError. None: each record is recognised by itself.

    Attributes:
        token_key: sha256 (hex) over all that shapes the tokens: equal keys, equal tokens and spans.
        needs_date: whether the template asks for today; only then does the date count in the key.

    `close` ends its renderer process; it also ends when the Encoder is collected.
    """

    def __init__(self, tokenizer: Any, spec: PackSpec, reading: Reading | None = None) -> None:
        self._lock = threading.Lock()
        self._reading = reading
        self._known = tokenizer is not None
        self.vocabulary = load_tokenizer(tokenizer) if self._known else NO_VOCABULARY
        self.spec = spec
        templates = dict(self.vocabulary.templates)
        if spec.chat_template is not None:
            # The name of one of several templates, or the text of one.
            templates = {"default": templates.get(spec.chat_template, spec.chat_template)}
        self._templates = templates
        self.needs_date = any("strftime_now" in text for text in templates.values())
        self._date = spec.date or date.today().isoformat()
        self._variables = {**self.vocabulary.special, **spec.template_options}
        self._eos = str(self._variables["eos_token"]) if self._variables.get("eos_token") else None
        self._eos_id = None if self._eos is None or not self._known else self.vocabulary.backend.token_to_id(self._eos)
        self._sandbox: Sandbox | None = None
        self._locator: Locator | None = None
        self._readings: dict[tuple[str, ...], Reading] = {}
        if templates and self._known:
            self._start()  # it starts while the caller goes on
        options = {**spec.token_options(), "chat_template": None, "date": self._date if self.needs_date else None}
        self.token_key = canonical_hash(
            {
                "format": FORMAT_VERSION,
                "tokenizer": self.vocabulary.content_hash,
                "templates": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in templates.items()},
                "options": options,
            }
        )

    # ------------------------------------------------------------------ encoding

    def encode_batch(self, records: Sequence[Mapping[str, Any]]) -> list[Encoded | RecordError]:
        """Return for each record its Encoded, or the RecordError that says why there is none.

        Cost: linear in the text. The tokenizer uses as many threads as it is set to (TOKENIZERS_PARALLELISM,
        RAYON_NUM_THREADS); the next records are rendered meanwhile, as in `encode_batches`.
        """
        pieces = [records[first : first + _PIECE] for first in range(0, len(records), _PIECE)]
        if len(pieces) > 1:
            return [done for piece in self.encode_batches(pieces) for done in piece]
        return self._tokenise(records, self._prepare(records))

    def encode_batches(self, batches: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[list[Encoded | RecordError]]:
        """Yield the results of each batch in order, while a thread reads and renders the one after it.

        Tokenising lets go of Python's lock and rendering has a process of its own, so one process keeps two cores busy.
        """
        with ThreadPoolExecutor(1) as pool:
            source = iter(batches)

            def ahead() -> tuple[Sequence[Mapping[str, Any]], list[_Text | Encoded | RecordError]] | None:
                records = next(source, None)
                return None if records is None else (records, self._prepare(records))

            waiting = pool.submit(ahead)
            while (ready := waiting.result()) is not None:
                waiting = pool.submit(ahead)
                yield self._tokenise(*ready)

    def reading(self, record: Mapping[str, Any]) -> Reading:
        """Return how ``record`` is read; its `Reading.describe` tells the user."""
        key = tuple(name for name, value in record.items() if value is not None)
        if key not in self._readings:
            found = recognise(record, self.spec.columns, self.spec.carry)
            if self._reading is not None and found.layout != self._reading.layout:
                raise RecordError(
                    f"all records of a source must be {self._reading.layout} records, as its first is.",
                    f"This is a {found.layout} record: {', '.join(record)}.",
                    "Pack one kind at a time, or name the columns.",
                )
            self._readings[key] = found
        return self._readings[key]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what another process needs for an Encoder with the same ``token_key``, given the same spec."""
        if self._known:
            save_tokenizer(self.vocabulary, Path(folder))

    def close(self) -> None:
        """End the renderer process."""
        if self._sandbox is not None:
            self._sandbox.close()

    # ------------------------------------------------------------------ steps

    def _start(self) -> tuple[Sandbox, Locator]:
        if self._sandbox is None or self._locator is None:
            self._sandbox = Sandbox(self._templates, self._variables, self._date)
            added = list(self.vocabulary.backend.get_added_tokens_decoder().values())
            self._locator = Locator(self._sandbox, special_texts(self.vocabulary.special, added), self._eos)
        return self._sandbox, self._locator

    def _prepare(self, records: Sequence[Mapping[str, Any]]) -> list[_Text | Encoded | RecordError]:
        """Return for each record its text with spans by characters; tokenised records are done already."""
        with self._lock:  # the renderer answers one at a time
            return self._read_and_render(records)

    def _read_and_render(self, records: Sequence[Mapping[str, Any]]) -> list[_Text | Encoded | RecordError]:
        out: list[Any] = []
        chats: list[int] = []
        for index, record in enumerate(records):
            try:
                example = read_record(record, self.reading(record))
                if example.shape == "tokens":
                    ids, spans = read_tokens(example, self.vocabulary.size if self._known else 1 << 31)
                    if self.spec.append_eos == "always" and (not ids.size or ids[-1] != self._eos_id):
                        listed, rows = self._ended(ids.tolist(), spans.tolist())
                        ids, spans = token_array(listed, "input_ids"), span_array(rows)
                    out.append(Encoded(ids, spans, "tokens", self._carried(record)))
                    continue
                if not self._known:
                    raise InputError(
                        f"{example.shape} records need a tokenizer.", "None is given.", "Pass tokenizer=FOLDER, or input_ids."
                    )
                if example.messages:
                    chats.append(index)
                    out.append(example)
                    continue
                refuse_marks(example.texts)
                out.append(self._plain(example))
            except RecordError as error:
                out.append(error)
        if chats:
            for index, done in zip(chats, self._chats([out[index] for index in chats]), strict=True):
                out[index] = done
        return out

    def _plain(self, example: Example) -> _Text:
        """Return a document or a pair of strings with its spans."""
        roles = ("text",) if example.shape == "text" else ("prompt", "completion")
        spans: list[Row] = []
        start = 0
        for message, (words, role) in enumerate(zip(example.texts, roles, strict=True)):
            if words:
                spans.append((start, start + len(words), ROLES.index(role), False, message, 1.0))
            start += len(words)
        return _Text("".join(example.texts), spans, example, self.spec.append_eos != "never")

    def _chats(self, examples: Sequence[Example]) -> list[_Text | RecordError]:
        if not self._templates:
            error = TemplateError(
                "records of messages need a chat template.",
                "The tokenizer has none.",
                "Pass chat_template, or another tokenizer.",
            )
            return [error] * len(examples)
        sandbox, locator = self._start()
        jobs: list[Job] = [(self._template_name(one), one.messages, one.tools, one.documents, one.options) for one in examples]
        out: list[Any] = list(sandbox.render(jobs))
        good: list[int] = []
        for index, text in enumerate(out):
            if isinstance(text, str):
                try:
                    refuse_marks([text])
                    refuse_unwritten(examples[index].messages, text)
                    good.append(index)
                except RecordError as error:
                    out[index] = error
        found = locator.locate([jobs[index] for index in good], [out[index] for index in good])
        always = self.spec.append_eos == "always"
        for index, spans in zip(good, found, strict=True):
            done: Any = spans
            if isinstance(spans, list):
                done = _Text(out[index], self._rows(examples[index], spans), examples[index], always)
            out[index] = done
        return out

    def _template_name(self, example: Example) -> str:
        if example.tools is not None and "tool_use" in self._templates:
            return "tool_use"
        if "default" in self._templates:
            return "default"
        raise InputError(
            "the tokenizer must name one chat template as its default.",
            f"It has {', '.join(sorted(self._templates))}.",
            "Pass chat_template with one of these names.",
        )

    def _rows(self, example: Example, spans: Sequence[CharSpan]) -> list[Row]:
        rows: list[Row] = []
        for start, stop, terminator, message in spans:
            role = str(example.messages[message].get("role"))
            code = role_code(role)
            if example.shape == "pair" and message >= example.completion_start and ROLES[code] == "assistant":
                code = ROLES.index("completion")
            weight = 1.0 if example.weights is None else example.weights[message]
            rows.append((start, stop, code, terminator, message, weight))
        return rows

    def _tokenise(
        self, records: Sequence[Mapping[str, Any]], prepared: Sequence[_Text | Encoded | RecordError]
    ) -> list[Encoded | RecordError]:
        texts = [one.text for one in prepared if isinstance(one, _Text)]
        encodings = iter(self._encodings(texts))
        out: list[Encoded | RecordError] = []
        for record, one in zip(records, prepared, strict=True):
            if not isinstance(one, _Text):
                out.append(one)
                continue
            encoding = next(encodings)
            try:
                if isinstance(encoding, RecordError):
                    raise encoding
                out.append(self._encoded(one, encoding, self._carried(record)))
            except RecordError as error:
                out.append(error)
        return out

    def _encodings(self, texts: list[str]) -> Sequence[Any]:
        """Return the encoding of each text, or the RecordError of one that the tokenizer does not take."""
        backend = self.vocabulary.backend
        if not texts:
            return ()
        try:
            with tokenizer_errors(""):
                return list(backend.encode_batch(texts, add_special_tokens=False))
        except InputError:  # of one of them: a letter that is not in the vocabulary, say, and no token for unknown ones
            out: list[Any] = []
            for text in texts:
                try:
                    with tokenizer_errors("the tokenizer must take every text"):
                        out.append(backend.encode(text, add_special_tokens=False))
                except InputError as error:
                    out.append(RecordError(error.asked, error.found, "Use another tokenizer, or leave the record out."))
            return out

    def _encoded(self, one: _Text, encoding: Any, columns: Mapping[str, Any]) -> Encoded:
        ids = encoding.ids
        rows, across = token_rows(one.spans, encoding, len(one.text), len(ids))
        if not one.example.messages:
            prefix = list(self.vocabulary.prefix)
            if prefix and ids[: len(prefix)] != prefix:
                ids = prefix + ids
                rows = [(row[0] + len(prefix), row[1] + len(prefix), *row[2:]) for row in rows]
                across = [token + len(prefix) for token in across]
        if one.eos and not (one.example.messages and self._eos and one.text.rstrip().endswith(self._eos)):
            ids, rows = self._ended(ids, rows)
        if one.example.weight != 1:
            rows.append((0, len(ids), SAMPLE, False, -1, one.example.weight))
        array = np.array(ids, np.int32)
        array.setflags(write=False)
        return Encoded(array, span_array(rows), one.example.shape, columns, across)

    def _ended(self, ids: list[int], rows: list[Row]) -> tuple[list[int], list[Row]]:
        """Return ids and spans with one end of document, a terminator of the last message or text."""
        if self._eos_id is None:
            raise InputError(
                f"append_eos={self.spec.append_eos!r} puts an end of document behind the text.",
                "The tokenizer names no eos_token that it knows.",
                "Pass append_eos='never', or template_options={'eos_token': '</s>'} with its token.",
            )
        given = (0, 0, ROLES.index("given"), False, 0, 1.0)
        final = max((row for row in rows if row[2] != SAMPLE), key=lambda row: (row[1], row[4]), default=given)
        rows = [row if row[2] != SAMPLE else (0, len(ids) + 1, *row[2:]) for row in rows]
        if ids and ids[-1] == self._eos_id:
            count = len(ids)
            rows = [(row[0], min(row[1], count - 1), *row[2:]) for row in rows if row[0] < count - 1]
        else:
            ids = [*ids, self._eos_id]
            count = len(ids)
        return ids, [*rows, (count - 1, count, final[2], True, final[4], final[5])]

    def _carried(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.spec.carry:
            return {}
        missing = [name for name in self.spec.carry if name not in record]
        if missing:
            raise RecordError(
                f"the column {missing[0]!r} is to be carried along.", f"The record has {', '.join(record)}.", "Mend carry."
            )
        return {name: record[name] for name in self.spec.carry}
