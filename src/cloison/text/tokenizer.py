"""Vocabulary: what packing needs of a tokenizer, the same from a path, a `tokenizers.Tokenizer` or a transformers tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cloison.errors import CloisonError, InputError
from cloison.places import local_folder, place

__all__ = ["NO_VOCABULARY", "Vocabulary", "load_tokenizer", "save_tokenizer", "tokenizer_errors"]

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A tokenizer and the texts beside it.

    Attributes:
        backend: the `tokenizers.Tokenizer`, without truncation and padding.
        special: the named special tokens that templates see, as {"eos_token": "<|im_end|>"}.
        templates: chat templates by name; one alone is "default"; none: an empty dict.
        prefix: the ids that the tokenizer itself puts before a text (a BOS), by its post-processor.
        suffix: the ids that it puts behind one.
        size: ids are below this.
    """

    backend: Any
    special: Mapping[str, str]
    templates: Mapping[str, str]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    size: int

    @cached_property
    def content_hash(self) -> str:
        """The sha256 (hex) of the tokenizer's own serialised form (what only decodes aside) and of the special tokens."""
        if self.backend is None:
            return "none"
        head, _, model = self.backend.to_str().partition('"model":')
        settings = json.loads(head + '"model":0}')
        del settings["decoder"]
        digest = hashlib.sha256(json.dumps([settings, self.special], sort_keys=True).encode("utf-8", "surrogatepass"))
        digest.update(model.encode("utf-8"))
        return digest.hexdigest()

    @property
    def eos_id(self) -> int | None:
        """The id of the end of a document, or None where the tokenizer names none."""
        token = self.special.get("eos_token")
        found = None if token is None else self.backend.token_to_id(token)
        return None if found is None else int(found)


NO_VOCABULARY = Vocabulary(None, {}, {}, (), (), 0)
"""What stands where every record is tokenised already."""


def load_tokenizer(tokenizer: Any) -> Vocabulary:
    """Return the Vocabulary of ``tokenizer``.

    Args:
        tokenizer: a folder or URL with tokenizer.json (and tokenizer_config.json, chat_template.jinja,
            special_tokens_map.json where they are), such a tokenizer.json itself, a `tokenizers.Tokenizer` (which knows no
            template and no EOS), or a fast transformers tokenizer.

    Raises:
        InputError: no tokenizer.json there, a file that does not parse, or an object of another kind.
    """
    from tokenizers import Tokenizer

    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    if isinstance(tokenizer, (str, Path)):
        return _from_path(_local(tokenizer))
    if isinstance(tokenizer, Tokenizer):
        return _assembled(tokenizer, {}, {})
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        template = getattr(tokenizer, "chat_template", None)
        special = {name: str(value) for name in _NAMED if (value := getattr(tokenizer, name, None)) is not None}
        return _assembled(backend, special, _templates(template))
    raise InputError(
        "tokenizer is a path, a tokenizers.Tokenizer or a fast transformers tokenizer.",
        f"It is a {type(tokenizer).__module__}.{type(tokenizer).__name__}.",
        "Pass the folder that holds tokenizer.json (save_pretrained writes one).",
    )


def _local(tokenizer: str | Path) -> Path:
    try:
        return local_folder(place(tokenizer))
    except FileNotFoundError as error:
        raise InputError(
            f"the tokenizer {str(tokenizer)!r} must be a folder with a tokenizer.json, or that file.",
            "There is no such place.",
            "Check the URL.",
        ) from error


def _from_path(path: Path) -> Vocabulary:
    from tokenizers import Tokenizer

    folder = path if path.is_dir() else path.parent
    file = folder / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"the tokenizer {str(path)!r} must be a folder with a tokenizer.json, or that file.",
            "There is none." if path.exists() else "There is no such path.",
            'Names of hubs are not looked up: AutoTokenizer.from_pretrained("NAME").save_pretrained("FOLDER") writes one.',
        )
    with tokenizer_errors(f"{file} must be a tokenizer.json"):
        backend = Tokenizer.from_file(str(file))
    with tokenizer_errors(f"{folder} must be a tokenizer as save_pretrained writes it"):
        return _with_texts(backend, folder)


