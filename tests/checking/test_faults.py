"""Every fault that check knows, planted in rows that are right without it: found, named, placed, counted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import check, check_batch
from cloison.checking.kinds import KINDS
from cloison.errors import FindingsError, InputError
from cloison.segments import IGNORE
from tests.checking.right_rows import EOS, Row, rows

KNOWN: dict[str, Any] = {"capacity": 10, "vocab_size": 100, "eos_token_id": EOS}
Rows = list[Row]
Fault = tuple[str, Callable[[Rows], Any], dict[str, Any], list[str]]


def _shift(name: str) -> Callable[[Rows], None]:
    def plant(listed: Rows) -> None:
        for row in listed:
            row[name] = [*row[name][1:], IGNORE]

    return plant


def _roll(name: str, wrap: bool) -> Callable[[Rows], None]:
    def plant(listed: Rows) -> None:
        for row in listed:
            row[name] = [*row[name][1:], row[name][0] if wrap else IGNORE]

    return plant


def _set(row: int, name: str, place: int, value: Any) -> Callable[[Rows], None]:
    def plant(listed: Rows) -> None:
        listed[row][name][place] = value

    return plant


def _every(name: str, make: Callable[[Row], Any]) -> Callable[[Rows], None]:
    def plant(listed: Rows) -> None:
        for row in listed:
            row[name] = make(row)

    return plant


def _never_stop(listed: Rows) -> None:
    for row in listed:
        row["labels"] = [IGNORE if label == EOS else label for label in row["labels"]]


FAULTS: dict[str, Fault] = {
    # boundaries
    "lengths too short": ("trl", _set(0, "seq_lengths", 1, 2), {}, ["lengths_disagree"]),
    "lengths too long": ("trl", _set(0, "seq_lengths", 1, 4), {}, ["lengths_disagree"]),
    "a negative length": ("trl", _every("seq_lengths", lambda row: [*row["seq_lengths"], -1, 1]), {}, ["lengths_disagree"]),
    "starts that do not begin with 0": ("megatron_bridge", _set(0, "seq_start_id", 0, 1), {}, ["lengths_disagree"]),
    "starts beyond the row": ("megatron_bridge", _set(0, "seq_start_id", 1, 99), {}, ["lengths_disagree"]),
    "offsets that fall": ("cu_seqlens", _set(0, "cu_seqlens", 1, 9), {}, ["lengths_disagree"]),
    "offsets after a sentinel": ("cu_seqlens", _set(0, "cu_seqlens", 4, 8), {}, ["lengths_disagree"]),
    "offsets that end early": (
        "cu_seqlens",
        lambda listed: listed[1].update(cu_seqlens=[0, 6]),
        {},
        ["padding_trained"],
    ),
    "labels of another length": ("trl", lambda listed: listed[0]["labels"].pop(), {}, ["columns_disagree"]),
    "numbers that come back": ("axolotl", _set(0, "attention_mask", 6, 1), {}, ["interleaved_segments"]),
    "padding inside a row": ("mds", _set(0, "sequence_id", 2, -1), {}, ["interleaved_segments"]),
    "positions and lengths differ": (
        "automodel",
        _every("position_ids", lambda row: [0, 0, *range(1, len(row["input_ids"]) - 1)]),
        {},
        ["boundaries_disagree", "positions_not_restarted"],
    ),
    "positions run on": (
        "automodel",
        _every("position_ids", lambda row: list(range(len(row["input_ids"])))),
        {},
        ["positions_not_restarted"],
    ),
    "numbers and lengths differ": (
        "trl",
        _every("segment_ids", lambda row: [1] * len(row["input_ids"])),
        {},
        ["boundaries_disagree"],
    ),
    "a mask of ones": (
        "positions",
        _every("attention_mask", lambda row: [1] * len(row["input_ids"])),
        {},
        ["mask_hides_boundaries"],
    ),
    "a hole in the mask": (
        "unpacked",
        _set(1, "attention_mask", 3, 0),
        {},
        ["mask_inside_segment"],
    ),
    "too small a capacity": ("trl", lambda listed: None, {"capacity": 7}, ["over_capacity"]),
    "too small a capacity, counted in targets": ("megatron_bridge", lambda listed: None, {"capacity": 5}, ["over_capacity"]),
    "packed without boundaries": ("trl", lambda listed: [row.pop("seq_lengths") for row in listed], {}, ["no_boundaries"]),
    # targets
    "shifted twice": ("positions", _shift("labels"), {}, ["shifted_twice"]),
    "shifted twice with lengths": ("trl", _shift("labels"), {}, ["shifted_twice"]),
    "shifted twice with numbers": ("axolotl", _shift("labels"), {}, ["shifted_twice"]),
    "rolled around": (
        "trl",
        lambda listed: [row.update(labels=[*row["input_ids"][1:], row["input_ids"][0]]) for row in listed],
        {},
        ["shifted_twice"],
    ),
    "never shifted": ("grain", _every("targets", lambda row: [IGNORE, *row["targets"][:-1]]), {}, ["not_shifted"]),
    "said to be shifted": ("trl", lambda listed: None, {"labels": "shifted"}, ["not_shifted"]),
    "a wrong token": ("trl", _set(1, "labels", 4, 77), {}, ["wrong_token"]),
    "a boundary": ("positions", _set(0, "labels", 5, 21), {}, ["boundary_target"]),
    "a boundary, shifted": ("grain", _set(0, "targets", 4, 21), {}, ["boundary_target"]),
    "a boundary, by number": ("axolotl", _set(0, "labels", 5, 21), {}, ["boundary_target"]),
    "a boundary, by mask": ("olmo_core", _set(0, "label_mask", 5, 1), {}, ["boundary_target"]),
    "a mask that was not rolled": (
        "megatron_bridge",
        _every("loss_mask", lambda row: [0, *row["loss_mask"][:-1]]),
        {},
        ["mask_not_rolled"],
    ),
    "a target past the row": ("automodel", _set(0, "labels", 7, 11), {}, ["target_past_row"]),
    "padding trained": ("axolotl", _set(0, "labels", 9, EOS), {}, ["padding_trained"]),
    "padding trained, shifted": ("grain", _set(0, "targets", 8, 0), {}, ["padding_trained"]),
    "a prompt trained": (
        "trl",
        _every("completion_mask", lambda row: [0] * len(row["input_ids"])),
        {},
        ["prompt_trained"],
    ),
    "an answer lost": (
        "trl",
        lambda listed: listed[0].update(labels=[IGNORE] * 5 + listed[0]["labels"][5:]),
        {},
        ["segments_without_target"],
    ),
    "a row without targets": (
        "trl",
        lambda listed: listed[1].update(labels=[IGNORE] * 7),
        {},
        ["nothing_trained", "segments_without_target"],
    ),
    "no target at all": (
        "trl",
        _every("labels", lambda row: [IGNORE] * len(row["labels"])),
        {},
        ["end_never_trained", "no_target_at_all", "nothing_trained", "segments_without_target"],
    ),
    "never stops": ("trl", _never_stop, {}, ["end_never_trained", "segments_without_target"]),
    "never stops, a guess": (
        "trl",
        lambda listed: (_never_stop(listed), listed.pop(), listed.append(rows("trl")[0]), _never_stop(listed)),
        {"eos_token_id": None},
        ["last_token_never_trained"],
    ),
    "no labels and positions": ("positions", lambda listed: [row.pop("labels") for row in listed], {}, ["implied_labels"]),
    # values
    "ids as floats": ("trl", _every("input_ids", lambda row: np.array(row["input_ids"], np.float32)), {}, ["not_integer"]),
    "ids as Python floats": ("axolotl", _every("input_ids", lambda row: [*map(float, row["input_ids"])]), {}, ["not_integer"]),
    "labels as floats": ("trl", _every("labels", lambda row: [float(n) for n in row["labels"]]), {}, ["not_integer"]),
    "targets as floats": ("grain", _every("targets", lambda row: np.array(row["targets"], np.float64)), {}, ["not_integer"]),
    "positions as floats": (
        "positions",
        _every("position_ids", lambda row: [float(n) for n in row["position_ids"]]),
        {},
        ["not_integer"],
    ),
    "lengths as floats": ("trl", _every("seq_lengths", lambda row: np.array(row["seq_lengths"], float)), {}, ["not_integer"]),
    "lengths with fractions": ("trl", _set(0, "seq_lengths", 1, 3.5), {}, ["not_integer"]),
    "flags for ids": (
        "trl",
        lambda listed: [row.update(input_ids=[True] * len(row["input_ids"]), labels=[-100, *[1] * (len(row["labels"]) - 1)])
                        for row in listed],
        {},
        ["not_integer"],
    ),
    "the place of an image": (
        "trl",
        lambda listed: [listed[1][name].__setitem__(3, -200) for name in ("input_ids", "labels")],
        {},
        ["ids_placeholder"],
    ),
    "nothing at all": ("trl", lambda listed: listed.clear(), {}, ["nothing_to_check"]),
    "rows of nothing": (
        "trl",
        _every("input_ids", lambda row: row.update(labels=[], seq_lengths=[]) or []),
        {},
        ["nothing_to_check", "nothing_trained"],
    ),
    "a negative id": ("megatron_bridge", _set(0, "input_ids", 1, -5), {}, ["ids_negative"]),
    "an id outside": ("megatron_bridge", _set(2, "input_ids", 0, 100), {}, ["ids_out_of_vocabulary"]),
    "a weight that is no number": (
        "trl",
        _every("loss_weights", lambda row: [1.0, float("nan"), *[1.0] * (len(row["input_ids"]) - 2)]),
        {},
        ["weights_not_finite"],
    ),
    "negative weights": ("trl", _every("loss_weights", lambda row: [-1.0] * len(row["input_ids"])), {}, ["weights_negative"]),
    "weights that are numbers of segments": (
        "axolotl",
        _every("loss_weights", lambda row: [float(n) for n in row["attention_mask"]]),
        {},
        ["weights_are_segment_ids"],
    ),
    "the beginning twice": (
        "trl",
        lambda listed: listed[1].update(input_ids=[1, 1, *listed[1]["input_ids"][2:]]),
        {"bos_token_id": 1},
        ["double_bos"],
    ),
    # samples
    "a sample twice": (
        "trl",
        lambda listed: [row.update(sample_ids=[7] * len(row["seq_lengths"])) for row in listed],
        {},
        ["sample_twice"],
    ),
    "a part twice": (
        "trl",
        lambda listed: [
            row.update(sample_ids=[0] * len(row["seq_lengths"]), starts=[0] * len(row["seq_lengths"])) for row in listed[:1]
        ] + [listed.pop(), listed.pop()],
        {},
        ["sample_twice"],
    ),
    "a part missing": (
        "trl",
        lambda listed: [listed.pop(), listed.pop(), listed[0].update(sample_ids=[0, 0], starts=[0, 9])],
        {},
        ["sample_parts_missing"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named_and_nothing_else_is(name: str) -> None:
    system, plant, options, kinds = FAULTS[name]
    right = check(rows(system), **KNOWN)
    assert not right.kinds("error") and not right.kinds("warning")
    listed = rows(system)
    plant(listed)
    report = check(listed, **(KNOWN | options))
    assert sorted(report.kinds("error") + report.kinds("warning")) == sorted(kinds), str(report)
    for finding in report.findings:
        assert finding.severity == "note" or finding.fix
        assert "{" not in finding.message and finding.message.count("None") == 0
        assert finding.where["count"] >= 1
    assert report.ok is not bool(report.kinds("error"))
    if report.kinds("error"):
        with pytest.raises(FindingsError, match=report.kinds("error")[0]):
            report.raise_for_findings()


SOURCE_ONLY = {"file_empty", "file_changed", "manifest_disagrees", "ledger_disagrees", "sample_missing"}
BATCH_ONLY = {"mask_crosses", "mask_too_narrow", "mask_is_bool", "cache_on", "max_length_wrong", "padding_as_segments"}
NOTES = {"eos_scan_differs", "first_labels_masked_later"}


def test_every_kind_has_a_planted_fault() -> None:
    planted = {kind for _, _, _, kinds in FAULTS.values() for kind in kinds}
    assert planted | SOURCE_ONLY | BATCH_ONLY | NOTES == set(KINDS)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_counts_and_first_places_are_those_of_a_slow_scan(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.lists(st.integers(2, 6), min_size=1, max_size=4), min_size=1, max_size=4))
    listed: Rows = []
    edges, wrong = [], []
    for index, row in enumerate(lengths):
        total = sum(row)
        ids = data.draw(st.lists(st.integers(10, 99), min_size=total, max_size=total))
        labels, start = list(ids), 0
        for number, length in enumerate(row):
            if number and data.draw(st.booleans()):
                edges.append((index, number, start))
            else:
                labels[start] = IGNORE
            start += length
        # One wrong label a row at most: many would be another fault.
        if data.draw(st.booleans()) and total > 12:
            place = row[0] - 1
            labels[place] = ids[place] + 1000
            wrong.append((index, 0, place))
        positions = [place for length in row for place in range(length)]
        listed.append({"input_ids": ids, "labels": labels, "position_ids": positions})
    found = {finding.kind: finding.where for finding in check(listed).findings}
    for kind, places in (("boundary_target", edges), ("wrong_token", wrong)):
        if not places:
            assert kind not in found
            continue
        where = found[kind]
        assert (where["count"], where["row"], where["segment"], where["position"]) == (len(places), *places[0])


def test_pieces_do_not_change_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = rows("positions") * 5
    for index in (4, 10):
        listed[index] = {**listed[index], "labels": [*listed[index]["input_ids"]]}
    whole = check(listed, **KNOWN).to_dict()
    from cloison.checking import sources

    monkeypatch.setattr(sources, "_PIECE_TOKENS", 9)
    assert check(listed, **KNOWN).to_dict() == whole


# ---------------------------------------------------------------------- what people read


def test_the_table_says_what_where_why_and_how_to_mend() -> None:
    listed = rows("positions")
    listed[0]["labels"][5] = 21
    assert str(check(listed, **KNOWN)) == "\n".join(
        (
            "rows: 3 rows, 6 segments, 23 tokens, 14 targets",
            "  utilization 76.67%, of targets 46.67%; longest segment 7",
            "  read as Hugging Face rows: position_ids that restart are the boundaries, the model shifts labels over the whole "
            "row, and nothing masks the label of a first token.",
            "  boundaries from position_ids",
            "",
            "ERROR   boundary_target",
            "        1 of 3 first tokens of a segment are targets (first: row 0, segment 1, position 5). The last token of one "
            "sample is trained to predict the first token of the next, which has nothing to do with it.",
            "        Fix: Set labels to -100 at the first token of every segment.",
            "not checked: samples twice or missing: there are no sample_ids",
            "1 error",
        )
    )


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        ({"input_ids": [1]}, "check takes rows, or a path"),
        (3, "check takes a path, a dataset, or an iterable"),
        ([{"text": "hello"}], "packed rows need input_ids"),
        ([3], "every row must be a dict"),
        ([{"input_ids": "abc"}], "input_ids must be a flat list of numbers"),
        ([{"input_ids": [[1]]}], "input_ids must be a flat list of numbers"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], "every row must have the column 'labels', or none"),
        ([{"input_ids": [1], "tokens": [1]}], "one column must say input_ids"),
    ],
)
def test_what_is_no_packed_data_is_an_error_and_no_finding(data: Any, asked: str) -> None:
    with pytest.raises(InputError) as caught:
        check(data)
    assert asked in caught.value.asked and caught.value.remedy


def test_wrong_arguments_are_errors() -> None:
    for options in ({"capacity": 0}, {"convention": "trll"}, {"labels": "rolled"}):
        with pytest.raises(InputError):
            check(rows("trl"), **options)


def test_to_have_looked_at_nothing_is_no_pass(tmp_path: Path) -> None:
    """Nothing, what yields nothing, a file without rows, rows without tokens: each is said and is not ok."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    empty = pa.table({"input_ids": pa.array([], pa.list_(pa.int32()))})
    pq.write_table(empty, tmp_path / "a.parquet")
    (tmp_path / "rows.jsonl").write_text("")
    used = iter(rows("trl"))
    list(used)
    for data in ([], (), iter([]), used, empty, tmp_path / "a.parquet", tmp_path / "rows.jsonl", [{"input_ids": []}]):
        report = check(data)
        assert report.kinds() == ["nothing_to_check"] and not report.ok, data
        assert "not one token" in str(report) and "ok" not in str(report).splitlines()
        with pytest.raises(FindingsError, match="nothing_to_check"):
            report.raise_for_findings()
    masked = {"input_ids": [1, 2], "attention_mask": [0, 0]}
    assert check([masked]).kinds("error") == ["nothing_to_check"]
    # One empty file beside full ones is not all, and is said.
    pq.write_table(pa.Table.from_pylist(rows("trl")), tmp_path / "b.parquet")
    (tmp_path / "rows.jsonl").unlink()
    report = check(tmp_path, **KNOWN)
    assert report.ok and report.kinds("warning") == ["file_empty"] and report.findings[0].where["file"] == "a.parquet"


