"""PackSpec: every choice that shapes the output, as plain data, with the keys under which results are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from cloison.errors import SpecError
from cloison.parts import check_columns

__all__ = ["FORMAT_VERSION", "AppendEos", "OnEmpty", "Order", "Overflow", "PackSpec", "TrainOn", "canonical_hash", "need_spec"]

FORMAT_VERSION = 1
"""Counts changes of what the files on disk mean."""

Overflow = Literal["raise", "split", "truncate", "drop"]
TrainOn = Literal["auto", "assistant", "last-assistant", "completion", "all"]
AppendEos = Literal["auto", "always", "never"]
Order = Literal["shuffled", "input"]
OnEmpty = Literal["drop", "raise"]

_TOKEN_FIELDS = ("columns", "carry", "chat_template", "template_options", "append_eos", "date")
_PLAN_FIELDS = ("policy", "overflow", "seed", "order", "max_segments", "align", "look_ahead", "max_sample_tokens")


def canonical_hash(value: Any) -> str:
    """Return the sha256 (hex) of ``value`` as JSON with sorted keys: equal for dicts that differ in order only."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class PackSpec:
    """Every choice that shapes a packed data set. Plain data: `to_json` and `from_json` round-trip, order of keys aside.

    Attributes:
        capacity: tokens a block holds at most.
        policy: how segments are put into blocks, a name of `cloison.planning`.
        overflow: what happens to samples of more than ``capacity`` tokens: "raise" (says how many), "split" (documents only,
            unless ``split_prompts``), "truncate" (keeps the head), "drop".
        split_prompts: the explicit word that lets conversations and prompt/completion pairs be split into fragments, of which
            all but the first lack their prompt.
        train_on: whose tokens are targets. "auto": assistant for chats, completion for prompt/completion pairs, all for text.
        max_sample_tokens: a cut (or whatever ``overflow`` says) at this many tokens, applied before planning; None: capacity.
        max_segments: segments a block holds at most; None: no limit.
        align: a segment counts as its length rounded up to this multiple; blocks on disk hold real tokens only.
        order: "shuffled" by seed before planning, or the "input" order.
        seed: of the shuffles.
        look_ahead: how many samples `look_ahead` looks ahead (K).
        on_empty: a sample in which nothing is left to train is counted and dropped, or raises.
        append_eos: "auto": documents of plain text and prompt/completion strings get one, rendered chats keep what the
            template wrote; "always"; "never". Never doubled.
        date: the day (YYYY-MM-DD) for templates that ask for today; None: resolved once when packing begins, and recorded.
        columns: which column plays which part, as {"messages": "dialog"}; empty: recognised.
        carry: names of further columns that are carried along, one entry a segment.
        chat_template: the template's text, in place of the tokenizer's own; None: the tokenizer's.
        template_options: extra variables of the template (``enable_thinking`` and such).
    """

    capacity: int
    policy: str = "look_ahead"
    overflow: Overflow = "raise"
    split_prompts: bool = False
    train_on: TrainOn = "auto"
    max_sample_tokens: int | None = None
    max_segments: int | None = None
    align: int = 1
    order: Order = "shuffled"
    seed: int = 0
    look_ahead: int = 1024
    on_empty: OnEmpty = "drop"
    append_eos: AppendEos = "auto"
    date: str | None = None
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    carry: tuple[str, ...] = ()
    chat_template: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        _at_least(self, "capacity", 1)
        _at_least(self, "align", 1)
        _at_least(self, "look_ahead", 1)
        _at_least(self, "seed", 0)
        for name in ("max_sample_tokens", "max_segments"):
            if getattr(self, name) is not None:
                _at_least(self, name, 1)
        _one_of(self, "overflow", Overflow)
        _one_of(self, "train_on", TrainOn)
        _one_of(self, "append_eos", AppendEos)
        _one_of(self, "order", Order)
        _one_of(self, "on_empty", OnEmpty)
        if not isinstance(self.split_prompts, bool):
            raise SpecError("split_prompts must be true or false.", f"It is {self.split_prompts!r}.", "Pass True or False.")
        for name in ("policy", "chat_template", "date"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name == "policy" or value is not None):
                raise SpecError(f"{name} must be text.", f"It is {value!r}.", "Pass a string.")
        if not isinstance(self.carry, (tuple, list)) or not all(isinstance(name, str) for name in self.carry):
            raise SpecError("carry must be a list of column names.", f"It is {self.carry!r}.", 'Pass ("source",) or a list.')
        if len(set(self.carry)) < len(self.carry):
            raise SpecError("carry names each column once.", f"It is {tuple(self.carry)!r}.", "Name it once.")
        object.__setattr__(self, "carry", tuple(self.carry))
        for name in ("columns", "template_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise SpecError(f"{name} must be a mapping.", f"It is {getattr(self, name)!r}.", "Pass a dict.")
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        check_columns(self.columns)
        try:
            canonical_hash(self.to_dict())
        except (TypeError, ValueError) as error:
            raise SpecError("a PackSpec holds plain data.", f"{error}.", "Use strings, numbers, lists and dicts.") from error

    # ------------------------------------------------------------------ JSON

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain |= {"columns": dict(self.columns), "template_options": dict(self.template_options), "carry": list(self.carry)}
        return plain

    def to_json(self) -> str:
        """Return the fields as JSON with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=2, ensure_ascii=False)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PackSpec:
        """Return the spec of ``plain``.

        Raises:
            SpecError: an unknown field (all of them are named), or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(plain) - known)
        if unknown:
            raise SpecError(f"a PackSpec has no field {', '.join(map(repr, unknown))}.", f"Known: {', '.join(sorted(known))}.")
        if "capacity" not in plain:
            raise SpecError("a PackSpec needs a capacity.", "None is given.", "Pass capacity=TOKENS.")
        return cls(**plain)

    @classmethod
    def from_json(cls, text: str) -> PackSpec:
        """Return the spec that `to_json` wrote, or that a person did."""
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("a spec file is a JSON object.", f"It does not parse: {error}.", "Mend the JSON.") from error
        if not isinstance(plain, dict):
            raise SpecError("a spec file is a JSON object.", f"It holds a {type(plain).__name__}.", "Wrap it in braces.")
        return cls.from_dict(plain)

    def with_(self, **changes: Any) -> PackSpec:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    # ------------------------------------------------------------------ keys

    def token_options(self) -> dict[str, Any]:
        """Return the fields that shape tokens and spans, as plain data: the spec's part of the token key.

        Capacity, policy, seed, ``train_on`` and the rest are not in it, so that changing them never tokenises again.
        """
        plain = self.to_dict()
        return {name: plain[name] for name in _TOKEN_FIELDS}

    def plan_options(self) -> dict[str, Any]:
        """Return the fields that `cloison.plan` takes beside the capacity."""
        return {name: getattr(self, name) for name in _PLAN_FIELDS}

    def fingerprint(self, token_key: str, versions: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the key (sha256, hex) of a packed data set: the token key, all fields, the format, what wrote it."""
        return canonical_hash(
            {"format": FORMAT_VERSION, "token_key": token_key, "spec": self.to_dict(), "versions": dict(versions)}
        )


def need_spec(spec: object) -> PackSpec:
    """Return ``spec``, or raise a SpecError that says how to make one of what was passed."""
    if isinstance(spec, PackSpec):
        return spec
    remedy = "Pass a cloison.PackSpec."
    if isinstance(spec, int):
        remedy = f"Pass cloison.PackSpec(capacity={spec})."
    elif isinstance(spec, Mapping):
        remedy = "Pass cloison.PackSpec.from_dict(...) of it."
    elif isinstance(spec, (str, bytes)):
        remedy = "Pass cloison.PackSpec.from_json of what the file holds."
    raise SpecError("spec is a PackSpec.", f"It is {ascii(spec)[:80]} ({type(spec).__name__}).", remedy)


def _at_least(spec: PackSpec, name: str, least: int) -> None:
    value = getattr(spec, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(f"{name} must be an integer of at least {least}.", f"It is {value!r}.", f"Pass {name}={least} or more.")


def _one_of(spec: PackSpec, name: str, choices: Any) -> None:
    value = getattr(spec, name)
    if value not in get_args(choices):
        listed = ", ".join(repr(choice) for choice in get_args(choices))
        raise SpecError(f"{name} must be one of {listed}.", f"It is {value!r}.", "Pick one of them.")
