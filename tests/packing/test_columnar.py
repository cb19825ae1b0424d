"""Token ids in columns: the same data set as the same records in JSON lines, and the same words about what is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloison import PackSpec, pack
from cloison.errors import RecordError
from cloison.packing import columnar
from cloison.text.encoder import Encoder
from tests.packing.corpus import token_records, write_lines

SPEC = PackSpec(64, carry=("source", "logprob"), overflow="split", split_prompts=True)


def records() -> list[dict[str, Any]]:
    out = [*token_records(90, 4, longest=100), {"input_ids": [], "completion_mask": [], "source": "none"}]
    return [{**record, "logprob": np.linspace(0, 1, len(record["input_ids"])).tolist()} for record in out]


def write(path: Path, found: list[dict[str, Any]], **types: Any) -> Path:
    table = pa.Table.from_pylist(found)
    for name, kind in types.items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=30)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("types", [{}, {"input_ids": pa.list_(pa.int32())}, {"input_ids": pa.large_list(pa.uint16())}])
def test_columns_give_what_records_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, types: dict[str, Any]
) -> None:
    lines = pack(str(write_lines(tmp_path / "ids.jsonl", records())), tmp_path / "lines", SPEC)
    source = write(tmp_path / f"ids{suffix}", records(), **types)

    def never(*_: Any) -> Any:
        raise AssertionError("a record was made of a column")

    monkeypatch.setattr(Encoder, "encode_batch", never)
    monkeypatch.setattr(columnar, "UNIT_TOKENS", 200)
    columns = pack(str(source), tmp_path / "columns", SPEC)
    assert list(columns) == list(lines)
    assert columns.ledger == lines.ledger
    assert columns.manifest.columns == {"source": "segment", "logprob": "token"}
    assert columns == lines


def test_labels_become_targets(tmp_path: Path) -> None:
    found = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]}, {"input_ids": [1, 2], "labels": [1, 2]}]
    (block,) = pack(str(write(tmp_path / "a.parquet", found)), tmp_path / "out", PackSpec(8, order="input"))
    assert block.labels.tolist() == [-100, 6, -100, 8, -100, 2]


@pytest.mark.parametrize(
    "broken",
    [
        {"input_ids": None, "labels": None},
        {"input_ids": [1, -2], "labels": [1, -2]},
        {"input_ids": [1, 2, 3], "labels": [2, 3, -100]},
        {"input_ids": [1, 2, 3], "labels": [1, 2]},
    ],
)
def test_what_is_broken_is_said_by_row(tmp_path: Path, broken: dict[str, Any]) -> None:
    good = {"input_ids": [4, 5], "labels": [4, 5]}
    source = write(tmp_path / "a.parquet", [good] * 40 + [broken] + [good] * 3)
    with pytest.raises(RecordError, match=r"a\.parquet, row 40"):
        pack(str(source), tmp_path / "out", PackSpec(8))
    packed = pack(str(source), tmp_path / "out", PackSpec(8), on_error="skip")
    assert packed.ledger.entries["skipped"].indices.tolist() == [40]
    assert packed.manifest.num_segments == 43


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, tokenizer: str) -> None:
    source = write(tmp_path / "a.parquet", [{"input_ids": [4, 5]}, {"input_ids": [4, 1 << 20]}])
    with pytest.raises(RecordError, match="row 1"):
        pack(str(source), tmp_path / "out", PackSpec(8), tokenizer=tokenizer)
