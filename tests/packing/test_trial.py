"""A trial says what the job then does: exactly where all is read, closely where a sample is, and nothing stays."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from cloison import PackSpec, pack
from cloison.errors import InputError, OverlongError, RecordError
from cloison.packing.trial import try_job
from cloison.view.trial_summary import trial_facts, trial_summary
from tests.packing.corpus import token_records, write_lines


def test_what_is_read_whole_is_told_exactly(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    spec = PackSpec(256, carry=("source",))
    trial = try_job([str(corpus)], spec, tokenizer=tokenizer)
    packed = pack(str(corpus), tmp_path / "out", spec, tokenizer=tokenizer)
    manifest = packed.manifest
    assert trial.exact
    assert (trial.num_chunks, trial.sampled_chunks) == (6, 6)
    assert (trial.num_blocks, trial.num_shards) == (manifest.num_blocks, len(manifest.shards))
    assert (trial.num_samples, trial.num_tokens) == (manifest.num_segments, manifest.num_tokens)
    assert trial.block_bytes == sum(shard.size_bytes for shard in manifest.shards)
    assert trial.token_bytes == sum(path.stat().st_size for path in tmp_path.glob("tokens/*/chunk-*.arrow"))
    assert trial_facts(trial)["ledger"] == manifest.ledger.to_dict()


def test_a_sample_comes_close_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(40):
        write_lines(source / f"{number:02}.jsonl", token_records(100 + 10 * number, number))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = sorted(path for path in tmp_path.rglob("*"))
    trial = try_job([str(source)], PackSpec(64), tokens=tmp_path / "tokens", workers=64, at_once=2)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    packed = pack(str(source), tmp_path / "out", PackSpec(64))
    assert (trial.exact, trial.num_chunks, trial.sampled_chunks) == (False, 40, 8)
    assert trial.num_blocks == pytest.approx(len(packed), rel=0.05)
    assert trial.num_tokens == pytest.approx(packed.manifest.num_tokens, rel=0.05)
    assert trial.token_bytes == pytest.approx(sum(p.stat().st_size for p in tmp_path.glob("tokens/*/chunk-*.arrow")), rel=0.1)
    assert trial.workers == 64
    assert 0 < trial.write_s < trial.seconds
    assert "ledger" not in trial_facts(trial), "nobody knows what is lost of what was not read"
    assert trial_facts(trial)["exact"] is False


def test_tokens_that_are_there_are_planned_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        write_lines(source / f"{number:02}.jsonl", token_records(30, number))
    packed = pack(str(source), tmp_path / "out", PackSpec(64))
    trial = try_job([str(source)], PackSpec(128), tokens=tmp_path / "tokens")
    assert (trial.exact, trial.sampled_chunks, trial.token_bytes, trial.tokenise_s) == (True, 0, 0, 0)
    assert trial.num_tokens == packed.manifest.num_tokens
    assert trial.num_blocks == len(pack(str(source), tmp_path / "other", PackSpec(128)))
    changed = source / "03.jsonl"
    text = changed.read_text()
    changed.write_text(text[:20].replace("1", "2").replace("3", "4") + text[20:])  # as long, another content
    os.utime(changed)
    assert not try_job([str(source)], PackSpec(128), tokens=tmp_path / "tokens").exact


def test_errors_are_those_of_the_job(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*token_records(5, 0), {"input_ids": "no"}, {"input_ids": list(range(90))}])
    with pytest.raises(RecordError, match="line 6"):
        try_job([str(source)], PackSpec(64))
    with pytest.raises(OverlongError, match="capacity"):
        try_job([str(source)], PackSpec(64), on_error="skip")
    with pytest.raises(InputError, match="polixy"):
        try_job([str(tmp_path / "nothing")], PackSpec(64, policy="polixy"))
    assert try_job([str(source)], PackSpec(64, overflow="drop"), on_error="skip").num_samples == 5


def test_the_summary_says_what_would_be_done(corpus: Path, tokenizer: str) -> None:
    from rich.console import Console

    trial = try_job([str(corpus)], PackSpec(256), tokenizer=tokenizer, workers=3)
    console = Console(width=120, file=open(os.devnull, "w"), record=True)  # noqa: SIM115 (as long as the process)
    console.print(trial_summary(trial))
    said = console.export_text()
    assert "dry run: nothing was written" in said
    assert f"6 chunks on 3 workers: {trial.num_tokens:,} tokens" in said
    assert f"{trial.num_blocks:,} blocks of 256 tokens in 1 file" in said
    assert "as timed on this machine" in said
    assert "lower bound" in said
