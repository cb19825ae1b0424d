"""Readers: every format gives the same records, chunks are fixed by the input, and hostile files end in clear errors."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import pack
from cloison.errors import ChangedError, InputError, RecordError, StoreError
from cloison.places import read
from cloison.spec import PackSpec
from cloison.text import sources, streams
from cloison.text.columnar import read_parquet
from cloison.text.jsonfiles import read_array
from cloison.text.sources import Source, open_sources, read_chunk
from cloison.text.tables import read_table

ROWS = [{"text": f"row {i} é\u2028 {'x' * (i % 7)}", "n": i} for i in range(40)]


def records(source: Source) -> list[Any]:
    return [record for job in source.jobs for _, record in read_chunk(json.loads(json.dumps(job)))]


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), encoding="utf-8")


def write_array(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")


def write_gzip(path: Path) -> None:
    body = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    path.write_bytes(gzip.compress(body[:500]) + gzip.compress(body[500:]))  # two members


def write_zstd(path: Path) -> None:
    import pyarrow as pa

    body = json.dumps(ROWS).encode()
    path.write_bytes(b"".join(pa.compress(part, "zstd", asbytes=True) for part in (body[:500], body[500:])))  # two frames


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)


def write_arrow(path: Path) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def write_stream(path: Path) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def write_dataset(path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).save_to_disk(str(path), num_shards=2)


FORMATS: dict[str, Callable[[Path], None]] = {
    "a.jsonl": write_jsonl,
    "lines.json": write_jsonl,
    "a.json": write_array,
    "a.jsonl.gz": write_gzip,
    "a.json.zst": write_zstd,
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "b.arrow": write_stream,
    "saved": write_dataset,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_records(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    source = open_sources([str(tmp_path / name)], PackSpec(capacity=8, carry=("n",)))
    assert records(source) == ROWS
    assert source.reading is not None and source.reading.shape == "text" and source.reading.unused == ()
    assert "text=text" in source.describe()


@pytest.mark.parametrize("size", [1, 3, 64, 1000, 1 << 20])
def test_chunks_of_any_size_hold_every_line_once(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    monkeypatch.setattr(sources, "CHUNK_BYTES", size)
    source = open_sources([str(tmp_path / "a.jsonl")])
    found = [(str(where), record) for job in source.jobs for where, record in read_chunk(job)]
    assert [record for _, record in found] == ROWS
    assert [place for place, _ in found] == [f"{tmp_path / 'a.jsonl'}, line {i + 1}" for i in range(len(ROWS))]


LINES = ["{}", '{"a": "b\\n"}', "", "  ", "[1]", "nonsense", '{"é": "日本"}']
SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=12), st.integers(1, 40), st.booleans())
def test_lines_do_not_depend_on_chunks(lines: list[str], size: int, ended: bool) -> None:
    body = ("\n".join(lines) + ("\n" if ended else "")).encode()
    whole = list(streams.lines(io.BytesIO(body), 0, None))
    pieces = [
        line
        for start in range(0, len(body), size)
        for _, line in streams.lines(io.BytesIO(body), start, min(len(body), start + size))
    ]
    assert pieces == [line for _, line in whole]


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 0, 2]))
def test_arrays_are_read_as_json_reads_them(values: list[Any], indent: int | None) -> None:
    stream = io.BytesIO(json.dumps(values, indent=indent).encode())
    found = [record for _, record in read_array(stream)]
    assert len(found) == len(values)
    for value, record in zip(values, found, strict=True):
        assert record == value if isinstance(value, dict) else isinstance(record, RecordError)


def test_a_line_that_is_a_list_is_one_broken_line_of_a_file_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('[1, 2]\n{"text": "b"}\n')
    (tmp_path / "b.jsonl").write_text('[\n{"text": "b"}\n]')
    broken, good = records(open_sources([str(tmp_path / "a.jsonl")]))
    assert isinstance(broken, RecordError) and good == {"text": "b"}
    first, *_ = records(open_sources([str(tmp_path / "b.jsonl")]))
    assert isinstance(first, RecordError) and "name the file .json" in first.remedy


def test_an_array_of_large_records_is_read_through_small_buffers(tmp_path: Path) -> None:
    rows = [{"text": "y" * 200_000, "i": i} for i in range(5)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert records(open_sources([str(tmp_path / "a.json")])) == rows


# ---------------------------------------------------------------------- broken and hostile


def test_broken_lines_are_errors_in_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": \n\xff{}\n[1, 2]\n' + deep + b'\n\n{"text": "b"}')
    source = open_sources([str(path)])
    found = [(where.number, record) for job in source.jobs for where, record in read_chunk(job)]
    assert [number for number, _ in found] == [1, 2, 3, 4, 5, 7]
    assert found[0][1] == {"text": "a"} and found[-1][1] == {"text": "b"}
    messages = [str(record) for _, record in found[1:-1]]
    assert all(isinstance(record, RecordError) for _, record in found[1:-1])
    for message, word in zip(messages, ["does not parse", "UTF-8", "(list)", "nests too deep"], strict=True):
        assert word in message


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_BYTES", 100)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b'{"text": "first"}\n' + b" " * 3_000_000 + b'\n{"text": "last"}')
    first, second, last = records(open_sources([str(tmp_path / "a.jsonl.gz")]))
    assert (first, last) == ({"text": "first"}, {"text": "last"})
    assert isinstance(second, RecordError) and second.asked.startswith("a line may have")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.zst", "a.parquet", "a.arrow"])
def test_a_file_that_is_cut_off_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FORMATS[name](path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises((StoreError, RecordError)) as raised:
        records(open_sources([str(path)]))
    assert str(path) in str(raised.value) or isinstance(raised.value, RecordError)


@pytest.mark.parametrize("body", ['[{"a": 1}, {"a": ', '[{"a": 1} {"a": 2}]', '[{"a": 1}] tail', '[{"a": 1},]', "[" * 50_000])
def test_a_broken_array_ends_in_an_error_that_says_that_the_rest_cannot_be_read(body: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(body)
    *good, last = records(open_sources([str(tmp_path / "a.json")]))
    assert all(isinstance(record, dict) for record in good)
    assert isinstance(last, RecordError) and "array" in last.asked
    assert f"(row {len(good)}); what follows cannot be read" in last.found


def test_a_broken_array_is_skipped_from_there_on_where_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"input_ids": [1, 2]}, {"input_ids": [3, 4]} {"input_ids": [5, 6]}]')
    (tmp_path / "b.json").write_text('[{"input_ids": [7, 8]}]')
    with pytest.raises(RecordError, match="row 2: the file must hold one JSON array"):
        pack(str(tmp_path), tmp_path / "strict", PackSpec(8))
    packed = pack(str(tmp_path), tmp_path / "out", PackSpec(8), on_error="skip")
    assert packed.ledger.entries["skipped"].indices.tolist() == [2]
    assert sorted(sample.input_ids[0] for block in packed for sample in block.samples()) == [1, 3, 7]


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    source = open_sources([str(tmp_path / "a.jsonl")])
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write("{}\n")
    with pytest.raises(ChangedError, match="stay as it was"):
        records(source)


def test_empty_and_missing(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    source = open_sources([str(tmp_path / "empty.jsonl")])
    assert source.jobs == () and source.reading is None and "no records" in source.describe()
    for bad in ("nothing.jsonl", "no*.jsonl"):
        with pytest.raises(InputError, match="no such path"):
            open_sources([str(tmp_path / bad)])
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="There are none"):
        open_sources([str(tmp_path / "folder")])
    (tmp_path / "a.bin").write_bytes(b"\x00\x01")
    with pytest.raises(InputError, match="known kind"):
        open_sources([str(tmp_path / "a.bin")])


def test_folders_and_globs_are_read_in_order_and_links_do_not_lead_out(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (inside / "b" / "2.txt").write_text("two")
    (inside / "1.txt").write_text("one")
    (inside / ".hidden.txt").write_text("hidden")
    (inside / "notes.bin").write_bytes(b"\x00")
    (inside / "link.txt").symlink_to(outside / "secret.txt")
    (inside / "folder").symlink_to(outside)
    os.mkfifo(inside / "pipe.txt")
    source = open_sources([str(inside)])
    assert [record["text"] for record in records(source)] == ["one", "two"]
    assert len(source.skipped) == 4 and any("leads out" in one for one in source.skipped)
    assert "not read" in source.describe()
    with pytest.raises(InputError, match="ordinary file"):
        open_sources([str(inside / "*.txt")])
    again = open_sources([str(inside / "b" / "*.txt"), str(inside / "1.txt")])
    assert [record["text"] for record in records(again)] == ["two", "one"]


def test_what_packing_wrote_below_a_source_folder_is_no_source(tmp_path: Path) -> None:
    lines = [json.dumps({"input_ids": [number, 2, 3]}) for number in range(40)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ids.jsonl").write_text("\n".join(lines))
    (tmp_path / "data" / "half").mkdir()
    first = pack(str(tmp_path / "data"), tmp_path / "data" / "packed", PackSpec(8))
    second = pack(str(tmp_path / "data"), tmp_path / "data" / "again", PackSpec(16))
    assert first.ledger.samples_in == second.ledger.samples_in == 40
    source = open_sources([str(tmp_path / "data")])
    assert sorted(why.rpartition(" (")[2] for why in source.skipped) == [
        "a packed data set)",
        "a packed data set)",
        "a token store)",
    ]
    pq.write_table(pa.table({"text": ["theirs"]}), tmp_path / "data" / "half" / "blocks-00000.parquet")
    assert any("half" in file.path for file in open_sources([str(tmp_path / "data")]).files)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.jsonl"])
def test_packed_blocks_are_not_read_as_samples(name: str, tmp_path: Path) -> None:
    blocks = {"input_ids": [[1, 2, 3, 4, 5]], "labels": [[-100, 2, -100, 4, 5]], "seq_lengths": [[2, 3]]}
    if name.endswith("parquet"):
        pq.write_table(pa.table(blocks), tmp_path / name)
    elif name.endswith("arrow"):
        with pa.OSFile(str(tmp_path / name), "wb") as file, pa.ipc.new_file(file, pa.table(blocks).schema) as writer:
            writer.write_table(pa.table(blocks))
    else:
        (tmp_path / name).write_text(json.dumps({column: rows[0] for column, rows in blocks.items()}))
    with pytest.raises(RecordError, match="It is a packed block: it has seq_lengths"):
        pack(str(tmp_path / name), tmp_path / "out", PackSpec(8))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, pa.Table.from_pylist(rows).schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows))


IDS = [1, 2, 3, 4, 5]
PACKED = {
    "position_ids": ([0, 1, 0, 1, 2], "position_ids begins again at token 2"),
    "attention_mask": ([1, 1, 2, 2, 0], "attention_mask numbers 2 samples"),
    "segment_ids": ([1, 1, 2, 2, 0], "segment_ids numbers 2 samples"),
    "sequence_id": ([0, 0, 1, 1, -1], "sequence_id numbers 2 samples"),
    "cu_seq_lens_q": ([0, 2, 5], "it has cu_seq_lens_q"),
}
SINGLE = {
    "position_ids": [[0, 1, 2, 3, 4], [0, 1, 2, 0, 0], [1, 1, 0, 1, 2], [0, 0, 0, 0, 0], [7, 8, 9, 10, 11]],
    "attention_mask": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]],
    "segment_ids": [[1, 1, 1, 0, 0], [3, 3, 3, 3, 3]],
    "sequence_id": [[0, 0, 0, -1, -1]],
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("column", PACKED)
def test_blocks_that_show_in_another_way_are_no_samples_either(column: str, kind: str, tmp_path: Path) -> None:
    values, said = PACKED[column]
    rows = [{"input_ids": IDS, column: SINGLE.get(column, [None])[0]}, {"input_ids": IDS, column: values}]
    write_rows(tmp_path / f"rows.{kind}", rows)
    with pytest.raises(RecordError, match=f"It is a packed block: {said}") as caught:
        pack(str(tmp_path / f"rows.{kind}"), tmp_path / "out", PackSpec(8))
    assert f"rows.{kind}, {'line 2' if kind == 'jsonl' else 'row 1'}" in caught.value.asked
    assert "cloison import" in caught.value.remedy


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("column", SINGLE)
def test_samples_with_such_columns_are_samples(column: str, kind: str, tmp_path: Path) -> None:
    write_rows(tmp_path / f"rows.{kind}", [{"input_ids": IDS, column: values} for values in SINGLE[column]])
    packed = pack(str(tmp_path / f"rows.{kind}"), tmp_path / "out", PackSpec(8))
    assert packed.ledger.samples_kept == len(SINGLE[column])


def test_rows_of_a_file_without_the_known_columns_are_not_lost(tmp_path: Path) -> None:
    """The first file decides how records are read; a second one of other columns has broken records, not none."""
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"content": ["c", "d", "e"]}), tmp_path / "b.parquet")
    found = records(open_sources([str(tmp_path)], PackSpec(capacity=8)))
    assert found == [{"text": "a"}, {"text": "b"}, {}, {}, {}]


def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf\r\n")
    assert not records(open_sources([str(tmp_path / "a.jsonl")]))


def test_a_text_is_one_document_and_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8-sig")
    (tmp_path / "b.txt").write_bytes(b"ab\xff")
    first, second = records(open_sources([str(tmp_path)]))
    assert first["text"] == "one\ntwo\n"
    assert isinstance(second, RecordError) and "0xff" in second.found


def test_a_data_set_of_several_splits_wants_one(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:3])).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(InputError, match="train, test"):
        open_sources([str(tmp_path / "d")])
    assert records(open_sources([str(tmp_path / "d" / "test")])) == ROWS[:3]
    state = json.loads((tmp_path / "d" / "test" / "state.json").read_text())
    state["_data_files"][0]["filename"] = "../train/" + state["_data_files"][0]["filename"]
    (tmp_path / "d" / "test" / "state.json").write_text(json.dumps(state))
    with pytest.raises(StoreError, match=r"state\.json"):
        open_sources([str(tmp_path / "d" / "test")])


@pytest.mark.parametrize("state", ["", "[]", '{"_data_files": 1}', '{"_data_files": [1]}', "[" * 100_000])
def test_a_data_set_whose_state_is_damaged_is_an_error_that_names_it(state: str, tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text(state)
    with pytest.raises((StoreError, InputError)) as caught:
        open_sources([str(tmp_path)])
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"])
def test_standard_input_is_spooled_by_its_hash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FORMATS[name](tmp_path / name)
    paths = []
    for _ in range(2):
        with open(tmp_path / name, "rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            source = open_sources(["-"], spool=tmp_path / "spool")
        assert records(source) == ROWS
        paths.append(source.files)
    assert paths[0] == paths[1] and len(list((tmp_path / "spool").iterdir())) == 1


def test_lists_of_numbers_from_columns_are_arrays(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"input_ids": list(range(i)), "labels": [-100] * i, "other": "x"} for i in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4)
    found = records(open_sources([str(tmp_path / "a.parquet")], PackSpec(capacity=8)))
    assert all(isinstance(record["input_ids"], np.ndarray) and "other" not in record for record in found)
    assert [record["input_ids"].tolist() for record in found] == [row["input_ids"] for row in rows]


def test_the_real_files_are_read(shared: Path) -> None:
    expected = {
        "gsm8k/train.jsonl": 7473,
        "humaneval/HumanEval.jsonl.gz": 164,
        "self_instruct/seed_tasks.jsonl": 175,
        "fastchat/dummy_conversation.json": 500,
        "glaive/glaive_toolcall_en_demo.json": 300,
    }
    for name, count in expected.items():
        found = records(open_sources([str(shared / "data" / name)]))
        assert len(found) == count and all(isinstance(record, dict) for record in found)


def test_messages_that_datasets_keeps_as_json_are_read_as_messages(tmp_path: Path) -> None:
    """Messages whose keys differ, as those with tool calls do, are JSON in the files that ``datasets`` writes."""
    import datasets

    call = {"type": "function", "function": {"name": "f", "arguments": {"city": "Zürich", "days": 2}}}
    chats = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}], "n": 1},
        {"messages": [{"role": "user", "content": "ho"}, {"role": "assistant", "content": "yo"}], "n": 2},
    ]
    lines = tmp_path / "chats.jsonl"
    lines.write_text("\n".join(json.dumps(chat) for chat in chats))
    loaded = datasets.load_dataset("json", data_files=str(lines), split="train", cache_dir=str(tmp_path / "cache"))
    loaded.save_to_disk(str(tmp_path / "saved"))
    loaded.to_parquet(str(tmp_path / "chats.parquet"))
    assert "arrow.json" in str(pq.read_schema(tmp_path / "chats.parquet").field("messages").type)
    for name in ("saved", "chats.parquet"):
        assert records(open_sources([str(tmp_path / name)])) == chats


def test_json_in_columns_is_parsed_wherever_it_is_and_broken_json_stays_text() -> None:
    from cloison.text.columnar import rows

    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', "{broken", None, "7"]))
    inside = pa.StructArray.from_arrays([texts, pa.array([1, 2, 3, 4])], ["json", "n"])
    batch = pa.record_batch({"plain": texts, "inside": inside, "list": pa.ListArray.from_arrays([0, 2, 2, 3, 4], texts)})
    values: list[Any] = [{"a": [1]}, "{broken", None, 7]
    assert [row["plain"] for row in rows(batch)] == values
    assert [row["inside"] for row in rows(batch)] == [{"json": value, "n": n} for n, value in enumerate(values, 1)]
    assert [row["list"] for row in rows(batch)] == [values[:2], [], [None], [7]]


CELLS = st.text(st.sampled_from('a,b\t"\n\r é\u2028日') | st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=6), st.sampled_from([",", "\t"]), st.booleans())
def test_tables_are_read_as_they_were_written(cells: list[tuple[str, str]], delimiter: str, marked: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("prompt", "completion"), *cells])
    body = out.getvalue().encode("utf-8-sig" if marked else "utf-8")
    found = [record for _, record in read_table(io.BytesIO(body), delimiter)]
    assert found == [{"prompt": one, "completion": other} for one, other in cells]


def test_a_table_of_pandas_is_packed_and_its_broken_rows_are_named(tmp_path: Path, small: Path) -> None:
    import pandas

    pairs = pandas.DataFrame({"prompt": ["a b,", 'the "cat"\nsat'], "completion": [" hello", " mat"]})
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    pairs.to_csv(tmp_path / "pairs.tsv.gz", index=False, sep="\t")
    pairs.to_json(tmp_path / "pairs.jsonl", orient="records", lines=True)
    packed = [
        pack(str(tmp_path / name), tmp_path / f"{number}", PackSpec(capacity=64), tokenizer=small)
        for number, name in enumerate(("pairs.csv", "pairs.tsv.gz", "pairs.jsonl"))
    ]
    assert list(packed[0]) == list(packed[1]) == list(packed[2])
    (tmp_path / "broken.csv").write_text('\nprompt,completion\n"a\nb",c\n\nd\ne,f,g\nh,i\n')
    job = open_sources([str(tmp_path / "broken.csv")]).jobs[0]
    found = [(str(where).rpartition(", ")[2], record) for where, record in read_chunk(job)]
    assert [place for place, _ in found] == ["line 3", "line 6", "line 7", "line 8"]
    assert [record for _, record in found if isinstance(record, dict)] == [
        {"prompt": "a\nb", "completion": "c"},
        {"prompt": "h", "completion": "i"},
    ]
    errors = [record for _, record in found if isinstance(record, RecordError)]
    assert errors[0].found == "It has 1: ['d']." and errors[1].found == "It has 3: ['e', 'f', 'g']."


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"a,b\n1,2\n3,4\n5,\xff\n6,7\n", "Byte 2 of line 4 is 0xff"),
        (b'a,b\n1,2\n3,4\n"5"x,6\n7,8\n', "expected after"),
        (b'a,b\n1,2\n3,4\n5,"6\n7,8\n', "unexpected end of data"),
        (b'a,b\n1,2\n3,4\n5,"' + b"x" * 300, "more than 256 bytes"),
    ],
)
def test_a_table_that_breaks_off_says_where_and_that_the_rest_is_lost(
    body: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloison.text import tables

    monkeypatch.setattr(tables, "MOST_BYTES", 256)
    found = list(read_table(io.BytesIO(body), ","))
    assert [record for _, record in found[:-1]] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    number, error = found[-1]
    assert number == 4 and isinstance(error, RecordError)
    assert said in error.found and "what follows cannot be read" in error.found


def test_a_table_names_each_column_once() -> None:
    assert list(read_table(io.BytesIO(b""), ",")) == list(read_table(io.BytesIO(b"a,b\n"), ",")) == []
    (_, error), *rest = read_table(io.BytesIO(b"text,n,text\n1,2,3\n"), ",")
    assert isinstance(error, RecordError) and error.found == "It has 'text' twice." and not rest


def test_a_row_group_gives_all_the_rows_that_it_states_or_an_error(tmp_path: Path) -> None:
    """Every byte but those of the footer changed in turn: pyarrow ends without a word at the shortest column."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [[1, 2], [], [3]], "b": ["x", None, "z"]}), path, compression="none")
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = set()
    for at in range(4, footer):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        try:
            assert len(list(read_parquet(str(path), 0, None))) == 3
        except StoreError as error:
            refused.add("rows are stated" in error.found)
    assert refused == {True, False}


