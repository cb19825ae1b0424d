"""Tables of strange types and values: what is packed of them is what another reader sees, and all else is an error of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloison import PackSpec, pack
from cloison.errors import CloisonError
from cloison.ledger import Ledger
from tests.fuzz.subjects import refuse_unsound

EXAMPLES = int(os.environ.get("CLOISON_EXAMPLES", "40"))
"""More with CLOISON_EXAMPLES=1000."""

IDS = st.integers(0, 999) | st.sampled_from([0, 1, -1, -100, 1 << 31, (1 << 31) - 1, (1 << 63) - 1])
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
ENTRIES = (*INTEGERS, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.null(), pa.list_(pa.int32()), pa.date32())


@st.composite
def column(draw: st.DrawFn, rows: list[Any]) -> pa.Array:
    """Draw a column of ``rows`` (lists or None) in some Arrow type that holds them, or in one that other values call for."""
    entry = draw(st.sampled_from(ENTRIES) | st.just(pa.int64()) | st.just(pa.int32()))
    holder = draw(st.sampled_from((pa.list_, pa.large_list, pa.list_)))
    try:
        array = pa.array(rows, holder(entry))
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        array = pa.array(rows, pa.list_(pa.int64()))
    form = draw(st.sampled_from(("plain", "plain", "sliced", "dictionary", "struct", "text")))
    if form == "sliced":
        array = pa.concat_arrays([array, array]).slice(len(rows))
    elif form == "dictionary":
        array = pa.DictionaryArray.from_arrays(pa.array(list(range(len(rows))), pa.int32()), array)
    elif form == "struct":
        array = pa.StructArray.from_arrays([array], ["a"])
    elif form == "text":
        array = pa.array([None if row is None else json.dumps(row) for row in rows])
    return array


@st.composite
def table(draw: st.DrawFn) -> pa.Table:
    """Draw a table of a few token samples, nearly right."""
    rows = draw(st.lists(st.none() | st.lists(st.none() | IDS, max_size=6) | st.lists(IDS, max_size=6), min_size=1, max_size=6))
    columns = {"input_ids": draw(column(rows))}
    if draw(st.booleans()):
        columns["completion_mask"] = draw(
            column([None if row is None else [int(i > 1) for i in range(len(row))] for row in rows])
        )
    if draw(st.booleans()):
        labels = [None if row is None else [-100 if i < 2 else token for i, token in enumerate(row)] for row in rows]
        columns["labels"] = draw(column(labels))
    if draw(st.integers(0, 3)) == 0:
        columns["position_ids"] = draw(column([None if row is None else list(range(len(row))) for row in rows]))
    return pa.table(columns)


def expected(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return ids and labels of a row, as the contract has them."""
    ids, mask, labels = row["input_ids"], row.get("completion_mask"), row.get("labels")
    asked = [i > 0 and (mask is None or mask[i] == 1) and (labels is None or labels[i] != -100) for i in range(len(ids))]
    return ids, [token if wanted else -100 for token, wanted in zip(ids, asked, strict=True)]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@example(made=pa.table({"input_ids": [[1, 2], [3], []], "labels": [[-100, 2], [-100], []]}), kind="parquet")
@given(made=table(), kind=st.sampled_from(["parquet", "arrow"]))
def test_strange_columns_are_read_right_or_refused(made: pa.Table, kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("columns")
    path = folder / f"a.{kind}"
    if kind == "parquet":
        try:
            pq.write_table(made, path, row_group_size=3)
        except (pa.ArrowException, NotImplementedError):  # a type that Parquet does not have
            return
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, made.schema) as writer:
            writer.write_table(made, max_chunksize=3)
    rows = (pq.read_table(path) if kind == "parquet" else made).to_pylist()
    try:
        packed = pack(str(path), folder / "out", PackSpec(64), on_error="skip")
    except CloisonError as error:
        assert error.asked and error.found
        return
    ledger: Ledger = packed.ledger
    assert ledger.samples_in == len(rows), "no row is lost"
    refuse_unsound(folder / "out")
    for block in packed:
        for number, sample in zip(block.sample_ids.tolist(), block.samples(), strict=True):
            assert (sample.input_ids.tolist(), sample.labels.tolist()) == expected(rows[number])
