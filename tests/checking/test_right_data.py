"""No false alarm: right rows of every system, as they come from its own packer and collator, give no error and no warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import Sample, check, check_batch
from cloison.checking.report import CheckReport
from cloison.segments import IGNORE
from tests.checking.right_rows import CHAT, EOS, SYSTEMS, arrow_table, rows

KNOWN: dict[str, Any] = {"capacity": 10, "vocab_size": 100, "eos_token_id": EOS}


def quiet(report: CheckReport) -> None:
    assert report.ok
    assert not report.kinds("error") and not report.kinds("warning"), str(report)


@pytest.mark.parametrize("system", SYSTEMS)
def test_right_rows_give_no_error_and_no_warning(system: str) -> None:
    report = check(rows(system), **KNOWN)
    quiet(report)
    assert report.counts["rows"] == 3
    if system != "unpacked":
        assert (report.counts["segments"], report.counts["tokens"]) == (6, 23)
        assert report.counts["targets"] == sum(label != IGNORE for row in CHAT for _, labels in row for label in labels)
        assert report.counts["max_seqlen"] == 7


@pytest.mark.parametrize("system", SYSTEMS)
def test_dicts_tables_and_files_are_read_alike(system: str, tmp_path: Path) -> None:
    listed = rows(system)
    wanted = check(listed, **KNOWN).to_dict() | {"source": ""}
    table = arrow_table(listed)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))
    with pa.output_stream(str(tmp_path / "b.jsonl.zst"), compression="zstd") as packed:
        packed.write((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "a.json").write_text(json.dumps(listed))
    wide = table.cast(pa.schema([pa.field(name, pa.large_list(pa.int64())) for name in table.column_names]))
    for data in (table, wide, iter(listed), *(tmp_path / name for name in ("a.parquet", "a.arrow", "b.arrow", "a.jsonl")),
                 tmp_path / "b.jsonl.zst", tmp_path / "a.json"):  # fmt: skip
        assert check(data, **KNOWN).to_dict() | {"source": ""} == wanted, data


@st.composite
def packed_samples(draw: st.DrawFn) -> list[list[tuple[list[int], list[int]]]]:
    """Rows of samples of at least two tokens with a trained end; tokens never repeat side by side."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        row = []
        room = 10
        while room >= 2 and (not row or draw(st.booleans())):
            length = draw(st.integers(2, min(room, 6)))
            ids = [*draw(st.lists(st.integers(10, 99), min_size=length - 1, max_size=length - 1, unique=True)), EOS]
            prompt = draw(st.integers(1, length - 1))
            row.append((ids, [IGNORE if i < prompt else token for i, token in enumerate(ids)]))
            room -= length
        out.append(row)
    return out


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=25, deadline=None)
@given(samples=packed_samples())
def test_any_right_rows_are_quiet(system: str, samples: list[list[tuple[list[int], list[int]]]]) -> None:
    quiet(check(rows(system, samples), **KNOWN))


# ---------------------------------------------------------------------- the systems themselves


@pytest.fixture(scope="module")
def trl_source() -> Any:
    datasets = pytest.importorskip("datasets")
    random = np.random.default_rng(0)
    listed = [[*random.integers(10, 99, random.integers(2, 30)).tolist(), EOS] for _ in range(300)]
    labels = [[IGNORE if i < len(ids) // 2 else token for i, token in enumerate(ids)] for ids in listed]
    return datasets.Dataset.from_dict({"input_ids": listed, "labels": labels, "attention_mask": [[1] * len(x) for x in listed]})


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split"])
@pytest.mark.parametrize("columns", [["input_ids"], ["input_ids", "labels"], ["input_ids", "labels", "attention_mask"]])
def test_trl_packed_data_is_quiet(trl_source: Any, strategy: str, columns: list[str], tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    packed = trl.pack_dataset(trl_source.select_columns(columns), 40, strategy)
    report = check(packed, **(KNOWN | {"capacity": 40}))
    quiet(report)
    assert "TRL" in report.convention and report.boundaries == "seq_lengths"
    assert report.counts["segments"] == len(trl_source) and report.counts["rows"] == len(packed)
    packed.save_to_disk(tmp_path / "saved")
    assert check(tmp_path / "saved", **(KNOWN | {"capacity": 40})).counts == report.counts
    loss_takes_all = packed.map(lambda row: {"labels": row["input_ids"]})
    noted = check(loss_takes_all, **(KNOWN | {"capacity": 40}))
    quiet(noted)
    assert "first_labels_masked_later" in noted.kinds("note")


def test_trl_wrapped_data_has_no_boundaries_and_that_is_said(trl_source: Any) -> None:
    trl = pytest.importorskip("trl")
    packed = trl.pack_dataset(trl_source.select_columns(["input_ids"]), 40, "wrapped")
    report = check(packed, **(KNOWN | {"capacity": 40}))
    assert report.kinds("warning") == ["no_boundaries"] and report.boundaries == "none"
    assert any("each row counts as one sample" in reason for reason in report.not_checked)


def test_trl_and_transformers_batches_are_quiet(trl_source: Any) -> None:
    trl = pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    packed = trl.pack_dataset(trl_source.select_columns(["input_ids", "labels"]), 40, "bfd")
    flat = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)([packed[i] for i in range(3)])
    report = check_batch(flat, vocab_size=100, eos_token_id=EOS)
    quiet(report)
    assert report.counts["segments"] == sum(len(packed[i]["seq_lengths"]) for i in range(3))
    padded = DataCollatorForLanguageModeling(pad_token_id=0)([{"input_ids": trl_source[i]["input_ids"]} for i in range(3)])
    quiet(check_batch(padded, vocab_size=100, eos_token_id=EOS))
    for options in ({}, {"return_seq_idx": True, "return_flash_attn_kwargs": True}):
        collate = transformers.DataCollatorWithFlattening(**options)
        batch = collate([{"input_ids": trl_source[i]["input_ids"], "labels": trl_source[i]["labels"]} for i in range(5)])
        report = check_batch(batch, eos_token_id=EOS)
        quiet(report)
        assert report.counts["segments"] == 5


def test_our_own_batches_and_blocks_are_quiet() -> None:
    import cloison

    blocks = cloison.pack_samples([Sample(ids, labels) for row in CHAT for ids, labels in row], capacity=10)
    report = check(blocks, eos_token_id=EOS)
    quiet(report)
    assert report.counts["segments"] == 6 and "cloison" in report.convention
    for kernel in (None, "flash"):
        quiet(check_batch(cloison.collate(blocks, kernel=kernel), eos_token_id=EOS))
    padded = cloison.forms.hf.rows(blocks)
    batch = check_batch(padded, seq_lengths=[block.segments.seq_lengths for block in blocks], eos_token_id=EOS)
    quiet(batch)
    assert batch.counts["segments"] == 6
