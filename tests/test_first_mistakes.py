"""What people do wrong first: each message names what was passed and what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloison
from cloison.cli import main
from cloison.errors import InputError, ManifestError, RecordError


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    path.write_text("\n".join(json.dumps({"input_ids": list(range(1, n))}) for n in range(3, 20)))
    return path


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_a_source_is_not_opened_as_a_data_set(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        cloison.open(ids)
    assert (caught.value.found, caught.value.asked) == ("It is a file.", f"{ids} must be a packed data set.")
    assert "Name the folder that pack wrote" in complaint(capsys, "show", str(ids))


def test_rows_of_another_library_are_no_blocks(ids: Path, tmp_path: Path) -> None:
    packed = cloison.pack(str(ids), tmp_path / "out", cloison.PackSpec(32))
    with pytest.raises(InputError) as caught:
        cloison.collate([{"input_ids": [1], "labels": [1]}])  # type: ignore[list-item]
    assert "cloison.open(DIR)" in caught.value.remedy
    with pytest.raises(InputError, match="packed"):
        cloison.collate([[1, 2]])  # type: ignore[list-item]
    with pytest.raises(IndexError, match=f"block {len(packed)} of a packed data set of {len(packed)} blocks"):
        packed[len(packed)]
    assert packed[-1] == packed[len(packed) - 1]


def test_a_broken_record_may_be_mended_or_left_out(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids.write_text(ids.read_text() + '\n{"input_ids": [1')
    with pytest.raises(RecordError) as caught:
        cloison.pack(str(ids), tmp_path / "out", cloison.PackSpec(32))
    assert caught.value.remedy == 'Mend the line. on_error="skip" leaves such records out, and counts them.'
    said = complaint(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "32")
    assert "Mend the line. --on-error skip leaves such records out" in said
    assert (
        cloison.pack(str(ids), tmp_path / "out", cloison.PackSpec(32), on_error="skip").ledger.entries["skipped"].samples == 1
    )


def test_the_command_line_speaks_of_options(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Pass --capacity TOKENS." in complaint(capsys, "pack", str(ids), "--out", str(tmp_path / "out"))
    assert "Add --out DIR" in complaint(capsys, "pack", str(ids), "--capacity", "32")


@pytest.mark.parametrize(
    ("record", "columns"),
    [
        ({"dialog": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}, "messages=dialog"),
        ({"turns": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, "conversations=turns"),
        ({"frage": "a", "antwort": "b", "n": 3}, "prompt=frage completion=antwort"),
        ({"body": "a", "n": 3}, "text=body"),
    ],
)
def test_columns_are_named_as_the_record_has_them(
    record: dict[str, object], columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the message says to pass does the work, passed as it stands."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([record] * 3), tmp_path / "a.parquet")
    tokenizer = str(Path(cloison.__file__).parent / "story" / "tokenizer")
    words = ("pack", str(tmp_path / "a.parquet"), "--tokenizer", tokenizer, "--capacity", "64", "--out", str(tmp_path / "out"))
    said = complaint(capsys, *words)
    assert f"--columns {columns}." in said and all(name in said.splitlines()[1] for name in record)
    assert main([*words, "--columns", *columns.split()]) == 0


def test_wrong_columns_are_answered_with_those_that_there_are(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([{"question": "a", "answer": "b"}]), tmp_path / "a.parquet")
    spec = cloison.PackSpec(64, columns={"prompt": "frage", "completion": "answer"})
    with pytest.raises(RecordError) as caught:
        cloison.pack(
            str(tmp_path / "a.parquet"), tmp_path / "out", spec, tokenizer=Path(cloison.__file__).parent / "story/tokenizer"
        )
    assert caught.value.found == "It has question (str), answer (str)."


@pytest.mark.parametrize(
    ("word", "value"), [("False", False), ("false", False), ("True", True), ("None", None), ("high", "high")]
)
def test_template_options_are_no_texts_where_python_or_json_means_a_value(word: str, value: object) -> None:
    from argparse import ArgumentParser

    from cloison.view.spec_options import add_spec_arguments, spec_from

    parser = ArgumentParser()
    add_spec_arguments(parser)
    spec = spec_from(parser.parse_args(["--capacity", "8", "--template-option", f"enable_thinking={word}"]))
    found = spec.template_options["enable_thinking"]
    assert (type(found), found) == (type(value), value)


def test_samples_and_blocks_show_themselves_in_one_line() -> None:
    small = cloison.pack_samples([[1, 2, 3], [4, 5]], capacity=8, order="input")[0]
    assert repr(small) == ("Block(input_ids=[1, 2, 3, 4, 5], labels=[-100, 2, 3, -100, 5], Segments([[3, 2]], capacity=8))")
    assert repr(next(iter(small.samples()))) == "Sample(input_ids=[1, 2, 3], labels=[-100, 2, 3])"
    large = cloison.pack_samples([range(1, 900), range(1, 300)], capacity=2048)[0]
    assert repr(large) == "Block(2 segments, 1,198 of 2,048 tokens, 1,196 targets)"
    weighed = cloison.Sample(range(99), loss_weights=[1.0] * 99, columns={"source": "a"})  # type: ignore[arg-type]
    assert repr(weighed) == "Sample(99 tokens, 98 targets, with loss_weights, columns=['source'])"


def test_records_are_encoded_before_they_are_packed_in_memory() -> None:
    for record, said, remedy in (
        ({"messages": []}, "Item 0 (messages) is a dict.", "cloison.encode(record, tokenizer)"),
        ({"input_ids": [1], "labels": [1]}, "Item 0 (input_ids, labels) is a dict.", "cloison.Sample(input_ids, labels)"),
        ("a text", "Item 0 is a str.", "cloison.encode(record, tokenizer)"),
    ):
        with pytest.raises(InputError) as caught:
            cloison.pack_samples([record], capacity=8)  # type: ignore[list-item]
        assert caught.value.found == said and remedy in caught.value.remedy


def test_a_source_is_a_path_and_records_in_memory_are_told_where_to_go(tmp_path: Path) -> None:
    import datasets
    import pandas

    records = [{"input_ids": [1, 2, 3]}]
    for source, found in (
        (records, "It is a list of dict."),
        (records[0], "It is a dict of str."),
        (datasets.Dataset.from_list(records), "It is a Dataset."),
        (pandas.DataFrame(records), "It is a DataFrame."),
        ([], "It is a list."),
    ):
        with pytest.raises(InputError) as caught:
            cloison.pack(source, tmp_path / "out", cloison.PackSpec(8))  # type: ignore[arg-type]
        assert caught.value.found == found and "to_parquet" in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_a_name_of_a_hub_is_answered_with_how_to_bring_it_here(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "pack", str(ids), "--tokenizer", "Qwen/Qwen3-0.6B", "--capacity", "32", "--dry-run")
    assert 'AutoTokenizer.from_pretrained("NAME").save_pretrained("FOLDER")' in said


def test_a_plan_explains_its_columns(ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ids), "--capacity", "32"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for head in ("full", "gap", "cut", "lost", "alike", "at random", "samples/step", "s"):
        assert f"{head}: " in out
    assert out.count("a dot is empty") == 1


def test_an_option_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    np.arange(9, dtype=np.uint16).tofile(tmp_path / "ids.npy")
    said = complaint(capsys, "import", str(tmp_path), str(tmp_path / "out"), "--from", "olmo-core")
    assert "Pass --dtype, one of uint8" in said


def test_a_script_is_audited_by_what_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')")
    assert f"cloison audit -- python {script}" in complaint(capsys, "audit", "--", str(script))
    assert "Check its path." in complaint(capsys, "audit", "--", str(tmp_path / "nowhere"))


def test_blocks_in_memory_know_their_capacity() -> None:
    blocks = cloison.pack_samples([range(1, 40), range(1, 30)], capacity=64)
    report = cloison.check(blocks)
    assert report.counts["utilization"] == 68 / 128 and not any("capacity" in reason for reason in report.not_checked)
    mixed = [*blocks, *cloison.pack_samples([range(1, 9)], capacity=16)]
    assert any("capacity" in reason for reason in cloison.check(mixed).not_checked)


@pytest.mark.parametrize(
    ("record", "remedy"), [("a text", '{"text": ...}'), ([{"role": "user", "content": "a"}], "one by one")]
)
def test_a_record_is_a_mapping(record: object, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        cloison.encode(record, Path(cloison.__file__).parent / "story/tokenizer")  # type: ignore[arg-type]
    assert caught.value.found == f"It is a {type(record).__name__}." and remedy in caught.value.remedy


@pytest.mark.parametrize(
    "words", [("pack", "--capacity", "4k"), ("plan", "--capacity", "8", "--seed", "x"), ("show", "--block", "1.5")]
)
def test_a_number_that_is_none_is_one_clear_error_and_no_page_of_usage(
    words: tuple[str, ...], ids: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([words[0], str(ids), *words[1:]])
    usage, error = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert usage == f"usage: cloison {words[0]} ... (all its options: cloison {words[0]} --help)"
    assert error.endswith(f"argument {words[-2]}: it takes a whole number, as 4096; {words[-1]!r} is none.")
    with pytest.raises(SystemExit):
        main([words[0], "--help"])
    assert f"{words[-2]} " in capsys.readouterr().out.split("options:")[0], "its help has the usage whole"