def unlistable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``folder`` be one that this user may not list; the superuser may list all."""
    scandir = os.scandir

    def refused(path: Any = ".") -> Any:
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)


@pytest.mark.parametrize("source", ["{}", "{}/closed", "{}/closed/*.jsonl", "{}/*/*.jsonl", "{}/**/*.jsonl"])
def test_a_folder_that_cannot_be_listed_is_not_passed_over(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    for name in ("a.jsonl", "closed/b.jsonl"):
        write_jsonl(tmp_path / name)
    assert open_sources([source.format(tmp_path)]).files
    unlistable(tmp_path / "closed", monkeypatch)
    with pytest.raises(StoreError, match="closed: Permission denied"):
        open_sources([source.format(tmp_path)])


def test_a_token_store_inside_of_the_source_is_none_from_its_first_moment_on(tmp_path: Path) -> None:
    """A run that is killed early leaves little in it, which must be no source of the run that goes on."""
    write_jsonl(tmp_path / "a.jsonl")
    home = tmp_path / "tokens" / ("0f" * 32)
    (home / "tokenizer").mkdir(parents=True)
    for name in ("chunk-000000.arrow", "tokenize.setup.json", "tokenizer/tokenizer.json", "tokenizer.json"):
        (home / name).write_text("{}")
    (tmp_path / "tokens" / f".stdin-{'0f' * 16}.json").write_text("{}")
    for source in (tmp_path, tmp_path / "*", tmp_path / "tok*" / "*", tmp_path / "a.jsonl"):
        found = open_sources([str(source), str(tmp_path / "a.jsonl")])
        assert {file.path for file in found.files} == {str(tmp_path / "a.jsonl")}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="an ordinary file"):
        open_sources([str(tmp_path / "a.jsonl")])
    with pytest.raises(StoreError, match="an ordinary file"):
        read(tmp_path / "a.jsonl")


def test_names_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path / "a") + b"\xff")
    write_jsonl(Path(f"{name}.jsonl"))
    assert len(records(open_sources([f"{name}.jsonl"]))) == 40
    write_parquet(tmp_path / "b.parquet")
    os.rename(tmp_path / "b.parquet", f"{name}.parquet")
    with pytest.raises(InputError, match="name in UTF-8"):
        open_sources([f"{name}.parquet"])
    with pytest.raises(StoreError, match="name in UTF-8"):
        pack(f"{name}.jsonl", name, PackSpec(64), tokens=tmp_path / "tokens")


def test_empty_standard_input_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What should have written to it has failed, nearly always."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="It is empty"):
        open_sources(["-"], spool=tmp_path)
    assert not list(tmp_path.iterdir())