def test_floats_are_found_in_files_of_every_kind(tmp_path: Path) -> None:
    """A Parquet of doubles, a JSON of floats, an Arrow table of half floats: the same finding from each."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    right = rows("trl")
    floats = [row | {"input_ids": [float(n) for n in row["input_ids"]]} for row in right]
    pq.write_table(pa.Table.from_pylist(floats), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, floats)))
    halves = pa.table({"input_ids": pa.array([np.array(r["input_ids"], np.float16) for r in right], pa.list_(pa.float16())),
                       "labels": [r["labels"] for r in right], "seq_lengths": [r["seq_lengths"] for r in right]})  # fmt: skip
    for data in (tmp_path / "a.parquet", tmp_path / "b.jsonl", halves):
        report = check(data, **KNOWN)
        assert report.kinds("error") == ["not_integer"] and report.findings[0].where["column"] == "input_ids", str(report)
        assert "float" in report.findings[0].where["dtype"]
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        report = check([row | {"input_ids": torch.tensor(row["input_ids"], dtype=dtype)} for row in right], **KNOWN)
        assert report.kinds("error") == ["not_integer"]
    unsigned = [
        row | {"input_ids": np.array(row["input_ids"], np.uint64 if index else np.int64)} for index, row in enumerate(right)
    ]
    assert check(unsigned, **KNOWN).ok  # beside each other numpy would make doubles of these


def test_case_EOS_02(cases: dict[str, dict[str, Any]]) -> None:
    """Right when the end of text is trained though it is the padding's id; found when it was masked by id."""
    case = cases["EOS-02"]
    source, want = case["input"], case["expectation"]
    ids = source["ids"] + [source["pad_id"]] * (source["row_length"] - len(source["ids"]))
    mask = [1] * len(source["ids"]) + [0] * (source["row_length"] - len(source["ids"]))
    row = {"input_ids": ids, "attention_mask": mask}
    right = check([row | {"labels": want["labels_unshifted"]}], eos_token_id=source["eos_id"])
    assert not right.kinds("error") and not right.kinds("warning")
    wrong = check([row | {"labels": want["wrong_if"]["mask_by_pad_id"]}], eos_token_id=source["eos_id"])
    assert wrong.kinds("error") == ["end_never_trained"]


