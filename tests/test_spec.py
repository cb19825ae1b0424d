"""PackSpec: plain data that round-trips, refuses what is out of range, and keys exactly what shapes the result."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from cloison import PackSpec
from cloison.errors import SpecError
from cloison.spec import canonical_hash

CHANGES: dict[str, Any] = {
    "capacity": 9,
    "policy": "best_fit",
    "overflow": "drop",
    "split_prompts": True,
    "train_on": "all",
    "max_sample_tokens": 5,
    "max_segments": 3,
    "align": 4,
    "order": "input",
    "seed": 1,
    "look_ahead": 7,
    "on_empty": "raise",
    "append_eos": "never",
    "date": "2026-01-02",
    "columns": {"messages": "dialog"},
    "carry": ("source",),
    "chat_template": "{{ messages }}",
    "template_options": {"enable_thinking": False},
}
SHAPES_TOKENS = {"columns", "carry", "chat_template", "template_options", "append_eos", "date"}


def test_every_field_is_tried() -> None:
    assert set(CHANGES) == {field.name for field in fields(PackSpec)}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_round_trips_and_is_in_the_key(name: str) -> None:
    base = PackSpec(capacity=8)
    changed = base.with_(**{name: CHANGES[name]})
    assert changed != base
    assert PackSpec.from_json(changed.to_json()) == changed
    assert changed.fingerprint("k") != base.fingerprint("k")
    same_tokens = canonical_hash(changed.token_options()) == canonical_hash(base.token_options())
    assert same_tokens is (name not in SHAPES_TOKENS)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1"),
        ({"capacity": True}, "capacity"),
        ({"capacity": 8.0}, "capacity"),
        ({"capacity": 8, "align": 0}, "align"),
        ({"capacity": 8, "seed": -1}, "seed"),
        ({"capacity": 8, "carry": ("source", "source")}, "carry names each column once"),
        ({"capacity": 8, "max_segments": 0}, "max_segments"),
        ({"capacity": 8, "overflow": "wrap"}, "overflow must be one of"),
        ({"capacity": 8, "train_on": "user"}, "train_on must be one of"),
        ({"capacity": 8, "split_prompts": "no"}, "split_prompts"),
        ({"capacity": 8, "carry": "source"}, "carry must be a list"),
        ({"capacity": 8, "columns": "text"}, "columns must be a mapping"),
        ({"capacity": 8, "chat_template": 3}, "chat_template must be text"),
        ({"capacity": 8, "policy": None}, "policy must be text"),
        ({"capacity": 8, "template_options": {"x": float("nan")}}, "plain data"),
        ({"capacity": 8, "template_options": {"x": object()}}, "plain data"),
    ],
)
def test_a_value_out_of_range_is_named(arguments: dict[str, Any], asked: str) -> None:
    with pytest.raises(SpecError) as caught:
        PackSpec(**arguments)
    assert asked in caught.value.asked


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("{", "a spec file is a JSON object"),
        ("[]", "a spec file is a JSON object"),
        ("{}", "needs a capacity"),
        ('{"capacity": 8, "capcity": 9, "polcy": 1}', "no field 'capcity', 'polcy'"),
    ],
)
def test_a_spec_file_that_is_none_says_why(text: str, asked: str) -> None:
    with pytest.raises(SpecError) as caught:
        PackSpec.from_json(text)
    assert asked in caught.value.asked


def test_case_CFG_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["CFG-01"]
    base = case["input"]["base"]

    def key(capacity: int, template: str, tokenizer: str, seed: int, policy: str, version: str = "1") -> str:
        # The case's "policy" is what becomes of long samples; the tokenizer is part of the token key.
        spec = PackSpec(capacity=capacity, chat_template=template, seed=seed, overflow=policy)  # type: ignore[arg-type]
        return spec.fingerprint(canonical_hash([tokenizer, spec.token_options()]), {"tokenizers": version})

    others = {"capacity": 9, "template": "B", "tokenizer": "t2", "seed": 1, "policy": "truncate"}
    keys = [key(**(base | {name: value})) for name, value in others.items()] + [key(**base, version="2")]
    assert len(case["input"]["changed_one_at_a_time"]) == len(keys)
    assert len({key(**base), *keys}) == len(keys) + 1
    plain = PackSpec(capacity=8, columns={"text": "x", "weight": "y"}).to_dict()
    reordered = json.loads(json.dumps(dict(reversed(plain.items())) | {"columns": {"weight": "y", "text": "x"}}))
    assert PackSpec.from_dict(reordered).fingerprint("k") == PackSpec.from_dict(plain).fingerprint("k")


def test_columns_name_parts_that_there_are_when_the_spec_is_made() -> None:
    with pytest.raises(SpecError) as caught:
        PackSpec(8, columns={"message": "dialog"})
    assert caught.value.asked == "columns names the part 'message'." and "There are messages, " in caught.value.found
    with pytest.raises(SpecError) as caught:
        PackSpec(8, columns={"messages": 3})  # type: ignore[dict-item]
    assert caught.value.remedy == 'Pass columns={"messages": "NAME"}.'
    assert PackSpec(8, columns={"messages": "dialog"}).columns == {"messages": "dialog"}
