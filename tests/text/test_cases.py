"""The reported faults that concern what is read, rendered and trained, each by its id."""

# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloison.samples import Sample
from cloison.segments import IGNORE
from cloison.text.edges import token_rows
from cloison.text.encoder import Encoded
from cloison.text.targets import ROLES, labels, span_array
from cloison.text.tokens import runs
from tests.text.test_encode import one

Cases = dict[str, dict[str, Any]]


def made(done: Encoded, train_on: str = "auto") -> tuple[list[int], Any]:
    targets, weights = labels(done.input_ids, done.spans, done.shape, train_on)
    return targets.tolist(), weights


@pytest.fixture(scope="module")
def by_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of whole words, parted by blanks."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    listed = [
        "<s>",
        "<e>",
        "user",
        "assistant",
        "q1",
        "q2",
        "a",
        "b",
        "c",
        "d",
        "e",
        "<think>",
        "</think>",
        "ok",
        "<r:user>",
        "<r:assistant>",
        "<end>",
        "hi",
        "yo",
    ]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(listed)}, unk_token="yo"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("words")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>"}))
    return folder


def rendered(encoder: Any, done: Encoded) -> tuple[list[str], list[int]]:
    """Return the words of a rendering, and 1 where a word is in a trained span."""
    tokens = [encoder.vocabulary.backend.id_to_token(token) for token in done.input_ids.tolist()]
    return tokens, [int(target != IGNORE) for target in made(done)[0]]


# ---------------------------------------------------------------------- template_mask


def test_case_TMPL_01(cases: Cases, by_words: Path, encoders: Any) -> None:
    case = cases["TMPL-01"]
    template = "{% for m in messages %}<r:{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    encoder = encoders(by_words, chat_template=template)
    tokens, mask = rendered(encoder, one(encoder, {"messages": case["input"]["messages"]}))
    assert tokens == case["input"]["rendered"]
    assert mask == case["expectation"]["mask"]


def test_case_TMPL_02(cases: Cases, encoders: Any) -> None:
    case = cases["TMPL-02"]
    done = [
        one(encoders(None), {"input_ids": sample["ids"], "assistant_masks": sample["assistant_mask"]})
        for sample in case["input"]["samples"]
    ]
    assert [int(token) for sample in done for token in sample.input_ids] == case["expectation"]["ids"]
    assert [target for sample in done for target in made(sample)[0]] == case["expectation"]["labels_unshifted"]
    assert sum(target != IGNORE for sample in done for target in made(sample)[0]) == case["expectation"]["trained"]


def test_case_TMPL_04(cases: Cases) -> None:
    case = cases["TMPL-04"]
    start, stop = case["input"]["assistant_span"]
    ids = np.arange(1, case["input"]["length"] + 1, dtype=np.int32)
    spans = span_array([(start, stop, ROLES.index("assistant"), False, 1, 1.0)])
    kept = labels(ids, spans, "messages")[0][: case["input"]["max_sample_len"]]
    assert (kept != IGNORE).astype(int).tolist() == case["expectation"]["mask"]


class Offsets:
    """What `token_rows` asks of an encoding, over given character spans."""

    def __init__(self, spans: list[list[int]]) -> None:
        self.spans = spans

    def char_to_token(self, place: int) -> int | None:
        return next((token for token, (start, stop) in enumerate(self.spans) if start <= place < stop), None)

    def token_to_chars(self, token: int) -> tuple[int, int]:
        start, stop = self.spans[token]
        return start, stop


def test_case_TMPL_05(cases: Cases) -> None:
    case = cases["TMPL-05"]
    offsets = case["input"]["full_token_char_spans"]
    start, stop = case["input"]["completion_starts_at_char"], offsets[-1][1]
    row = (start, stop, ROLES.index("completion"), False, 1, 1.0)
    rows, across = token_rows([row], Offsets(offsets), stop, len(offsets))
    mask = np.zeros(len(offsets), int)
    mask[rows[0][0] : rows[0][1]] = 1
    assert rows[0][0] == case["expectation"]["straddling_token"]
    assert mask.tolist() == case["expectation"]["mask_by_policy"]["straddle_is_completion"]
    assert len(across) == case["expectation"]["report"]["prefix_mismatch"]
    assert across == [case["expectation"]["straddling_token"]]


