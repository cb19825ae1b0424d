"""The job from sources to disk: what it writes is what packing in memory gives, the same bytes however it is run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cloison
from cloison import PackSpec, pack, pack_samples, unpack
from cloison.errors import InputError, ManifestError, OverlongError, RecordError, SpecError, StoreError
from cloison.packing import tokens as token_step
from cloison.packing.job import run_job
from cloison.planning import POLICIES
from cloison.segments import IGNORE
from cloison.text.encoder import Encoded, Encoder
from tests.packing.corpus import chats, write_lines

Tree = Callable[[Path], dict[str, str]]


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def samples_of(records: list[dict[str, Any]], tokenizer: str, spec: PackSpec) -> list[cloison.Sample]:
    encoder = Encoder(tokenizer, spec)
    try:
        return [cloison.encode(record, encoder, spec.train_on) for record in records]
    finally:
        encoder.close()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": "best_fit", "seed": 3},
        {"train_on": "last-assistant", "order": "input"},
        {"overflow": "truncate", "max_sample_tokens": 40},
        {"overflow": "split", "split_prompts": True, "max_sample_tokens": 30, "train_on": "all"},
        {"overflow": "split", "split_prompts": True, "max_sample_tokens": 25, "carry": ("source", "score")},
    ],
)
def test_the_job_writes_what_packing_in_memory_gives(
    corpus: Path, tokenizer: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = PackSpec(256, **changes)
    packed = pack(str(corpus), tmp_path / "out", spec, tokenizer=tokenizer)
    fields = {**spec.plan_options(), "on_empty": "drop"}
    blocks = pack_samples(samples_of(records_of(corpus), tokenizer, spec), capacity=256, **fields)
    assert list(packed) == blocks
    assert packed[-1] == blocks[-1]
    assert packed.segments().rows() == [block.segments.rows()[0] for block in blocks]
    packed.verify()
    packed.ledger.verify()


def test_unpack_gives_the_samples_again(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    spec = PackSpec(64, overflow="split", split_prompts=True, carry=("source",))
    packed = pack(str(corpus), tmp_path / "out", spec, tokenizer=tokenizer)
    assert (np.concatenate([block.starts for block in packed]) > 0).any()
    assert unpack(packed) == samples_of(records_of(corpus), tokenizer, spec)


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_writes_the_same_bytes(
    corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree, workers: int
) -> None:
    spec = PackSpec(128, overflow="truncate", carry=("score",))
    for name, count in (("one", 1), ("many", workers)):
        pack(str(corpus), tmp_path / name / "out", spec, tokenizer=tokenizer, workers=count, tokens=tmp_path / name / "tokens")
    assert tree(tmp_path / "one") == tree(tmp_path / "many")


def test_a_tokenizer_as_an_object_gives_the_same_data_set_as_its_path(
    corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree
) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
    by_path = pack(str(corpus), tmp_path / "a", PackSpec(256), tokenizer=tokenizer, tokens=tmp_path / "ta")
    by_object = pack(str(corpus), tmp_path / "b", PackSpec(256), tokenizer=loaded, tokens=tmp_path / "tb", workers=2)
    assert by_path == by_object


def test_the_folder_holds_blocks_and_the_manifest_only(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    pack(str(corpus), tmp_path / "out", PackSpec(256), tokenizer=tokenizer)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["blocks-00000.parquet", "manifest.json"]
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert str(corpus) not in text


def test_columns_have_the_names_and_types_that_trainers_take(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    spec = PackSpec(64, overflow="split", split_prompts=True, carry=("source",))
    pack(str(corpus), tmp_path / "out", spec, tokenizer=tokenizer)
    layout = pq.read_schema(tmp_path / "out" / "blocks-00000.parquet")
    assert {name: str(layout.field(name).type) for name in layout.names} == {
        "input_ids": "list<element: int32>",
        "labels": "list<element: int32>",
        "seq_lengths": "list<element: int32>",
        "sample_ids": "list<element: int64>",
        "starts": "list<element: int32>",
        "first_labels": "list<element: int32>",
        "source": "list<element: string>",
    }
    meta = pq.read_metadata(tmp_path / "out" / "blocks-00000.parquet").row_group(0).column(0)
    assert meta.compression == "ZSTD"
    assert "RLE_DICTIONARY" not in meta.encodings


def test_case_PERF_02(corpus: Path, tokenizer: str, tmp_path: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(str(corpus), tmp_path / "first", PackSpec(256), tokenizer=tokenizer)
    before = tree(tmp_path / "tokens")

    def never(*_: Any) -> Any:
        raise AssertionError("something was tokenised again")

    monkeypatch.setattr(Encoder, "encode_batch", never)
    monkeypatch.setattr(Encoder, "encode_batches", never)
    changes = [{"capacity": 128, "overflow": "drop"}, {"seed": 5}, {"policy": "best_fit"}, {"train_on": "all"}]
    hashes = set()
    for number, change in enumerate(changes):
        spec = PackSpec(**{"capacity": 256, **change})
        hashes.add(pack(str(corpus), tmp_path / f"next-{number}", spec, tokenizer=tokenizer).manifest.logical_hash)
    assert len(hashes) == len(changes)
    assert tree(tmp_path / "tokens") == before


def test_the_count_of_what_is_tokenised_can_tell(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    made = [
        token_step.ensure_tokens([str(corpus)], PackSpec(64, **change), tmp_path / "t", tokenizer=tokenizer).made
        for change in ({}, {"seed": 3}, {"append_eos": "always"})
    ]
    assert made == [6, 0, 6]


def test_case_CFG_01(corpus: Path, tokenizer: str, tmp_path: Path, qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.packing import job

    base: dict[str, Any] = {"capacity": 256, "seed": 0, "overflow": "drop"}
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    small = tmp_path / "small"
    small.mkdir()
    for path in sorted(corpus.glob("*.jsonl"))[:1]:
        (small / path.name).write_bytes(path.read_bytes())
    changed: list[tuple[dict[str, Any], str]] = [
        (base, tokenizer),
        ({**base, "capacity": 300}, tokenizer),
        ({**base, "chat_template": template}, tokenizer),
        (base, str(qwen3)),
        ({**base, "seed": 1}, tokenizer),
        ({**base, "overflow": "truncate"}, tokenizer),
    ]
    keys = [
        pack(str(small), tmp_path / f"out-{number}", PackSpec(**fields), tokenizer=which).fingerprint
        for number, (fields, which) in enumerate(changed)
    ]
    other = {name: version + "+1" for name, version in job.versions().items()}
    monkeypatch.setattr(job, "versions", lambda policy: other)
    monkeypatch.setattr("cloison.packing.finish.versions", lambda policy: other)
    keys.append(pack(str(small), tmp_path / "out-v", PackSpec(**base), tokenizer=tokenizer).fingerprint)
    assert len(set(keys)) == len(keys)
    reordered = PackSpec.from_dict(dict(reversed(PackSpec(**base).to_dict().items())))
    monkeypatch.undo()
    assert pack(str(small), tmp_path / "out-0", reordered, tokenizer=tokenizer).fingerprint == keys[0]


def test_case_OVR_02(cases: dict[str, Any], tmp_path: Path, tokenizer: str) -> None:
    case = cases["OVR-02"]["input"]
    size = case["prompt_tokens"] + case["answer_tokens"]
    mask = [0] * case["prompt_tokens"] + [1] * case["answer_tokens"]
    source = write_lines(tmp_path / "pairs.jsonl", [{"input_ids": list(range(10, 10 + size)), "completion_mask": mask}])

    def packed(**fields: Any) -> cloison.Packed:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        return pack(str(source), out, PackSpec(case["capacity"], **fields), tokenizer=tokenizer)

    with pytest.raises(OverlongError):
        packed()
    cut = packed(overflow="truncate")
    assert (cut.manifest.num_tokens, cut.manifest.num_targets) == (6, 1)
    with pytest.raises(OverlongError) as caught:
        packed(overflow="split")
    assert "split_prompts=True" in caught.value.remedy
    assert caught.value.found.startswith("1 of 1 samples")
    named = packed(overflow="split", split_prompts=True)
    assert named.manifest.ledger.entries["split"].samples == 1
    assert sorted(named.seq_lengths().tolist()) == [3, 6]


def test_wrapping_cuts_conversations_only_where_that_is_said(tmp_path: Path, tokenizer: str) -> None:
    chats = [{"messages": [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e f"}]}] * 5
    source = tmp_path / "chats.jsonl"
    source.write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    with pytest.raises(OverlongError) as caught:
        cloison.pack(str(source), tmp_path / "refused", PackSpec(24, policy="wrap"), tokenizer=tokenizer)
    assert 'policy="wrap" would cut conversations' in caught.value.asked
    assert "5 of 5 samples have a prompt" in caught.value.found
    assert "split_prompts=True" in caught.value.remedy
    meant = PackSpec(24, policy="wrap", split_prompts=True)
    packed = cloison.pack(str(source), tmp_path / "meant", meant, tokenizer=tokenizer)
    assert packed.ledger.entries["continuations"].samples > 0
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": "some words " * n}) for n in range(1, 9)), encoding="utf-8")
    assert len(cloison.pack(str(texts), tmp_path / "texts", PackSpec(24, policy="wrap"), tokenizer=tokenizer)) > 1


def test_dropping_the_only_sample_is_counted_or_refused(cases: dict[str, Any], tmp_path: Path, tokenizer: str) -> None:
    records = [{"input_ids": list(range(10, 19))}, {"input_ids": [1, 2, 3]}]
    source = write_lines(tmp_path / "ids.jsonl", records)
    packed = pack(str(source), tmp_path / "out", PackSpec(6, overflow="drop"), tokenizer=tokenizer)
    assert packed.ledger.entries["dropped"].indices.tolist() == [0]
    assert packed.ledger.lost_tokens == 9


def test_case_OVR_05(cases: dict[str, Any], tmp_path: Path, tokenizer: str) -> None:
    from cloison.view.terminal_summary import packed_summary

    case = cases["OVR-05"]
    records = [{"input_ids": [7] * size} for size in case["input"]["lengths"]]
    source = write_lines(tmp_path / "ids.jsonl", records)
    spec = PackSpec(20, overflow=case["input"]["policy"], max_sample_tokens=case["input"]["max_sample_len"])
    packed = pack(str(source), tmp_path / "out", spec, tokenizer=tokenizer)
    report = case["expectation"]["report"]
    ledger = packed.ledger
    assert (ledger.tokens_in, ledger.tokens_kept, ledger.lost_tokens) == (
        report["tokens_in"],
        report["tokens_kept"],
        report["tokens_lost"],
    )
    assert ledger.lost_share == report["lost_share"]
    assert ledger.entries["truncated"].samples == report["samples_cut"]
    assert "50 tokens of 100, 50.00%" in rendered(packed_summary(packed))


def rendered(shown: Any) -> str:
    from rich.console import Console

    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(shown)
    return console.export_text()


def test_weights_become_loss_weights(tmp_path: Path, tokenizer: str) -> None:
    records = [
        {"input_ids": [1, 2], "w": 0.5, "source": "a"},
        {"input_ids": [3, 4, 5], "w": 2.0, "source": "b"},
    ]
    source = write_lines(tmp_path / "ids.jsonl", records)
    spec = PackSpec(8, order="input", columns={"input_ids": "input_ids", "weight": "w"}, carry=("source",))
    (block,) = pack(str(source), tmp_path / "out", spec, tokenizer=tokenizer)
    assert block.loss_weights is not None
    assert block.loss_weights.tolist() == [0.5, 0.5, 2.0, 2.0, 2.0]
    assert block.segment_columns["source"] == ["a", "b"]


def test_columns_that_go_with_tokens_are_cut_with_them(tmp_path: Path, tokenizer: str) -> None:
    records = [
        {"input_ids": [1, 2, 3], "logprob": [0.1, 0.2, 0.3], "text": "abcdef", "tags": ["x", "y"]},
        {"input_ids": [4], "logprob": [0.5], "text": "g", "tags": []},
    ]
    source = write_lines(tmp_path / "ids.jsonl", records)
    spec = PackSpec(2, order="input", overflow="split", carry=("logprob", "text", "tags"), on_empty="drop")
    packed = pack(str(source), tmp_path / "out", spec.with_(max_sample_tokens=2), tokenizer=tokenizer)
    assert packed.manifest.columns == {"logprob": "token", "text": "segment", "tags": "segment"}
    first, second = packed[0], packed[1]
    assert first.token_columns["logprob"].tolist() == [0.1, 0.2]
    assert second.token_columns["logprob"].tolist() == [0.3]
    assert first.segment_columns["text"] == second.segment_columns["text"] == ["abcdef"]
    assert first.segment_columns["tags"] == [["x", "y"]]
    assert packed.ledger.entries["nothing_to_train"].indices.tolist() == [1]


def test_columns_of_several_types_meet_in_one_or_are_refused(tmp_path: Path, tokenizer: str) -> None:
    for name, value in (("a", 1), ("b", 2.5), ("c", None)):
        write_lines(tmp_path / f"{name}.jsonl", [{"input_ids": [1, 2], "score": value}])
    spec = PackSpec(8, order="input", carry=("score",))
    sources = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    (block,) = pack(sources, tmp_path / "out", spec, tokenizer=tokenizer)
    assert block.segment_columns["score"] == [1.0, 2.5, None]
    write_lines(tmp_path / "d.jsonl", [{"input_ids": [1, 2], "score": "much"}])
    with pytest.raises(RecordError, match="'score' must have values of one kind"):
        pack([*sources, str(tmp_path / "d.jsonl")], tmp_path / "other", spec, tokenizer=tokenizer)
    with pytest.raises(SpecError, match="format's own"):
        pack(sources, tmp_path / "third", PackSpec(8, carry=("labels",)), tokenizer=tokenizer)


def test_broken_records_stop_the_job_or_are_counted(tmp_path: Path, tokenizer: str) -> None:
    source = write_lines(tmp_path / "mixed.jsonl", chats(4, 1))
    lines = source.read_text().splitlines()
    source.write_text("\n".join([lines[0], "{broken", lines[1], '{"unknown": 1}', lines[2]]) + "\n")
    with pytest.raises(RecordError, match=r"mixed.jsonl, line 2"):
        pack(str(source), tmp_path / "out", PackSpec(256), tokenizer=tokenizer)
    assert not (tmp_path / "out" / "manifest.json").exists()
    packed = pack(str(source), tmp_path / "out", PackSpec(256), tokenizer=tokenizer, on_error="skip")
    assert packed.ledger.entries["skipped"].indices.tolist() == [1, 3]
    assert sorted(packed.sample_ids().tolist()) == [0, 2, 4]
    with pytest.raises(RecordError, match=r"mixed.jsonl, line 2"):
        pack(str(source), tmp_path / "strict", PackSpec(256), tokenizer=tokenizer)


def test_a_sample_with_nothing_to_train_is_dropped_and_counted_or_raises(tmp_path: Path, tokenizer: str) -> None:
    records = [
        {"input_ids": [5, 6, 7], "labels": [IGNORE, 6, 7]},
        {"input_ids": [8, 9], "labels": [IGNORE, IGNORE]},
        {"input_ids": [1, 2, 3, 4, 5], "labels": [IGNORE, IGNORE, IGNORE, IGNORE, 5]},
        {"input_ids": []},
    ]
    source = write_lines(tmp_path / "ids.jsonl", records)
    spec = PackSpec(4, overflow="truncate")
    packed = pack(str(source), tmp_path / "out", spec, tokenizer=tokenizer)
    assert packed.ledger.entries["nothing_to_train"].indices.tolist() == [1, 2]
    assert packed.ledger.entries["empty"].indices.tolist() == [3]
    assert packed.manifest.num_tokens == 3
    with pytest.raises(InputError, match="something to train") as caught:
        pack(str(source), tmp_path / "strict", spec.with_(on_empty="raise"), tokenizer=tokenizer)
    assert caught.value.found.startswith("Sample 1 has no target")
    assert "(2 of 4 samples)" in caught.value.found


def test_a_sample_whose_targets_begin_pieces_has_nothing_to_train_once_it_is_split(tmp_path: Path) -> None:
    """Nothing in a piece predicts its first token: a sample with targets there alone is dropped, one with another is kept."""
    records: list[dict[str, Any]] = [{"input_ids": list(range(10)), "labels": [IGNORE] * 10} for _ in range(3)]
    for record, places in zip(records, ([4, 8], [4, 7], [9]), strict=True):
        for place in places:
            record["labels"][place] = place
    source = write_lines(tmp_path / "ids.jsonl", records)
    packed = pack(str(source), tmp_path / "out", PackSpec(4, overflow="split", split_prompts=True))
    assert packed.ledger.entries["nothing_to_train"].indices.tolist() == [0]
    assert sorted(set(packed.sample_ids().tolist())) == [1, 2]
    assert packed.manifest.num_targets == 2


@pytest.mark.parametrize(
    ("template", "records", "changes", "found", "remedy"),
    [
        (None, [{"input_ids": [1, 2], "labels": [IGNORE, IGNORE]}], {}, "labels and masks are empty", "labels, masks"),
        (
            None,
            [{"input_ids": [1, 2, 3, 4], "labels": [IGNORE, IGNORE, IGNORE, 4]}],
            {"capacity": 3, "overflow": "truncate"},
            "the nearest is token 3 of sample 0",
            "Raise capacity",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}],
            {},
            "the template \"{% for m in messages if m.role == 'user' %}",
            'train_on="all"',
        ),
    ],
    ids=["labels", "limit", "template"],
)
def test_sources_without_anything_to_train_are_an_error_and_no_empty_data_set(
    template: str | None,
    records: list[Any],
    changes: dict[str, Any],
    found: str,
    remedy: str,
    tmp_path: Path,
    tokenizer: str,
) -> None:
    source = write_lines(tmp_path / "a.jsonl", records)
    spec = PackSpec(64, chat_template=template).with_(**changes)
    with pytest.raises(InputError, match="needs something to train") as caught:
        pack(str(source), tmp_path / "out", spec, tokenizer=tokenizer)
    assert found in caught.value.found and remedy in caught.value.remedy
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("given", "remedy"),
    [(4096, "PackSpec(capacity=4096)"), ({"capacity": 8}, "from_dict"), ('{"capacity": 8}', "from_json"), (None, "PackSpec")],
)
def test_what_is_no_spec_is_told_how_to_be_one(given: Any, remedy: str, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="spec is a PackSpec") as caught:
        pack(str(corpus), tmp_path / "out", given)
    assert type(given).__name__ in caught.value.found and remedy in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_straddling_tokens_are_counted_where_they_are_trained(tmp_path: Path, tokenizer: str) -> None:
    """Of samples that are packed, in what is trained of them; not of those that were dropped, or of a prompt."""
    pair = {"prompt": "the quick brown f", "completion": "ox jumps"}
    source = write_lines(tmp_path / "a.jsonl", [pair, {**pair, "completion": "ox jumps over the lazy dog" * 20}, pair])
    encoder = Encoder(tokenizer, PackSpec(8))
    (one,) = encoder.encode_batch([pair])
    encoder.close()
    assert isinstance(one, Encoded) and len(one.across) == 1
    spec = PackSpec(48, overflow="drop")
    assert pack(str(source), tmp_path / "all" / "out", spec, tokenizer=tokenizer).manifest.straddles == 2
    whole = pack(str(source), tmp_path / "more" / "out", spec.with_(capacity=1024), tokenizer=tokenizer)
    assert whole.manifest.straddles == 3
    cut = int(one.across[0]) + 1
    head = pack(str(source), tmp_path / "cut" / "out", spec.with_(capacity=cut + 1, overflow="truncate"), tokenizer=tokenizer)
    assert head.manifest.straddles == 3


@pytest.mark.parametrize("values", [[None] * 40 + ["text"], [[]] * 40 + [["a"]], [1] * 40 + [0.5], [0.5] * 40 + [1]])
def test_a_carried_column_widens_inside_one_file(values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is empty, or whole numbers, for many units of a file and something wider after them."""
    from cloison.packing import tokenise

    monkeypatch.setattr(tokenise, "UNIT_TOKENS", 8)
    records = [{"input_ids": [1, 2, 3], "more": value} for value in values]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))
    packed = pack(str(tmp_path / "a.jsonl.gz"), tmp_path / "out", PackSpec(16, order="input", carry=("more",)))
    found = {
        number: value
        for block in packed
        for number, value in zip(block.sample_ids.tolist(), block.segment_columns["more"], strict=True)
    }
    assert [found[number] for number in range(len(values))] == values
    assert not list(tmp_path.rglob("*.part"))


