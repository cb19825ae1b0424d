"""Where samples stand in the sources: the file and line or row that a person can open, not a number over all of them."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloison import PackSpec, pack
from cloison.cli import main
from cloison.errors import InputError, OverlongError
from cloison.packing.job import run_job
from cloison.packing.whereabouts import whereabouts


def lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" if record is not None else "\n" for record in records))
    return path


def of(*lengths: int) -> list[dict[str, Any]]:
    return [{"input_ids": list(range(1, length + 1))} for length in lengths]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files: lines with an empty and a broken one between them, rows in groups, and compressed lines."""
    made = tmp_path / "data"
    made.mkdir()
    lines(made / "a.jsonl", [*of(3, 4), None, {"input_ids": "no"}, *of(20)])
    pq.write_table(pa.table({"input_ids": [[1] * n for n in (2, 2, 2, 30, 2)]}), made / "b.parquet", row_group_size=2)
    with gzip.open(made / "c.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(record) + "\n" for record in of(2, 2, 25)))
    return made


def test_every_sample_is_found_in_files_of_each_kind_and_over_chunks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloison.text.sources.CHUNK_BYTES", 40)
    _, tokens = run_job(str(folder), tmp_path / "out", PackSpec(8, overflow="truncate"), on_error="skip")
    a, b, c = (str(folder / name) for name in ("a.jsonl", "b.parquet", "c.jsonl.gz"))
    expected = [f"{a}, line {n}" for n in (1, 2, 4, 5)] + [f"{b}, row {n}" for n in range(5)]
    expected += [f"{c}, line {n}" for n in (1, 2, 3)]
    assert len(tokens.store.chunks) > 5
    assert whereabouts(tokens, range(12)) == dict(enumerate(expected))
    (folder / "a.jsonl").write_text("something else")
    assert whereabouts(tokens, [0, 4]) == {4: expected[4]}  # what changed since is not read for another sample's place


def test_an_overlong_error_names_the_places_of_the_first(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OverlongError) as caught:
        pack(str(folder), tmp_path / "out", PackSpec(8), on_error="skip")
    error = caught.value
    assert error.samples == (3, 7, 11)
    assert error.found.endswith(
        f"In the sources, sample 3 is {folder / 'a.jsonl'}, line 5; sample 7 is {folder / 'b.parquet'}, row 3; "
        f"sample 11 is {folder / 'c.jsonl.gz'}, line 3."
    )
    assert error.remedy == 'Pass overflow="split", "truncate" or "drop", or raise capacity.'


def test_so_does_the_error_for_a_sample_with_nothing_to_train(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", [*of(3), {"input_ids": [1]}, *of(3)])
    with pytest.raises(InputError, match=r"In the sources, sample 1 is .*a\.jsonl, line 2\."):
        pack(str(source), tmp_path / "out", PackSpec(8, on_empty="raise"))


def test_the_summary_and_its_json_name_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # wide enough for any folder's name
    words = ["pack", str(folder), "--out", str(tmp_path / "out"), "--capacity", "8", "--overflow", "drop", "--on-error", "skip"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 longer than a block, dropped, 75 tokens lost (sample 3, 7, 11)" in said
    assert f"sample 3 is {folder / 'a.jsonl'}, line 5; sample 7 is" in said
    assert main([*words, "--json"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    assert places["dropped"]["7"] == f"{folder / 'b.parquet'}, row 3"
    assert places["skipped"] == {"2": f"{folder / 'a.jsonl'}, line 4"}


def test_of_standard_input_the_number_alone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(json.dumps(record) + "\n" for record in of(3, 20))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with pytest.raises(OverlongError, match="Sample 1 has 20 tokens") as caught:
        pack("-", tmp_path / "out", PackSpec(8))
    assert "In the sources" not in caught.value.found