def test_case_LBL_03(cases: dict[str, dict[str, Any]]) -> None:
    """A mask with the index of the tokens, taken for one that was rolled."""
    case = cases["LBL-03"]
    numbers = np.array(case["input"]["segment_ids"])
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    row = {"input_ids": [11, 12, 13, 14, 15, 16], "seq_start_id": starts}
    assert check([row | {"loss_mask": case["expectation"]["predictor_weights"]}]).ok
    assert check([row | {"loss_mask": case["input"]["token_mask"]}]).kinds("error") == ["mask_not_rolled"]


def test_case_LBL_05(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["LBL-05"]
    numbers = case["input"]["target_segment_ids"]
    row = {"input_ids": [5, 6, 7, 8, 9, 0], "labels": [IGNORE, 6, IGNORE, 8, 9, IGNORE], "attention_mask": numbers}
    right = check([row | {"loss_weights": [float(w) for w in case["expectation"]["loss_weights"]]}])
    assert right.ok and not right.kinds("warning")
    assert check([row | {"loss_weights": [float(n) for n in numbers]}]).kinds("error") == ["weights_are_segment_ids"]


def test_case_XATT_09(cases: dict[str, dict[str, Any]]) -> None:
    """A tail whose every position is 0 is a sample a token to kernels that look for zeros."""
    lengths, width = cases["XATT-09"]["input"]["lengths"], cases["XATT-09"]["input"]["capacity"]
    ids = [11, 12, 13, 21, 22] + [cases["XATT-09"]["input"]["pad_id"]] * (width - sum(lengths))
    labels = [IGNORE, 12, 13, IGNORE, 22, *cases["XATT-09"]["expectation"]["labels_pad"]]
    batch = {"input_ids": [ids], "labels": [labels], "use_cache": False}
    right = check_batch(batch | {"position_ids": [[0, 1, 2, 0, 1, 0, 1, 2]]}, seq_lengths=lengths)
    assert right.ok and not right.findings
    zeros = batch | {"position_ids": [[0, 1, 2, 0, 1, 0, 0, 0]]}
    assert check_batch(zeros, seq_lengths=lengths).kinds("warning") == ["padding_as_segments"]
    assert check_batch(zeros).kinds("warning") == ["padding_as_segments"]


def test_case_SSM_04(cases: dict[str, dict[str, Any]]) -> None:
    """Offsets and a mask that states other segments."""
    case = cases["SSM-04"]
    batch = {"input_ids": [[5, 6, 7, 8, 9]], "cu_seqlens": case["input"]["cu_seqlens"]}
    assert check_batch(batch).counts["segments"] == len(case["expectation"]["segments_used"])
    conflict = check_batch(batch | {"segment_ids": [case["input"]["attention_mask"]]})
    assert conflict.kinds("error") == ["boundaries_disagree"]


def test_case_CP_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["CP-02"]
    row = {"input_ids": list(range(8)), "cu_seqlens": case["input"]["cu_seqlens_fixed_size"]}
    report = check([row])
    assert report.ok and report.counts["segments"] == len(case["expectation"]["cu_seqlens"]) - 1


def test_case_XATT_07_and_08_are_one_sample_to_a_batch(cases: dict[str, dict[str, Any]]) -> None:
    late = {"input_ids": [[5, 6, 7, 8]], "position_ids": [cases["XATT-07"]["input"]["position_ids"]]}
    grid = {"input_ids": [[5, 6, 7, 8]], "position_ids": cases["XATT-08"]["input"]["position_ids_3axis"]}
    for batch in (late, grid):
        report = check_batch(batch)
        assert report.counts["segments"] == 1 and not report.findings


def test_a_note_that_needs_no_fix_says_so() -> None:
    """Right chats whose end of turn is the tokenizer's end of text, as those of Qwen."""
    row = {"input_ids": [11, 9, 12, 9, 13, 9], "labels": [-100, 9, 12, 9, -100, 9], "seq_lengths": [4, 2]}
    report = check([row, row], eos_token_id=9)
    assert report.ok and report.kinds("note") == ["eos_scan_differs"] and report.findings[0].fix == ""
    lines = str(report).splitlines()
    at = lines.index("NOTE    eos_scan_differs")
    assert "No fault of the data" in lines[at + 1] and lines[at + 2] == "        No fix needed."