def test_an_overlong_sample_is_named_by_its_place_in_the_source(tmp_path: Path, tokenizer: str) -> None:
    records = [{"input_ids": [1], "labels": [IGNORE]}, {"input_ids": [1] * 9}]
    source = write_lines(tmp_path / "ids.jsonl", records)
    with pytest.raises(OverlongError, match="Sample 1 has 9 tokens"):
        pack(str(source), tmp_path / "out", PackSpec(4), tokenizer=tokenizer)


def test_a_folder_that_is_another_s_is_left_alone(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="must be empty") as caught:
        pack(str(corpus), out, PackSpec(256), tokenizer=tokenizer)
    assert "'thesis.txt'" in caught.value.found
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    done = tmp_path / "done"
    pack(str(corpus), done, PackSpec(256), tokenizer=tokenizer)
    with pytest.raises(ManifestError, match="must be new"):
        pack(str(corpus), done, PackSpec(256, seed=1), tokenizer=tokenizer)
    again = pack(str(corpus), done, PackSpec(256), tokenizer=tokenizer)
    assert again.manifest.num_blocks > 0


@pytest.mark.parametrize("name", ["none.jsonl", "blank.jsonl", "none.json", "none.parquet", "head.csv"])
def test_sources_without_a_record_are_an_error_and_no_empty_data_set(name: str, tmp_path: Path, tokenizer: str) -> None:
    """What should have written them has failed, nearly always; in memory no samples are no blocks."""
    source = tmp_path / name
    if name == "none.parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), source)
    else:
        source.write_text({"blank.jsonl": "\n\n", "none.json": "[]", "head.csv": "text\n"}.get(name, ""))
    for attempt in ("first", "again, with the store that is there"):
        with pytest.raises(InputError, match="needs records") as caught:
            pack(str(source), tmp_path / "out", PackSpec(8), tokenizer=tokenizer)
        assert caught.value.found.startswith("The sources have none"), attempt
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert pack_samples([], capacity=8) == []


