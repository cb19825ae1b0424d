"""A data set of our own: its hashes, its manifest and its ledger are checked too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cloison
from cloison.errors import ManifestError, StoreError
from cloison.store.records import sealed


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    samples = [[10 + (7 * i + k) % 80 for k in range(2 + i % 9)] for i in range(200)]
    samples[5] = []
    lines = [{"input_ids": ids, "labels": [-100, *ids[1:]][: len(ids)]} for ids in samples]
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cloison.pack([str(folder / "a.jsonl")], folder / "out", cloison.PackSpec(capacity=16))
    return folder / "out"


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def _manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = json.loads((folder / "manifest.json").read_text())
    change(plain)
    (folder / "manifest.json").write_text(json.dumps(sealed(plain)))


def _rewrite(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write other blocks, and a manifest whose hash fits them: only what they say can tell."""
    from cloison.store.files import file_sha256

    path = folder / "blocks-00000.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    _manifest(folder, lambda plain: plain["shards"][0].update(sha256=file_sha256(path), size_bytes=path.stat().st_size))


def test_what_pack_wrote_is_right(packed: Path) -> None:
    for data in (packed, str(packed), cloison.open(packed)):
        report = cloison.check(data)
        assert report.ok and not report.findings, str(report)
        assert "cloison" in report.convention and report.counts["segments"] == 199
        assert json.loads(report.to_json())["facts"]["shards"] == 1


def test_a_changed_byte_is_found(copy: Path) -> None:
    path = copy / "blocks-00000.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    try:
        assert "file_changed" in cloison.check(copy).kinds("error")
    except StoreError as error:  # the flipped bit may make the file unreadable
        assert "must be readable" in error.asked


def test_a_missing_file_is_found_with_what_it_held(copy: Path) -> None:
    (copy / "blocks-00000.parquet").unlink()
    report = cloison.check(copy)
    assert {"file_changed", "manifest_disagrees", "sample_missing"} <= set(report.kinds("error"))
    assert "it is missing" in report.findings[0].message


def test_a_name_that_leaves_the_folder_is_not_followed(copy: Path) -> None:
    shutil.copy(copy / "blocks-00000.parquet", copy.parent / "blocks-00000.parquet")
    _manifest(copy, lambda plain: plain["shards"][0].update(name="../blocks-00000.parquet"))
    report = cloison.check(copy)
    assert "its name leaves the folder" in report.findings[0].message and report.counts["rows"] == 0


def test_lost_and_doubled_blocks_are_found_by_their_samples(copy: Path) -> None:
    _rewrite(copy, lambda table: pa.concat_tables([table.slice(1), table.slice(3, 1)]))
    report = cloison.check(copy)
    assert {"sample_twice", "sample_missing"} <= set(report.kinds("error"))
    held = next(finding for finding in report.findings if finding.kind == "sample_missing").where
    lost = set(pq.read_table(copy / "blocks-00000.parquet").column("sample_ids").combine_chunks().flatten().to_pylist())
    assert held["count"] == len(set(range(200)) - lost - {5}) and held["sample"] == min(set(range(200)) - lost - {5})


def test_a_ledger_that_does_not_add_up_is_found(copy: Path) -> None:
    def more(*names: str) -> Callable[[dict[str, Any]], None]:
        return lambda plain: plain["ledger"].update({name: plain["ledger"][name] + 1 for name in names})

    _manifest(copy, more("tokens_in", "tokens_kept"))
    assert cloison.check(copy).kinds("error") == ["ledger_disagrees"]
    _manifest(copy, more("tokens_in"))
    with pytest.raises(ManifestError, match="add up"):
        cloison.check(copy)


def test_a_first_token_that_is_trained_is_found_at_the_row_s_start_too(copy: Path) -> None:
    def train(table: pa.Table) -> pa.Table:
        labels = table.column("labels").to_pylist()
        labels[2][0] = table.column("input_ids")[2].as_py()[0]
        return table.set_column(table.column_names.index("labels"), "labels", pa.array(labels, pa.list_(pa.int32())))

    _rewrite(copy, train)
    found = {finding.kind: finding.where for finding in cloison.check(copy).findings}
    assert (found["boundary_target"]["row"], found["boundary_target"]["position"]) == (2, 0)
    assert found["manifest_disagrees"]["quantity"] == "targets"


def test_split_samples_are_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"input_ids": list(range(3, 3 + n))}) + "\n" for n in (40, 7, 22)))
    spec = cloison.PackSpec(capacity=16, overflow="split", train_on="all")
    cloison.pack([str(tmp_path / "a.jsonl")], tmp_path / "out", spec)
    report = cloison.check(tmp_path / "out")
    assert report.ok, str(report)
    _rewrite(tmp_path / "out", lambda table: table.slice(1))
    assert {"sample_parts_missing", "sample_missing"} & set(cloison.check(tmp_path / "out").kinds("error"))


def test_half_a_data_set_and_damaged_files_are_errors(copy: Path) -> None:
    (copy / "blocks-00000.parquet").write_bytes(b"PAR1 not really PAR1")
    _manifest(copy, lambda plain: plain["shards"][0].update(size_bytes=20))
    with pytest.raises(StoreError, match="must be readable"):
        cloison.check(copy)
    (copy / "manifest.json").write_text("{}")
    with pytest.raises(ManifestError):
        cloison.check(copy)
    with pytest.raises(StoreError, match="There is no such path"):
        cloison.check(copy / "nothing")
    (copy / "empty").mkdir()
    with pytest.raises(StoreError, match="no Parquet"):
        cloison.check(copy / "empty")


def test_the_command_line_says_it_with_its_status(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], shared: Path
) -> None:
    from cloison.cli import main

    assert main(["check", str(packed)]) == 0
    assert "Nothing to report." in capsys.readouterr().out
    row = {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "position_ids": [0, 1, 0, 1]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    options = ["--tokenizer", str(shared / "tokenizers" / "qwen3"), "--terminator", "8", "--capacity", "4"]
    assert main(["check", str(tmp_path / "a.jsonl"), "--json", *options]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert [f["kind"] for f in plain["findings"] if f["severity"] == "error"] == ["boundary_target"]
    assert plain["not_checked"] == ["samples twice or missing: there are no sample_ids"]
    assert main(["check", str(tmp_path / "nothing")]) == 2
    # What would make more of it checked is said in the words of the reader.
    (tmp_path / "c.jsonl").write_text(json.dumps(row | {"labels": [6, 7, 8, 5]}))
    capsys.readouterr()
    assert main(["check", str(tmp_path / "c.jsonl")]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "pass --tokenizer or --vocab-size" in shown and "pass --tokenizer or --eos)" in shown and "=" not in shown
    assert "(pass --capacity)" in shown and "say so: --labels shifted." in shown
    report = cloison.check(tmp_path / "c.jsonl")
    assert "ids against a vocabulary (pass tokenizer= or vocab_size=)" in report.not_checked
    (tmp_path / "d.jsonl").write_text("")
    assert main(["check", str(tmp_path / "d.jsonl")]) == 1
    assert "Nothing was looked at" in capsys.readouterr().out
    (tmp_path / "b.npy").write_bytes(b"")
    assert main(["check", str(tmp_path / "b.npy")]) == 2
    assert "pickles" in capsys.readouterr().err
