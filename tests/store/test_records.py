"""Records come back as they were noted, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.errors import StoreError
from cloison.store.records import each, misfit, read_record, sealed, unsealed, write_record
from tests.fuzz.mutations import changed_json

PATTERN = {"n": "count", "names": each("text"), "list": [{"file": "name", "share": "number"}], "maybe": "maybe"}
RECORD = {"n": 3, "names": {"a": "b\ud800"}, "list": [{"file": "x.json", "share": 0.5}], "maybe": None, "more": [1e300]}


def test_a_record_comes_back_and_a_missing_one_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "a.json", PATTERN) is None
    write_record(tmp_path / "a.json", RECORD)
    assert read_record(tmp_path / "a.json", PATTERN) == RECORD
    assert sealed(sealed(RECORD)) == sealed(RECORD)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_changed_value_passes_for_what_was_noted(data: st.DataObject) -> None:
    text = data.draw(changed_json(json.dumps(sealed(RECORD)).encode())).decode("utf-8", "surrogatepass")
    try:
        changed = json.loads(text)
    except ValueError:  # a number of more digits than Python reads
        return
    assert unsealed(changed) in (None, RECORD)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": -1}, "n is -1, no count"),
        ({"n": True}, "n is True, no count"),
        ({"n": 1 << 63}, "no count"),
        ({"names": {"a": 1}}, "names.a is 1, no text"),
        ({"names": []}, "names is no object"),
        ({"list": {}}, "list is no list"),
        ({"list": [{"share": 1}]}, r"list\[0\] lacks file"),
        ({"list": [{"file": "../x", "share": 1}]}, r"list\[0\].file is '../x', no name"),
        ({"list": [{"file": "a\0", "share": 1}]}, "no name"),
        ({"list": [{"file": "x", "share": "1"}]}, "no number"),
        ({"maybe": "x"}, "no maybe"),
    ],
)
def test_a_record_with_the_right_seal_and_the_wrong_shape_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", RECORD | change)
    with pytest.raises(StoreError, match=said) as caught:
        read_record(tmp_path / "a.json", PATTERN)
    assert str(tmp_path) in caught.value.remedy
    assert misfit(RECORD | change, PATTERN)
