"""Encoder: every record shape to ids and spans, the same from every kind of tokenizer, with one BOS and one EOS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError, RecordError, SpecError, TemplateError
from cloison.segments import IGNORE
from cloison.spec import PackSpec
from cloison.text.encoder import Encoded, Encoder
from cloison.text.targets import ROLES, labels
from tests.text.families import assistant, system, user

CHAT = {"messages": [user("hello there"), assistant("yo yo")]}


def one(encoder: Encoder, record: dict[str, Any]) -> Encoded:
    (done,) = encoder.encode_batch([record])
    if isinstance(done, RecordError):
        raise done
    return done


def words(encoder: Encoder, done: Encoded, train_on: str = "auto") -> str:
    """Return the trained text, runs parted by |."""
    made, _ = labels(done.input_ids, done.spans, done.shape, train_on)
    runs: list[list[int]] = [[]]
    for target in made.tolist():
        if target == IGNORE:
            runs.append([])
        else:
            runs[-1].append(target)
    decode = encoder.vocabulary.backend.decode
    return "|".join(decode(run, skip_special_tokens=False) for run in runs if run)


SHAPES: dict[str, tuple[dict[str, Any], str, str]] = {
    "messages": (CHAT, "messages", "yo yo<|im_end|>"),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        "messages",
        "b<|im_end|>",
    ),
    "alpaca": ({"instruction": "a", "input": "b", "output": "c"}, "messages", "c<|im_end|>"),
    "alpaca with history": (
        {"instruction": "a", "input": "", "output": "c", "history": [["d", "e"]]},
        "messages",
        "e<|im_end|>|c<|im_end|>",
    ),
    "pair": ({"prompt": "a b", "completion": " c d"}, "pair", " c d</s>"),
    "pair of messages": (
        {"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]},
        "pair",
        "d<|im_end|>",
    ),
    "mixed pair": ({"prompt": [user("a")], "completion": "d"}, "pair", "d<|im_end|>"),
    "text": ({"text": "a b c"}, "text", " b c</s>"),
    "tokens": ({"input_ids": [7, 8, 9]}, "tokens", ""),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_recognised_and_trained(name: str, small: Path, encoders: Any) -> None:
    record, shape, expected = SHAPES[name]
    encoder = encoders(small)
    done = one(encoder, record)
    assert done.shape == shape and done.input_ids.dtype == np.int32
    assert words(encoder, done) == (expected or encoder.vocabulary.backend.decode([8, 9]))
    sample = cloison.encode(record, small)
    assert np.array_equal(sample.input_ids, done.input_ids) and sample.labels[0] == IGNORE


def test_what_train_on_trains(small: Path, encoders: Any) -> None:
    encoder = encoders(small)
    chat = one(encoder, {"messages": [system("s"), user("a"), assistant("b"), user("c"), assistant("d")]})
    assert words(encoder, chat, "assistant") == "b<|im_end|>|d<|im_end|>"
    assert words(encoder, chat, "last-assistant") == "d<|im_end|>"
    assert (
        len(labels(chat.input_ids, chat.spans, "messages", "all")[0]) - 1
        == (labels(chat.input_ids, chat.spans, "messages", "all")[0] != IGNORE).sum()
    )
    with pytest.raises(SpecError, match="no prompt column"):
        labels(chat.input_ids, chat.spans, "messages", "completion")
    with pytest.raises(SpecError, match="train_on is"):
        labels(chat.input_ids, chat.spans, "messages", "user")
    pair = one(encoder, {"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]})
    assert words(encoder, pair, "completion") == "d<|im_end|>"
    assert words(encoder, pair, "assistant") == "b<|im_end|>|d<|im_end|>"


def test_terminators_are_known_by_role(small: Path, encoders: Any) -> None:
    done = one(encoders(small), CHAT)
    ends = done.spans[done.spans["terminator"]]
    assert [ROLES[role] for role in ends["role"]] == ["user", "assistant"]
    assert (done.input_ids[ends["start"]] == 4).all() and (ends["stop"] - ends["start"] == 1).all()


def test_weights_of_messages_and_samples(small: Path, encoders: Any) -> None:
    record = {
        "messages": [
            user("a"),
            assistant("b", weight=0),
            user("c"),
            assistant("d", weight=0.5),
            user("e"),
            assistant("f", train=True),
        ],
        "w": 2.0,
    }
    encoder = encoders(small, columns={"weight": "w"})
    done = one(encoder, record)
    made, weights = labels(done.input_ids, done.spans, done.shape, "auto")
    assert words(encoder, done) == "d<|im_end|>|f<|im_end|>"
    assert weights is not None and weights[made != IGNORE].tolist() == [1.0, 1.0, 2.0, 2.0]
    plain, _ = labels(*(lambda d: (d.input_ids, d.spans, d.shape))(one(encoders(small), CHAT)), "auto")
    assert labels(*(lambda d: (d.input_ids, d.spans, d.shape))(one(encoders(small), CHAT)), "auto")[1] is None
    assert (plain != IGNORE).any()
    for bad in (float("nan"), -1, "x", float("inf")):
        with pytest.raises(RecordError, match="weight"):
            one(encoder, {"messages": [user("a"), assistant("b", weight=bad)], "w": 1.0})


def test_a_token_across_an_edge_is_trained_and_counted(small: Path, encoders: Any) -> None:
    encoder = encoders(small, append_eos="never")
    done = one(encoder, {"prompt": "the cat s", "completion": "at on"})
    assert [encoder.vocabulary.backend.decode([done.input_ids[token]]) for token in done.across] == [" sat"]
    assert words(encoder, done) == " sat on"
    assert not one(encoder, {"prompt": "the cat", "completion": " sat on"}).across


def test_a_tokenizer_that_moves_blanks_into_words(metaspace: Path, encoders: Any) -> None:
    encoder = encoders(metaspace)
    done = one(encoder, {"messages": [user("hello there"), assistant("the cat sat"), user(" a  b"), assistant("12 34")]})
    made, _ = labels(done.input_ids, done.spans, done.shape, "auto")
    pieces = [encoder.vocabulary.backend.id_to_token(target) for target in made.tolist() if target != IGNORE]
    assert "".join(pieces).replace("▁", " ").replace("<|im_end|>", "|").replace(" ", "") == "thecatsat|1234|"
    assert pieces.count("<|im_end|>") == 2


# ---------------------------------------------------------------------- BOS and EOS


def test_documents_have_one_bos_and_one_trained_eos(with_bos: Path, encoders: Any) -> None:
    encoder = encoders(with_bos)
    for text in ("the cat", "<s>the cat", "the cat</s>", "<s>the cat</s>"):
        done = one(encoder, {"text": text})
        ids = done.input_ids.tolist()
        assert ids.count(1) == 1 and ids[0] == 1 and ids.count(2) == 1 and ids[-1] == 2
        assert words(encoder, done) == "the cat</s>"
        assert done.spans[-1]["terminator"]
    pair = one(encoder, {"prompt": "the", "completion": " cat"})
    assert pair.input_ids.tolist().count(1) == 1 and words(encoder, pair) == " cat</s>"


@pytest.mark.parametrize(("append_eos", "text_ends", "chat_ends"), [("auto", 1, 0), ("always", 1, 1), ("never", 0, 0)])
def test_append_eos(append_eos: str, text_ends: int, chat_ends: int, small: Path, encoders: Any) -> None:
    encoder = encoders(small, append_eos=append_eos)
    assert one(encoder, {"text": "a b"}).input_ids.tolist().count(2) == text_ends
    chat = one(encoder, CHAT)
    assert chat.input_ids.tolist().count(2) == chat_ends
    assert words(encoder, chat) == "yo yo<|im_end|>" + "|</s>" * chat_ends


def test_a_rendering_that_ends_in_eos_gets_no_second(small: Path, encoders: Any) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
    done = one(encoders(small, append_eos="always", chat_template=template), CHAT)
    assert done.input_ids.tolist().count(2) == 2


def test_a_template_writes_its_own_bos(with_bos: Path, encoders: Any) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    assert one(encoders(with_bos, chat_template=template), CHAT).input_ids.tolist().count(1) == 1
    assert one(encoders(with_bos), CHAT).input_ids.tolist().count(1) == 0  # as apply_chat_template does


def test_a_tokenizer_without_eos_says_so(small: Path, encoders: Any) -> None:
    from tokenizers import Tokenizer

    bare = Tokenizer.from_file(str(small / "tokenizer.json"))
    with pytest.raises(InputError, match="append_eos='never'"):
        encoders(bare).encode_batch([{"text": "a"}])
    assert one(encoders(bare, append_eos="never"), {"text": "a"}).input_ids.size == 1
    assert one(encoders(bare, template_options={"eos_token": "</s>"}), {"text": "a"}).input_ids.tolist()[-1] == 2
    assert isinstance(encoders(bare).encode_batch([CHAT])[0], TemplateError)


# ---------------------------------------------------------------------- tokenizers


def test_a_path_a_tokenizer_and_a_transformers_tokenizer_give_the_same(qwen3: Path, tmp_path: Path, encoders: Any) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    records = [
        CHAT,
        {"text": "a  b\n日本"},
        {"prompt": " x", "completion": " y\n"},
        {"messages": [user("  q"), assistant("\n a \n"), user("r"), assistant(" b")]},
    ]
    theirs = AutoTokenizer.from_pretrained(str(qwen3))
    theirs("warm", truncation=True, max_length=1, padding="max_length")  # leaves truncation and padding on its backend
    path = encoders(qwen3)
    path.save(tmp_path / "saved")
    bare = Tokenizer.from_file(str(qwen3 / "tokenizer.json"))
    template = json.loads((qwen3 / "tokenizer_config.json").read_text())["chat_template"]
    bare_options = {"chat_template": template, "template_options": {"eos_token": "<|im_end|>"}}
    others = [encoders(theirs), encoders(tmp_path / "saved"), encoders(bare, **bare_options)]
    assert [other.token_key == path.token_key for other in others] == [True, True, False]
    expected = path.encode_batch(records)
    for other in others:
        for ours, wanted in zip(other.encode_batch(records), expected, strict=True):
            assert np.array_equal(ours.input_ids, wanted.input_ids) and np.array_equal(ours.spans, wanted.spans)


def test_the_key_holds_what_shapes_the_tokens_and_nothing_else(small: Path, with_bos: Path, encoders: Any) -> None:
    base = encoders(small).token_key
    assert encoders(small, capacity=7, seed=3, policy="best_fit", train_on="all", overflow="drop").token_key == base
    changed = [
        {"append_eos": "always"},
        {"chat_template": "{{ messages[0].content }}"},
        {"template_options": {"x": 1}},
        {"columns": {"text": "body"}},
        {"carry": ("id",)},
    ]
    keys = [encoders(small, **fields).token_key for fields in changed] + [encoders(with_bos).token_key]
    assert len({base, *keys}) == len(keys) + 1


def test_bad_tokenizers_are_named(tmp_path: Path) -> None:
    spec = PackSpec(capacity=8)
    for bad, word in ((tmp_path / "none", "no such path"), (tmp_path, "There is none"), (7, "builtins.int")):
        with pytest.raises(InputError, match=word):
            Encoder(bad, spec)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="does not load"):
        Encoder(tmp_path, spec)


@pytest.mark.parametrize("template", [[["a"]], [{"name": "default"}], [{"name": "default", "template": 1}]])
def test_a_list_of_templates_that_is_none_is_named(template: Any, small: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(small / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(InputError, match="list of chat templates holds"):
        Encoder(tmp_path, PackSpec(capacity=8))


# ---------------------------------------------------------------------- batches and bad records


def test_batches_in_a_pipeline_give_the_same_in_order(small: Path, encoders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison.text import encoder as module

    records: list[dict[str, Any]] = [
        {"messages": [user(f"a {i}"), assistant(f"b {i}")]} if i % 3 else {"text": f"t {i}"} for i in range(50)
    ]
    records[7] = {"nothing": 1}
    whole = encoders(small).encode_batch(records)
    monkeypatch.setattr(module, "_PIECE", 7)
    pieces = encoders(small).encode_batch(records)
    for a, b in zip(whole, pieces, strict=True):
        if isinstance(a, RecordError):
            assert isinstance(b, RecordError) and str(a) == str(b)
        else:
            assert np.array_equal(a.input_ids, b.input_ids) and np.array_equal(a.spans, b.spans)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no shape": ({"foo": 1, "bar": "x"}, "foo (int), bar (str)"),
    "nothing": ({}, "It has none"),
    "messages of another kind": ({"messages": 7}, "7 (int)"),
    "no messages": ({"messages": []}, "at least one message"),
    "a message of another kind": ({"messages": [user("a"), "b"]}, "messages[1]"),
    "no role": ({"messages": [{"content": "a"}]}, "messages[0]"),
    "an unknown speaker": ({"conversations": [{"from": "alien", "value": "a"}]}, "conversations[0]"),
    "text of another kind": ({"text": 7}, "7 (int)"),
    "NaN for text": ({"text": float("nan")}, "nan (float)"),
    "a lone surrogate": ({"text": "a\ud800"}, "surrogate"),
    "a lone surrogate in a chat": ({"messages": [user("a\ud800"), assistant("b")]}, "surrogate"),
    "our own marks": ({"messages": [user("a\U0010fde0"), assistant("b")]}, "private planes"),
    "too deep": ({"messages": [user("a"), assistant("b", tool_calls=[nested(5000 // 64)])]}, "nest"),
    "tools of another kind": ({"messages": [user("a")], "tools": "[1"}, "does not parse"),
    "negative ids": ({"input_ids": [1, -5]}, "input_ids[1] is -5"),
    "ids out of the vocabulary": ({"input_ids": [1, 10**6, 10**7]}, "2 such"),
    "ids that are floats": ({"input_ids": [1.0, 2.0]}, "float64"),
    "ids that are ragged": ({"input_ids": [[1], [2, 3]]}, "flat list"),
    "NaN among ids": ({"input_ids": [1, float("nan")]}, "float64"),
    "labels of another length": ({"input_ids": [1, 2], "labels": [1]}, "1 for 2"),
    "labels that are shifted": ({"input_ids": [5, 6, 7], "labels": [6, 7, -100]}, "shifted by one"),
    "a weight that float32 cannot hold": ({"messages": [user("a"), assistant("b", weight=1e60)]}, "1e+60 (float)"),
    "a weight that would be 0 as float32": ({"messages": [user("a"), assistant("b", weight=1e-60)]}, "1e-60 (float)"),
    "a packed block": ({"input_ids": [5, 6], "seq_lengths": [1, 1]}, "has seq_lengths"),
    "a mask that is none": ({"input_ids": [5, 6], "completion_mask": [0, 2]}, "0 or 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records_say_what_was_found_and_the_others_go_on(name: str, small: Path, encoders: Any) -> None:
    record, word = BAD[name]
    encoder = encoders(small)
    first, second, third = encoder.encode_batch([CHAT, record, CHAT])
    assert isinstance(second, RecordError) and word in str(second) and second.remedy
    assert np.array_equal(first.input_ids, third.input_ids)


def test_records_of_ids_need_no_tokenizer(encoders: Any) -> None:
    encoder = encoders(None)
    done = one(encoder, {"input_ids": [5, 6, 7], "assistant_masks": [0, 1, 1]})
    assert labels(done.input_ids, done.spans, "tokens", "assistant")[0].tolist() == [IGNORE, 6, 7]
    with pytest.raises(InputError, match="need a tokenizer"):
        encoder.encode_batch([CHAT])


def test_carried_columns(small: Path, encoders: Any) -> None:
    encoder = encoders(small, carry=("source", "score"))
    assert one(encoder, CHAT | {"source": "x", "score": [1, 2]}).columns == {"source": "x", "score": [1, 2]}
    (done,) = encoder.encode_batch([CHAT])
    assert isinstance(done, RecordError) and "'source'" in done.asked


def test_named_columns_and_unused_ones(small: Path, encoders: Any) -> None:
    encoder = encoders(small, columns={"prompt": "question", "completion": "answer"}, carry=("id",))
    record = {"question": "a", "answer": " b", "id": 1, "text": "c"}
    assert words(encoder, one(encoder, record)) == " b</s>"
    assert encoder.reading(record).describe() == "prompt/completion records: prompt=question, completion=answer; not used: text"
    with pytest.raises(SpecError, match="answr"):
        encoders(small, columns={"answr": "x"})


def test_records_of_another_kind_than_the_first_are_errors(small: Path) -> None:
    from cloison.text.shapes import recognise

    encoder = Encoder(small, PackSpec(capacity=8), reading=recognise(CHAT))
    first, second, third = encoder.encode_batch([CHAT, {"text": "a"}, CHAT | {"tools": [{"name": "t"}]}])
    encoder.close()
    assert isinstance(first, Encoded) and isinstance(third, Encoded)
    assert isinstance(second, RecordError) and "text record" in second.found and "messages records" in second.asked


def test_a_normaliser_moves_no_edge(qwen3: Path, encoders: Any) -> None:
    encoder = encoders(qwen3)
    done = one(
        encoder, {"messages": [user("cafe\u0301"), assistant("re\u0301sume\u0301"), user("e\u0301"), assistant("e\u0301")]}
    )
    assert words(encoder, done) == "résumé<|im_end|>|é<|im_end|>"
    assert not done.across


def test_threads_share_an_encoder(small: Path, encoders: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    encoder = encoders(small)
    records = [{"messages": [user(f"a {i}"), assistant(f"b {i}" * (i % 4))]} for i in range(60)]
    alone = [one(encoder, record).input_ids.tolist() for record in records]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda record: one(encoder, record).input_ids.tolist(), records))
    assert together == alone


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=9), max_size=5))
def test_runs_are_the_runs(masks: list[list[tuple[bool, bool, bool]]]) -> None:
    from cloison.text.tokens import runs

    listed = [[all(bits) or bits[0] for bits in mask] for mask in masks]
    flat = np.array([bit for mask in listed for bit in mask], bool)
    spans, counts = runs(flat, np.array([len(mask) for mask in listed], np.int64), "given")
    found = iter(spans)
    for mask, count in zip(listed, counts.tolist(), strict=True):
        covered = np.zeros(len(mask), bool)
        last = -1
        for _ in range(count):
            span = next(found)
            assert span["start"] > last  # a gap between runs
            covered[span["start"] : span["stop"]] = True
            last = int(span["stop"])
        assert covered.tolist() == mask


def test_real_chats_with_tools_are_encoded(shared: Path, qwen3: Path, encoders: Any) -> None:
    encoder = encoders(qwen3)
    records = json.loads((shared / "data" / "glaive" / "glaive_toolcall_en_demo.json").read_text(encoding="utf-8"))[:120]
    calls = 0
    for record, done in zip(records, encoder.encode_batch(records), strict=True):
        assert isinstance(done, Encoded), done
        text = words(encoder, done)
        answers = [turn["value"].strip("\n") for turn in record["conversations"] if turn["from"] == "gpt"]
        assert all(answer in text for answer in answers)
        assert text.count("<|im_end|>") == sum(turn["from"] in ("gpt", "function_call") for turn in record["conversations"])
        asked = [turn["value"] for turn in record["conversations"] if turn["from"] == "human" and len(turn["value"]) > 30]
        assert not any(question in text for question in asked)
        calls += text.count("<tool_call>")
    assert calls > 50


def test_a_text_that_the_tokenizer_does_not_take_is_that_record_s_error() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))  # names an unknown token and has none
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = Encoder(tokenizer, PackSpec(capacity=8, append_eos="never"))
    first, second, third = encoder.encode_batch([{"text": "a b"}, {"text": "c"}, {"text": "b"}])
    encoder.close()
    assert first.input_ids.tolist() == [0, 1] and third.input_ids.tolist() == [1]  # type: ignore[union-attr]
    assert isinstance(second, RecordError) and "UNK" in second.found
