"""The command line: what it prints, its exit statuses, and that it is thin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

import cloison
from cloison import cli
from tests.packing.corpus import token_records, write_lines

TOKENIZER = str(Path(cloison.__file__).parent / "story" / "tokenizer")


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """A small file of token ids."""
    return write_lines(tmp_path / "ids.jsonl", token_records(40, 3))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_pack_ends_on_a_summary(
    ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no line is wrapped, however long the folder's name
    status, out, err = run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "64", "--carry", "source")
    assert (status, err) == (0, "")
    lines = [line.strip() for line in out.replace(str(tmp_path), "DIR").splitlines()]
    kept = [line for line in lines if not line.startswith(("logical hash", "read "))]
    assert kept == snapshot(
        [
            "packed DIR/out",
            "blocks        13 of 64 tokens, in 1 file",
            "segments      40",
            "utilization   97.84% (one sample a row, padded: 31.80%)",
            "lower bound   13 blocks, proven; 0.00% above it",
            "mixed         0.21 of the variance of log length lies between blocks (at random: 0.31)",
            "samples       40 read, 40 packed",
            "lost          0 tokens of 814, 0.00%",
            "trained       417 tokens, 51.23% of the tokens (train_on=auto)",
            "given: 417 tokens, 0 terminators",
            "carried       source, one entry a segment",
        ]
    )


def test_json_says_the_same(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "64", "--json")
    plain = json.loads(out)
    packed = cloison.open(tmp_path / "out")
    assert status == 0
    assert plain["num_blocks"] == len(packed)
    assert plain["logical_hash"] == packed.manifest.logical_hash


def test_an_overlong_sample_is_status_2_with_the_three_parts(
    ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "16")
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    asked, found, remedy = err.splitlines()
    assert asked == "cloison pack: every sample must fit a block: capacity is 16."
    assert "samples are longer" in found
    assert remedy.startswith("Pass --overflow split,")
    status, out, _ = run(capsys, *words, "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "OverlongError"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pack", "nowhere.jsonl", "--out", "x", "--capacity", "8"), "nowhere.jsonl"),
        (("pack", "a.jsonl", "--capacity", "8"), "--out"),
        (("pack", "a.jsonl", "--out", "x"), "capacity"),
        (("pack", "a.jsonl", "--out", "x", "--capacity", "0"), "capacity"),
        (("pack", "a.jsonl", "--out", "x", "--capacity", "8", "--columns", "messages"), "NAME=VALUE"),
        (("pack", "a.jsonl", "--out", "x", "--capacity", "8", "--address", "head:6379"), "Pass --engine ray, or no address."),
        (("pack", "a.jsonl", "--dry-run", "--capacity", "8", "--workers", "0"), "workers is a number of processes"),
        (("show", "nowhere"), "must be a packed data set"),
        (("unpack", "nowhere", "x.jsonl"), "must be a packed data set"),
        (("unpack", "nowhere", "-"), "Name a file"),
    ],
)
def test_wrong_use_is_status_2(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert said in err


def test_a_spec_file_lies_below_the_options(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(cloison.PackSpec(64, seed=7, policy="best_fit").to_json())
    status, _, _ = run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--spec", str(spec), "--seed", "9")
    assert status == 0
    made = cloison.open(tmp_path / "out").spec
    assert (made.capacity, made.seed, made.policy) == (64, 9, "best_fit")
    spec.write_text('{"capacity": 8, "sneed": 1}')
    status, _, err = run(capsys, "pack", str(ids), "--out", str(tmp_path / "b"), "--spec", str(spec))
    assert status == 2
    assert "no field 'sneed'" in err


def test_a_dry_run_writes_nothing(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    status, out, _ = run(capsys, "pack", str(ids), "--dry-run", "--capacity", "64", "--json")
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "64")
    assert json.loads(out)["num_blocks"] == len(cloison.open(tmp_path / "out"))


def test_standard_input_is_the_same_as_the_file(ids: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "cloison.cli", "pack", "-", "--out", str(tmp_path / "piped"), "--capacity", "64"]
    done = subprocess.run(words, stdin=ids.open("rb"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "progress is for terminals"
    by_file = cloison.pack(ids, tmp_path / "file", cloison.PackSpec(64), tokens=tmp_path / "other")
    assert cloison.open(tmp_path / "piped") == by_file
    assert not list((tmp_path / "tokens").glob("stdin*"))


def test_unpack_gives_lines_in_source_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = token_records(30, 5)
    source = write_lines(tmp_path / "ids.jsonl", records)
    words = ["pack", str(source), "--out", str(tmp_path / "out"), "--capacity", "24", "--overflow", "split", "--split-prompts"]
    assert run(capsys, *words, "--carry", "source", "--train-on", "all")[0] == 0
    status, out, _ = run(capsys, "unpack", str(tmp_path / "out"), str(tmp_path / "back.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "back.jsonl").read_text().splitlines()]
    assert status == 0
    assert out.startswith("30 samples")
    assert [line["input_ids"] for line in lines] == [record["input_ids"] for record in records]
    assert [line["source"] for line in lines] == [record["source"] for record in records]
    assert [line["sample_id"] for line in lines] == list(range(30))


def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, *words: str) -> str:
    messages = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": content}]
    source = write_lines(tmp_path / "chat.jsonl", [{"messages": messages}])
    packing = ("pack", str(source), "--out", str(tmp_path / "out"), "--capacity", "96", "--tokenizer", TOKENIZER)
    assert run(capsys, *packing)[0] == 0
    status, out, _ = run(capsys, "show", str(tmp_path / "out"), *words)
    assert status == 0
    return out


def test_show_marks_what_is_trained_on_real_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(tmp_path, capsys, "a fine day")
    assert "hello there" in out
    trained = out[out.index("⟦", out.index("segment 0")) + 1 : out.rindex("⟧")]
    assert trained.startswith("a fine day")
    assert "hello" not in trained
    assert "padding:" in out


def test_show_without_a_tokenizer_shows_ids_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], ids: Path) -> None:
    assert run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "64")[0] == 0
    status, out, _ = run(capsys, "show", str(tmp_path / "out"), "--block", "-1")
    block = cloison.open(tmp_path / "out")[-1]
    assert status == 0
    assert f"⟨{block.input_ids[0]}⟩" in out
    assert "pass --tokenizer" in out


def test_show_refuses_a_block_that_is_not_there(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "64")
    status, _, err = run(capsys, "show", str(tmp_path / "out"), "--block", "999")
    assert status == 2
    assert "--block 999 must be a block" in err


def test_show_says_of_an_empty_data_set_why_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": []}\n')
    run(capsys, "pack", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"), "--capacity", "8")
    status, _, err = run(capsys, "show", str(tmp_path / "out"))
    assert status == 2 and "--block" not in err
    assert "has none: 1 records were read (1 empty)" in err


def test_help_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    from cloison.planning import POLICIES

    for name in ("pack", "plan"):
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        said = capsys.readouterr().out
        assert all(policy in said for policy in POLICIES)


def test_the_bare_command_shows_its_help_as_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert err.startswith("usage: cloison") and all(f"  {name} " in err for name in cli.COMMANDS)


def test_columns_are_heeded_where_there_is_no_terminal(
    ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "pack", str(ids), "--out", str(tmp_path / "out"), "--capacity", "64")
    for columns, width in (("50", 50), ("80", 80), ("200", 200), ("", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        longest = max(map(len, run(capsys, "show", str(tmp_path / "out"))[1].splitlines()))
        assert width - 12 < longest <= width, columns


def test_every_command_has_a_module_and_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import import_module

    for name, (module, _) in cli.COMMANDS.items():
        found = import_module(module)
        assert callable(found.add_arguments), name
        assert callable(found.run), name
        with pytest.raises(SystemExit) as left:
            cli.main([name, "--help"])
        assert left.value.code == 0
        assert f"usage: cloison {name}" in capsys.readouterr().out


def test_help_is_instant_in_what_it_loads() -> None:
    script = "import sys; from cloison.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[0] for name in out.splitlines()[-1].split()}
    assert not loaded & {"pyarrow", "numba", "tokenizers", "rich", "torch", "jinja2"}


def test_nothing_is_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["nonsense"])
    assert left.value.code == 2
    capsys.readouterr()


def test_ctrl_c_is_status_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from cloison.view import show_command

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(show_command, "run", interrupted)
    status, _, err = run(capsys, "show", "x")
    assert status == 130
    assert "Run the same command again" in err


def test_wrap_says_what_is_longer_than_a_block_apart_from_what_its_end_cuts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"input_ids": [1] * length}) + "\n" for length in (6, 20, 5, 2, 9, 3)))
    words = ("pack", str(source), "--out", str(tmp_path / "out"), "--capacity", "8", "--policy", "wrap", "--order", "input")
    status, out, _ = run(capsys, *words)
    said = " ".join(out.split())
    assert status == 0
    assert "2 longer than a block, split (sample 1, 4)" in said  # 6 20 5 2 9 3 end at 6 26 31 33 42 45
    assert "1 that fit a block, cut where one ends (sample 3)" in said
    assert "5 further pieces of samples that are cut (sample 1, 1, 1, 3, 4)" in said
