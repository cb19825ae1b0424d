"""Exports: what the facts of each format make of the files is what was packed, and what cannot be kept is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import cloison
from cloison.errors import InputError, StoreError
from cloison.formats.exporting import LOSSES, TARGETS
from tests.formats import fact_readers
from tests.formats.fact_readers import Blocks

READERS: dict[str, Callable[[Path], Blocks]] = {name: getattr(fact_readers, name.replace("-", "_")) for name in TARGETS}
NEEDS: dict[str, list[str]] = {"megatron": ["labels", "blocks", "boundaries"]}


def _pack(folder: Path, rows: list[dict[str, Any]], **spec: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cloison.pack([str(folder / "a.jsonl")], folder / "out", cloison.PackSpec(**({"capacity": 16} | spec)))
    return folder / "out"


def _rows(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    rows = []
    for _ in range(count):
        ids = random.integers(5, 70_000, random.integers(2, 17)).tolist()
        prompt = int(random.integers(1, len(ids)))
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _pack(tmp_path_factory.mktemp("masked"), _rows(300))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _pack(tmp_path_factory.mktemp("plain"), [{"input_ids": row["input_ids"]} for row in _rows(40)])


def _blocks(path: Path) -> Blocks:
    out = []
    for block in cloison.open(path):
        out.append([(one.input_ids.tolist(), (one.labels != -100).tolist()) for one in block.samples()])
    return out


@pytest.mark.parametrize("to", TARGETS)
def test_the_facts_of_the_format_give_what_was_packed(to: str, packed: Path, tmp_path: Path) -> None:
    done = cloison.export(packed, tmp_path / "out", to, lose=NEEDS.get(to, []))
    assert done.lost == tuple(NEEDS.get(to, ())) and all(file.is_file() for file in done.files)
    assert {file for file in (tmp_path / "out").rglob("*") if file.is_file()} == set(done.files)
    found, wanted = READERS[to](tmp_path / "out"), _blocks(packed)
    if to == "megatron":
        wanted = [[(ids, [False] + [True] * (len(ids) - 1)) for block in wanted for ids, _ in block]]
    assert found == wanted
    assert str(tmp_path / "out") in done.usage and "{" + "dest}" not in done.usage
    assert json.loads(json.dumps(done.to_dict()))["targets"] == done.targets


@pytest.mark.parametrize("to", TARGETS)
def test_the_same_data_gives_the_same_bytes(to: str, packed: Path, tmp_path: Path) -> None:
    one = cloison.export(packed, tmp_path / "one", to, lose=NEEDS.get(to, []))
    two = cloison.export(cloison.open(packed), tmp_path / "two", to, lose=NEEDS.get(to, []))
    for a, b in zip(one.files, two.files, strict=True):
        assert a.read_bytes() == b.read_bytes()  # of OLMo-core, the names of the packing hold the path


@pytest.mark.parametrize("to", ["trl", "megatron-bridge", "mds", "grain"])
def test_check_finds_exports_right(to: str, packed: Path, tmp_path: Path) -> None:
    cloison.export(packed, tmp_path / "out", to, pad_token_id=7)
    report = cloison.check(tmp_path / "out", capacity=16, vocab_size=70_000)
    assert report.ok and not report.kinds("warning"), str(report)
    ours = cloison.check(packed).counts
    assert {name: report.counts[name] for name in ("rows", "segments", "tokens", "targets")} == {
        name: ours[name] for name in ("rows", "segments", "tokens", "targets")
    }


def test_what_would_be_lost_needs_its_word(packed: Path, plain: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        cloison.export(packed, tmp_path / "a", "megatron", lose=["blocks", "boundaries"])
    assert "labels: which tokens are targets" in caught.value.found and "--lose labels" in caught.value.remedy
    assert not (tmp_path / "a").exists()
    assert cloison.export(plain, tmp_path / "b", "megatron", lose=["blocks", "boundaries"]).lost == ("blocks", "boundaries")


@pytest.mark.parametrize(
    ("samples", "lost"),
    [
        ([[5, 6, 2], [7, 2], [2]], False),
        ([[5, 6, 2], [7, 8]], True),  # one does not end in it
        ([[5, 2, 6, 2], [7, 2]], True),  # it is within one
        ([[5, 2, 6, 2], [7, 2], [2, 2]], True),
    ],
)
def test_a_reader_that_looks_for_an_id_needs_it_at_every_end(
    samples: list[list[int]], lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloison.formats import flat

    monkeypatch.setattr(flat, "_PIECE_TOKENS", 1)
    path = _pack(tmp_path / "x", [{"input_ids": ids} for ids in samples if len(ids) > 1], capacity=4)
    if lost:
        with pytest.raises(InputError, match="boundaries"):
            cloison.export(path, tmp_path / "a", "megatron", lose=["blocks"])
    done = cloison.export(path, tmp_path / "b", "megatron", lose=["blocks", "boundaries"])
    assert ("boundaries" in done.lost) is lost


def test_weights_and_columns_need_their_word_where_they_are(tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "weight": 0.5, "source": "a"} for _ in range(4)]
    path = _pack(tmp_path / "x", rows, carry=("source",))
    carried = cloison.open(path).manifest.columns
    assert set(carried) == {"source"}
    with pytest.raises(InputError, match="columns"):
        cloison.export(path, tmp_path / "a", "trl")
    done = cloison.export(path, tmp_path / "b", "trl", lose=list(LOSSES))
    assert "columns" in done.lost


def test_weights_travel_with_mds(tmp_path: Path) -> None:
    from cloison.formats import mds

    rows = [{"input_ids": [5, 6, 7 + i], "labels": [-100, 6, 7 + i], "weight": 0.5 * (1 + i % 3)} for i in range(20)]
    path = _pack(tmp_path / "x", rows, columns={"input_ids": "input_ids", "labels": "labels", "weight": "weight"})
    wanted = [block.loss_weights for block in cloison.open(path)]
    assert {0.5, 1.0, 1.5} <= {float(one) for weights in wanted if weights is not None for one in weights}
    for to in ("trl", "grain", "olmo-core", "megatron-bridge"):
        with pytest.raises(InputError, match="weights"):
            cloison.export(path, tmp_path / to, to)
    cloison.export(path, tmp_path / "b", "mds")
    (read,) = mds.read(tmp_path / "b", ("loss_weights", "sequence_id"))
    inside = read["sequence_id"].values >= 0
    assert np.array_equal(read["loss_weights"].values[inside], np.concatenate(wanted))  # type: ignore[arg-type]
    assert not read["loss_weights"].values[~inside].any()
    assert fact_readers.mds(tmp_path / "b") == _blocks(path)
    cloison.export(path, tmp_path / "c", "trl", lose=["weights"])
    assert fact_readers.trl(tmp_path / "c") == _blocks(path)


def test_small_pieces_shards_and_row_groups_hold_the_same(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloison.formats import flat, mds, parquet

    monkeypatch.setattr(mds, "_SIZE_LIMIT", 2000)
    monkeypatch.setattr(parquet, "_GROUP_TOKENS", 7 * 16)
    monkeypatch.setattr(flat, "_PIECE_TOKENS", 100)
    done = cloison.export(packed, tmp_path / "mds", "mds")
    assert len(done.files) > 10 and all(file.stat().st_size <= 2000 for file in done.files[:-1])
    for to in TARGETS:
        if to not in ("mds", "megatron"):
            cloison.export(packed, tmp_path / to, to)
        if to != "megatron":
            assert READERS[to](tmp_path / to) == _blocks(packed)
    groups = pq.ParquetFile(next((tmp_path / "megatron-bridge").glob("*.parquet"))).metadata
    assert max(groups.row_group(g).num_rows for g in range(groups.num_row_groups)) <= 7


def test_olmo_packing_follows_a_moved_folder(packed: Path, tmp_path: Path) -> None:
    from cloison.formats.olmo_core import write_packing

    cloison.export(packed, tmp_path / "a", "olmo-core")
    (tmp_path / "a").rename(tmp_path / "b")
    before = sorted(path.name for path in (tmp_path / "b" / "work" / "dataset-common").iterdir())
    new = write_packing(tmp_path / "b" / "tokens-00000.npy", 16)
    assert not {path.name for path in new[1:]} & set(before) and len(new) == 4
    old = {path.name.split("-16-")[0]: path for path in (tmp_path / "b" / "work" / "dataset-common").iterdir()}
    for path in new[1:]:
        assert path.read_bytes() == old[path.name.split("-16-")[0]].read_bytes()


@pytest.mark.parametrize(
    ("to", "options", "error", "asked"),
    [
        ("tfrecord", {}, InputError, "a target is one of"),
        ("trl", {"lose": ["everything"]}, InputError, "what may be lost is of"),
        ("mds", {"pad_token_id": -1}, InputError, "pad_token_id must be a token id"),
    ],
)
def test_wrong_use_is_named(
    to: str, options: dict[str, Any], error: type[Exception], asked: str, packed: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=asked):
        cloison.export(packed, tmp_path / "x", to, **options)


def test_a_folder_that_is_not_empty_stays_as_it_is(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(StoreError, match="new or empty folder"):
        cloison.export(packed, tmp_path, "trl")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_trl_takes_the_export(packed: Path, tmp_path: Path) -> None:
    """TRL's own collator over the exported rows: positions, offsets and labels are those of cloison's collate."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("trl")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    cloison.export(packed, tmp_path / "out", "trl")
    files = str(tmp_path / "out" / "*.parquet")
    data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    blocks = cloison.open(packed)[:5]
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)([data[i] for i in range(5)])
    ours = cloison.collate(blocks, kernel="flash")
    for name in ("input_ids", "labels", "position_ids"):
        assert theirs[name].tolist() == ours[name].tolist()
    assert theirs["cu_seq_lens_q"].tolist() == ours["cu_seq_lens_q"].tolist()


def test_the_command_line_exports(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cloison.cli import main

    assert main(["export", str(packed), str(tmp_path / "a"), "--to", "grain"]) == 0
    assert "ParquetIterDataset" in capsys.readouterr().out
    assert main(["export", str(packed), str(tmp_path / "b"), "--to", "megatron"]) == 2
    assert "--lose labels blocks boundaries" in capsys.readouterr().err
    assert (
        main(
            [
                "export",
                str(packed),
                str(tmp_path / "b"),
                "--to",
                "megatron",
                "--json",
                "--lose",
                "labels",
                "blocks",
                "boundaries",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["lost"] == ["labels", "blocks", "boundaries"]