def test_empty_files_beside_others_are_read_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    write_lines(tmp_path / "b.jsonl", [{"input_ids": [1, 2]}])
    packed = pack([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], tmp_path / "out", PackSpec(8))
    assert [block.input_ids.tolist() for block in packed] == [[1, 2]]


@pytest.mark.parametrize("order", ["input", "shuffled"])
@pytest.mark.parametrize("policy", POLICIES)
def test_where_every_record_is_skipped_the_data_set_is_empty(policy: str, order: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"input_ids": "no"}] * 3)
    packed = pack(str(source), tmp_path / "out", PackSpec(8, policy=policy, order=order), on_error="skip")
    assert len(packed) == 0 and packed.ledger.samples_in == 3 and packed.segments().num_segments == 0


def test_of_very_many_broken_records_the_first_are_told_and_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloison.packing.tokenise._UNIT_SAMPLES", 50)
    records = [{"input_ids": [number, 1] if number % 3 == 0 else "no"} for number in range(600)]
    packed, tokens = run_job(str(write_lines(tmp_path / "a.jsonl", records)), tmp_path / "out", PackSpec(8), on_error="skip")
    broken = [number for number in range(600) if number % 3]
    assert [skip["index"] for skip in tokens.skipped] == broken == packed.ledger.entries["skipped"].indices.tolist()
    assert sum("error" in skip for skip in tokens.skipped) == 100 and "line 2" in tokens.skipped[0]["where"]
    assert sorted(packed.sample_ids().tolist()) == list(range(0, 600, 3))