def _with_texts(backend: Any, folder: Path) -> Vocabulary:
    """Return the Vocabulary of ``backend`` with the special tokens and templates of ``folder``."""
    config = _json(folder / "tokenizer_config.json")
    named = _json(folder / "special_tokens_map.json") | config
    special = {name: text for name in _NAMED if (text := _token_text(named.get(name))) is not None}
    templates = _templates(config.get("chat_template"))
    loose = folder / "chat_template.jinja"
    if loose.is_file():
        templates["default"] = loose.read_text(encoding="utf-8")
    more = folder / "additional_chat_templates"
    if more.is_dir():
        templates |= {one.stem: one.read_text(encoding="utf-8") for one in sorted(more.glob("*.jinja"))}
    return _assembled(backend, special, templates)


@contextmanager
def tokenizer_errors(asked: str) -> Iterator[None]:
    """Turn what the tokenizers library raises into an InputError: bare Exceptions, and panics, which are not even those."""
    try:
        yield
    except (CloisonError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        why = (str(error).splitlines() or [""])[0][:300]
        raise InputError(f"{asked}.", f"It does not load: {why or type(error).__name__}.", "Mend or replace it.") from error


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} must be JSON.", f"It does not parse: {error}.", "Mend or remove it.") from error
    return value if isinstance(value, dict) else {}


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _templates(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        if not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in value):
            raise InputError("a list of chat templates holds {name, template}.", f"It is {ascii(value)[:80]}.", "Mend it.")
        return {str(one.get("name")): one["template"] for one in value}
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, Mapping) else {}


def _assembled(backend: Any, special: dict[str, str], templates: dict[str, str]) -> Vocabulary:
    """Return the Vocabulary of ``backend`` without truncation, padding and trimmed offsets; the caller's stays as it is."""
    backend = _plain(backend)
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    room = len(full) - len(bare)
    first = next((k for k in range(room + 1) if full[k : k + len(bare)] == bare), 0)
    return Vocabulary(
        backend=backend,
        special=special,
        templates=templates,
        prefix=tuple(full[:first]),
        suffix=tuple(full[first + len(bare) :]),
        size=int(backend.get_vocab_size(with_added_tokens=True)),
    )


def _plain(backend: Any) -> Any:
    """Return a tokenizer that encodes as ``backend`` does, without truncation, padding and trimmed offsets.

    Trimmed offsets leave out the blank at the head of a token, and with it where a span begins. The copy shares the model,
    which is nearly all there is, so that it costs a millisecond, not another parse.
    """
    from tokenizers import Tokenizer

    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    set_parts = {name: part for name in names if (part := getattr(backend, name)) is not None}
    parts = {name: json.loads(part.__getstate__()) for name, part in set_parts.items()}
    plain = _untrimmed(parts)
    if plain == parts and backend.truncation is None and backend.padding is None:
        return backend
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    shell = Tokenizer.from_str(json.dumps(empty | plain))
    copy = Tokenizer(backend.model)
    for name in parts:
        setattr(copy, name, getattr(shell, name))
    added = backend.get_added_tokens_decoder()
    for _, token in sorted(added.items()):
        (copy.add_special_tokens if token.special else copy.add_tokens)([token])
    if {number: token.content for number, token in copy.get_added_tokens_decoder().items()} != {
        number: token.content for number, token in added.items()
    }:  # ids with gaps, which only a parse of the whole keeps
        whole = json.loads(backend.to_str()) | plain | {"truncation": None, "padding": None}
        copy = Tokenizer.from_str(json.dumps(whole, ensure_ascii=False))
    return copy


def _untrimmed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: False if name == "trim_offsets" else _untrimmed(item) for name, item in value.items()}
    return [_untrimmed(item) for item in value] if isinstance(value, list) else value


def save_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """Write ``vocabulary`` as a folder that `load_tokenizer` reads back with the same content hash."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.backend.save(str(folder / "tokenizer.json"), pretty=False)
    listed = [{"name": name, "template": text} for name, text in vocabulary.templates.items()]
    config = {**vocabulary.special, "chat_template": listed}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=True), encoding="utf-8")