TURNS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<s> {{ m.role }} "
    "{% if m.think is defined and (loop.index0 > ns.last or keep) %}<think> {{ m.think }} </think> {% endif %}{{ m.content }} <e> {% endfor %}"
)


def test_case_TMPL_07(cases: Cases, by_words: Path, encoders: Any) -> None:
    case = cases["TMPL-07"]
    messages = [
        {("reasoning_content" if name == "think" else name): value for name, value in m.items()}
        for m in case["input"]["messages"]
    ]
    template = TURNS.replace("m.think", "m.reasoning_content")
    expected = case["expectation"]
    encoder = encoders(by_words, chat_template=template)
    tokens, mask = rendered(encoder, one(encoder, {"messages": messages}))
    assert tokens == expected["rendered"] and mask == expected["mask"]
    alone, _ = rendered(encoder, one(encoder, {"messages": messages[:2]}))
    assert alone == expected["rendered_of_first_two_alone"] and alone != tokens[: len(alone)]
    keeping = encoders(by_words, chat_template=template, template_options={"keep": True})
    tokens, mask = rendered(keeping, one(keeping, {"messages": messages}))
    assert tokens == expected["option_keep_history_thinking"]
    assert [token for token, on in zip(tokens, mask, strict=True) if on] == [
        "<think>",
        "a",
        "b",
        "</think>",
        "c",
        "<e>",
        "<think>",
        "d",
        "</think>",
        "e",
        "<e>",
    ]


def test_case_TMPL_08(cases: Cases, by_words: Path, encoders: Any) -> None:
    case = cases["TMPL-08"]
    template = (
        "{% for m in messages %}<s> {{ m.role }} {% if m.role == 'assistant' %}<think> </think> {% endif %}{{ m.content }} <e> {% endfor %}"
        "{% if add_generation_prompt %}<s> assistant <think> </think> {% endif %}"
    )
    encoder = encoders(by_words, chat_template=template)
    messages = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "ok"}]
    tokens, mask = rendered(encoder, one(encoder, {"messages": messages}))
    turn = case["input"]["rendered_last_turn"]
    assert tokens[-len(turn) :] == turn
    assert mask[-len(turn) :] == case["expectation"]["mask_default"]


# ---------------------------------------------------------------------- bos_eos


def test_case_EOS_01(cases: Cases, with_bos: Path, encoders: Any) -> None:
    case = cases["EOS-01"]
    given = case["input"]
    assert (given["bos_id"], given["eos_id"]) == (1, 2)
    encoder = encoders(
        with_bos, chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"
    )
    ids = one(encoder, {"messages": [{"role": "user", "content": "a"}]}).input_ids.tolist()
    assert ids.count(1) == case["expectation"]["bos_count"] and ids.count(2) == case["expectation"]["eos_count"]
    assert one(encoder, {"input_ids": given["ids_without_specials"]}).input_ids.tolist() == case["expectation"]["ids"]
    document = one(encoder, {"text": "<s>a</s>"}).input_ids.tolist()
    assert document.count(1) == 1 and document.count(2) == 1


def test_case_EOS_02(cases: Cases, small: Path, encoders: Any) -> None:
    case = cases["EOS-02"]
    assert case["input"]["pad_id"] == case["input"]["eos_id"] == 2
    encoder = encoders(small)  # its pad token is its EOS
    assert encoder.vocabulary.special["pad_token"] == encoder.vocabulary.special["eos_token"]
    targets, _ = made(one(encoder, {"input_ids": case["input"]["ids"]}))
    assert targets == case["expectation"]["labels_unshifted"][: len(targets)]
    assert made(one(encoder, {"text": "a b"}))[0][-1] == 2