def test_manifest_counts_are_those_of_the_blocks(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    packed = pack(str(corpus), tmp_path / "out", PackSpec(128, overflow="truncate"), tokenizer=tokenizer)
    blocks = list(packed)
    m = packed.manifest
    assert m.num_blocks == len(blocks) == len(packed)
    assert m.num_tokens == sum(block.num_tokens for block in blocks) == m.ledger.tokens_kept
    assert m.num_targets == sum(block.num_targets for block in blocks) == sum(r["targets"] for r in m.roles.values())
    assert m.num_segments == sum(len(block) for block in blocks)
    assert m.utilization == pytest.approx(m.num_tokens / (len(blocks) * 128))
    assert m.lower_bound <= m.num_blocks
    assert m.roles.keys() == {"assistant"}
    assert m.sources[0]["records"] == 25
    assert len(m.sources) == 6


def test_the_token_store_keeps_the_tokenizer_and_no_path(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    packed = pack(str(corpus), tmp_path / "out", PackSpec(256), tokenizer=tokenizer)
    kept = token_step.tokenizer_of(packed)
    assert kept is not None
    assert Path(kept).is_relative_to(tmp_path / "tokens")
    assert Path(kept).read_bytes() == (Path(tokenizer) / "tokenizer.json").read_bytes()
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(corpus)]
    assert not [path for path in written if tokenizer.encode() in path.read_bytes()]


def test_packing_leaves_the_garbage_collector_as_it_was(corpus: Path, tokenizer: str, tmp_path: Path) -> None:
    import gc

    before = gc.get_threshold()
    seen: list[tuple[str, int]] = []
    pack(
        str(corpus),
        tmp_path / "out",
        PackSpec(256),
        tokenizer=tokenizer,
        progress=lambda what, done, total: seen.append((what, gc.get_threshold()[0])),
    )
    assert next(threshold for what, threshold in seen if what == "tokenising") > before[0]
    assert gc.get_threshold() == before


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"policy": "nosuch"}, "policy must be one of"),
        ({"align": 512}, "holds a unit of align"),
        ({"capacity": 1 << 40}, "capacity is at most"),
    ],
)
def test_a_spec_that_cannot_be_planned_is_refused_before_anything_is_read(
    changes: dict[str, Any], asked: str, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=asked):
        pack(str(corpus), tmp_path / "out", PackSpec(256).with_(**changes), tokenizer=tokenizer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_workers_that_are_no_number_of_processes_are_refused(workers: Any, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 or more"):
        pack(str(corpus), tmp_path / "out", PackSpec(256), workers=workers)
    assert not list(tmp_path.iterdir())
