"""Carried columns that cannot go along are refused by name and place, never by a bare error of the writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloison import PackSpec, pack
from cloison.errors import RecordError
from tests.packing.corpus import write_lines

SPEC = PackSpec(8, order="input", carry=("extra",))

BAD: dict[str, tuple[list[Any], int, str]] = {
    "two kinds": (["a", "b", 1], 3, "1 does not go with"),
    "kinds inside": ([{"a": [1]}, {"a": [1, {"b": 2}]}], 2, "does not go with"),
    "a lone surrogate": (["fine", "\ud800"], 2, r"'\\ud800'"),
    "an integer of 100 bits": ([1, 2, 1 << 100], 3, "does not go with"),
}


def source_of(folder: Path, values: list[Any]) -> str:
    return str(write_lines(folder / "ids.jsonl", [{"input_ids": [1, 2], "extra": value} for value in values]))


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_does_not_go_along_is_named_by_its_place(name: str, tmp_path: Path) -> None:
    values, line, word = BAD[name]
    with pytest.raises(RecordError, match=rf"ids.jsonl, line {line}: the carried column 'extra'.*{word}"):
        pack(source_of(tmp_path, values), tmp_path / "out", SPEC)


@pytest.mark.parametrize("value", [{}, [{}], {"a": {"b": {}}}])
def test_objects_without_a_field_are_refused_by_name(value: Any, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="'extra' must have a type that Parquet can hold"):
        pack(source_of(tmp_path, [value, value]), tmp_path / "out", SPEC)


def test_nested_values_come_back(tmp_path: Path) -> None:
    values = [{"a": [1, 2], "b": None}, {"a": [], "b": {"c": "x"}}, None]
    (block,) = pack(source_of(tmp_path, values), tmp_path / "out", SPEC)
    assert block.segment_columns["extra"] == values