def test_case_EOS_04(cases: Cases, small: Path, encoders: Any) -> None:
    case = cases["EOS-04"]
    encoder = encoders(small, append_eos="always")
    found = [one(encoder, {"input_ids": ids}).input_ids.tolist() for ids in case["input"]["samples"]]
    assert found == case["expectation"]["samples_out"]


# ---------------------------------------------------------------------- labels


def test_case_LBL_01(cases: Cases, encoders: Any) -> None:
    case = cases["LBL-01"]
    found = [made(one(encoders(None), {"input_ids": ids}))[0] for ids in case["input"]["samples"]]
    assert [target for targets in found for target in targets] == case["expectation"]["labels"]


def test_case_LBL_07(cases: Cases, encoders: Any) -> None:
    case = cases["LBL-07"]
    mask: list[int] = []
    for sample in case["input"]["samples"]:
        record = {"input_ids": sample["ids"]} | ({"completion_mask": sample["mask"]} if "mask" in sample else {})
        done = one(encoders(None), record)
        covered = np.zeros(done.input_ids.size, int)
        for span in done.spans:
            covered[span["start"] : span["stop"]] = 1
        mask += covered.tolist()
    assert mask == case["expectation"]["packed_mask"]
    flat, _ = runs(np.array(mask, bool), np.array([3, 2]), "given")
    assert flat[["start", "stop"]].tolist() == [(0, 3), (1, 2)]


def test_case_LBL_10(cases: Cases, small: Path, encoders: Any) -> None:
    case = cases["LBL-10"]
    separator = encoders(small).vocabulary.backend.id_to_token(case["input"]["separator_id"])
    encoder = encoders(small, append_eos="always", template_options={"eos_token": separator})
    found = [one(encoder, {"input_ids": ids}) for ids in case["input"]["samples"]]
    assert [int(token) for done in found for token in done.input_ids] == case["expectation"]["tokens"]
    assert [target for done in found for target in made(done)[0]] == case["expectation"]["labels"]
    assert [done.input_ids.size for done in found] == case["expectation"]["segments"]
    assert all(done.spans[-1]["terminator"] for done in found)


def test_case_OVR_02(cases: Cases, small: Path, encoders: Any) -> None:
    case = cases["OVR-02"]["input"]
    encoder = encoders(small, append_eos="never")
    done = one(
        encoder,
        {"input_ids": list(range(10, 19)), "completion_mask": [0] * case["prompt_tokens"] + [1] * case["answer_tokens"]},
    )
    kept = made(done)[0][: case["capacity"]]
    assert len(kept) == 6 and sum(target != IGNORE for target in kept) == 1


# ---------------------------------------------------------------------- aux_columns


def test_case_AUX_01(cases: Cases, encoders: Any) -> None:
    case = cases["AUX-01"]
    encoder = encoders(None, columns={"weight": "weight"}, carry=("source",))
    found = [
        one(encoder, {"input_ids": sample["ids"], **{k: sample[k] for k in ("weight", "source")}})
        for sample in case["input"]["samples"]
    ]
    assert [float(weight) for done in found for weight in made(done)[1]] == case["expectation"]["token_weight"]
    assert [done.columns["source"] for done in found] == case["expectation"]["segment_source"]


def test_case_AUX_02(cases: Cases, encoders: Any) -> None:
    case = cases["AUX-02"]
    columns = case["input"]["columns"]
    done = one(encoders(None, carry=("text",)), {"input_ids": columns["input_ids"][0], "text": columns["text"][0]})
    assert done.columns["text"] == case["expectation"]["text_out"][0][0]


def test_case_AUX_04(cases: Cases, encoders: Any) -> None:
    case = cases["AUX-04"]
    encoder = encoders(None, carry=("label",))
    found = [one(encoder, {"input_ids": sample["ids"], "label": sample["label"]}) for sample in case["input"]["samples"]]
    assert [done.columns["label"] for done in found] == case["expectation"]["segment_labels"]
    assert all(isinstance(Sample(done.input_ids), Sample) for done in found)
