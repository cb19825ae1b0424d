"""cloison plan: the table and its JSON say what the plans are; refusals are rows; bad files are named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import cloison
from cloison.cli import main
from cloison.view.plan_table import length_summary, plan_rows, plan_table


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.npy"
    np.save(path, np.random.default_rng(0).lognormal(5, 1, 3000).astype(np.int32).clip(1, 2000))
    return path


def test_json_holds_what_the_plans_are(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(lengths), "--capacity", "2048,4096", "--policy", "look_ahead,best_fit", "--json"]
    assert main([*words, "--blocks-per-step", "16"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["capacity"], row["policy"]) for row in said["plans"]] == [
        (2048, "look_ahead"),
        (2048, "best_fit"),
        (4096, "look_ahead"),
        (4096, "best_fit"),
    ]
    plan = cloison.plan(np.load(lengths), 2048)
    row = said["plans"][0]
    assert (row["num_blocks"], row["lower_bound"], row["utilization"]) == (len(plan), plan.lower_bound, plan.utilization)
    assert row["steps_per_epoch"] == -(-len(plan) // 16) and row["blocks_per_step"] == 16
    assert row["first_blocks"][0] == plan[0][2].tolist()
    assert said["lengths"]["samples"] == sum(said["lengths"]["counts"]) == 3000


def test_the_table_shows_each_policy(
    lengths: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", str(lengths), "--capacity", "2048", "--policy", "all"]) == 0
    out = capsys.readouterr().out
    for word in ("look_ahead", "best_fit", "optimal", "auto", "mixed", "in_order", "wrap", "3,000 samples", "█"):
        assert word in out


def test_too_long_samples_are_a_row_and_no_crash(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(lengths), "--capacity", "256,2048", "--policy", "best_fit"]) == 0
    assert "best_fit at 256 is refused: Sample" in capsys.readouterr().out
    rows = plan_rows(np.load(lengths), [256], ["best_fit"], overflow="split")
    assert rows[0]["samples_cut"] == (np.load(lengths) > 256).sum() and rows[0]["lost_tokens"] == 0


def test_what_it_refuses(tmp_path: Path, lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.npy").write_bytes(b"no array")
    np.save(tmp_path / "floats.npy", np.ones(3))
    head = (tmp_path / "floats.npy").read_bytes()
    (tmp_path / "head.npy").write_bytes(head.replace(b"'fortran_order'", b"'fortran\x00order'"))  # numpy parses it as Python
    for words in (
        [str(tmp_path / "bad.npy"), "--capacity", "8"],
        [str(tmp_path / "head.npy"), "--capacity", "8"],
        [str(tmp_path / "none.npy"), "--capacity", "8"],
        [str(tmp_path / "floats.npy"), "--capacity", "8"],
        [str(lengths), "--capacity", "eight"],
        [str(lengths), "--capacity", "0"],
        [str(lengths), "--capacity", "4096", "--policy", "worst"],
    ):
        assert main(["plan", *words]) == 2
        assert "cloison plan: " in capsys.readouterr().err


def test_records_are_tokenised_for_their_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps({"input_ids": list(range(n))}) + "\n" for n in (3, 5, 8)), encoding="utf-8")
    assert main(["plan", str(path), "--capacity", "8", "--policy", "best_fit", "--workers", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plans"][0]["num_blocks"] == 2 and said["lengths"]["tokens"] == 16
    assert not list(tmp_path.glob("tokens*/")), "nothing is written beside the data"


def test_no_lengths_at_all() -> None:
    assert length_summary(np.zeros(0, np.int32))["samples"] == 0
    assert plan_rows(np.zeros(0, np.int32), [8], ["best_fit"])[0]["num_blocks"] == 0


def test_a_narrow_terminal_cuts_no_number(lengths: Path) -> None:
    rows = plan_rows(np.load(lengths), [2048], ["look_ahead", "best_fit"])
    table = plan_table(length_summary(np.load(lengths)), rows)
    for width in (80, 120):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(table)
        out = console.export_text()
        assert "…" not in out and max(map(len, out.splitlines())) <= width
        for head in ("capacity", "look_ahead", "at random", "samples/step", f"{rows[0]['utilization']:.2%}"):
            assert head in out


def test_capacities_and_policies_given_twice_all_count(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = ("--capacity", "2048", "--capacity", "4096", "--policy", "best_fit", "--policy", "wrap", "--json")
    assert main(["plan", str(lengths), *twice]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [(row["capacity"], row["policy"]) for row in plans] == [
        (capacity, policy) for capacity in (2048, 4096) for policy in ("best_fit", "wrap")
    ]


def test_one_reason_for_several_policies_is_said_once(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(lengths), "--capacity", "256"]) == 2, "no plan at all is no success"
    out = capsys.readouterr().out
    assert out.count("refused") == 1 and "look_ahead, best_fit at 256 are refused: Sample" in out
    assert "samples/step" not in out


def test_seconds_count_no_compiling(lengths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a policy compiles it: it is one of a few samples, whose time is shown nowhere."""
    calls: list[tuple[str, int]] = []

    def watched(given: np.ndarray, capacity: int, *, policy: str, **options: object) -> cloison.Plan:
        calls.append((policy, given.size))
        return cloison.plan(given, capacity, policy=policy, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("cloison.view.plan_table.plan", watched)
    rows = plan_rows(np.load(lengths), [2048, 4096], ["best_fit", "in_order"])
    first = [("best_fit", 1024), ("best_fit", 3000), ("in_order", 1024), ("in_order", 3000)]
    assert calls == [*first, ("best_fit", 3000), ("in_order", 3000)]
    assert [row["samples_in"] for row in rows] == [3000] * 4


def test_the_pictures_are_of_the_first_plan_and_the_table_comes_after(
    lengths: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", str(lengths), "--capacity", "256,2048", "--policy", "best_fit,in_order"]) == 0
    lines = capsys.readouterr().out.splitlines()
    strips = [number for number, line in enumerate(lines) if line[:1] in ("█", "▒")]
    assert len(strips) == 4 and lines[strips[0] - 1].startswith("best_fit at 2,048: the first blocks")
    assert strips[-1] < next(number for number, line in enumerate(lines) if line.startswith("capacity"))


def test_a_refusal_says_where_the_sample_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # wide enough for any folder's name
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [1] * n}) + "\n" for n in (3, 20)))
    assert main(["plan", str(path), "--capacity", "8", "--workers", "1"]) == 2
    said = capsys.readouterr().out.replace("\n", " ")
    assert "sample 1 is" in said and "a.jsonl, line 2." in said
