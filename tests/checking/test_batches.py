"""check_batch: planted faults in one live batch, beside the same batch without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloison import Segments, check_batch
from cloison.errors import InputError

torch = pytest.importorskip("torch")

SEG = Segments.from_lengths([[3, 2], [4]], capacity=6)
IDS = np.array([[11, 12, 13, 21, 22, 0], [31, 32, 33, 34, 0, 0]])
LABELS = np.array([[-100, 12, 13, -100, 22, -100], [-100, 32, 33, 34, -100, -100]])
Batch = dict[str, Any]


def flat() -> Batch:
    ids = torch.tensor([[11, 12, 13, 21, 22, 31, 32, 33, 34]])
    seg = Segments.from_lengths([3, 2, 4])
    labels = ids.clone()
    labels[0, seg.first_tokens().tolist()] = -100
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.tensor(seg.position_ids()),
        "cu_seq_lens_q": torch.tensor(seg.cu_seqlens()),
        "cu_seq_lens_k": torch.tensor(seg.cu_seqlens()),
        "max_length_q": 4,
        "max_length_k": 4,
        "seq_idx": torch.tensor(seg.segment_ids() - 1),
        "use_cache": False,
    }


def wide(dtype: Any = None) -> Batch:
    mask = torch.tensor(SEG.dense_mask())
    if dtype is not None:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return {
        "input_ids": torch.tensor(IDS),
        "labels": torch.tensor(LABELS),
        "position_ids": torch.tensor(SEG.position_ids()),
        "attention_mask": mask,
        "use_cache": False,
    }


def megatron() -> Batch:
    ids = IDS[:1, :5]
    targets = np.array([[12, 13, 999, 22, 999]])
    return {
        "tokens": ids,
        "labels": targets,
        "loss_mask": np.array([[1.0, 1.0, 0.0, 1.0, 0.0]]),
        "position_ids": np.array([[0, 1, 2, 0, 1]]),
        "cu_seqlens": np.array([0, 3, 5, -1]),
        "max_seqlen": np.array([3]),
    }


BATCHES: dict[str, Callable[[], Batch]] = {
    "flat": flat,
    "float mask": lambda: wide(torch.float32),
    "bfloat16 mask": lambda: wide(torch.bfloat16),
    "float16 mask": lambda: wide(torch.float16),
    "megatron": megatron,
}


@pytest.mark.parametrize("name", BATCHES)
def test_right_batches_are_quiet(name: str) -> None:
    report = check_batch(BATCHES[name](), vocab_size=100)
    assert not report.findings, str(report)
    assert report.counts["segments"] == (2 if name == "megatron" else 3)


def test_a_dict_of_masks_and_shift_labels_are_read() -> None:
    batch = wide(torch.float32)
    batch["attention_mask"] = {"full_attention": batch["attention_mask"]}
    shifted = np.full_like(LABELS, -100)
    shifted[:, :-1] = LABELS[:, 1:]
    batch["shift_labels"] = torch.tensor(shifted)
    assert not check_batch(batch).findings


def _crossing(batch: Batch) -> None:
    batch["attention_mask"][0, 0, 3, 2] = 0.0


def _narrow(batch: Batch) -> None:
    batch["attention_mask"][1, 0, 3, 0] = torch.finfo(torch.float32).min


def _run_on(batch: Batch) -> None:
    batch["position_ids"] = torch.arange(9)[None]


FAULTS: list[tuple[str, Callable[[Batch], Any], list[str]]] = [
    ("float mask", _crossing, ["mask_crosses"]),
    ("float mask", lambda batch: batch.update(attention_mask=torch.zeros(1, 1, 6, 6)), ["mask_crosses"]),
    ("float mask", _narrow, ["mask_too_narrow"]),
    ("float mask", lambda batch: batch.update(attention_mask=torch.tensor(SEG.dense_mask())), ["mask_is_bool"]),
    ("float mask", lambda batch: batch["labels"].__setitem__((0, 5), 7), ["wrong_token", "boundary_target"]),
    ("flat", lambda batch: batch.update(input_ids=batch["input_ids"].float()), ["not_integer"]),
    ("flat", lambda batch: batch.update(input_ids=batch["input_ids"].bfloat16()), ["not_integer"]),
    ("flat", lambda batch: batch.update(labels=batch["labels"].double()), ["not_integer"]),
    ("flat", lambda batch: batch.update(max_length_q=3), ["max_length_wrong"]),
    ("flat", lambda batch: batch.update(cu_seq_lens_q=[0, 3, 9]), ["boundaries_disagree", "max_length_wrong"]),
    ("flat", lambda batch: batch.update(cu_seq_lens_q=[3, 9]), ["lengths_disagree"]),
    ("flat", lambda batch: batch.update(cu_seq_lens_q=[0, 3, 12]), ["lengths_disagree"]),
    ("flat", _run_on, ["positions_not_restarted"]),
    ("flat", lambda batch: batch.update(attention_mask=torch.ones(1, 9)), ["mask_hides_boundaries"]),
    ("flat", lambda batch: batch.update(seq_idx=torch.zeros(1, 9, dtype=torch.int32)), ["boundaries_disagree"]),
    ("flat", lambda batch: batch["labels"].__setitem__((0, 3), 21), ["boundary_target"]),
    ("flat", lambda batch: batch.update(labels=torch.roll(batch["input_ids"], -1, 1)), ["shifted_twice"]),
    ("flat", lambda b: b.update(shift_labels=torch.roll(b["input_ids"], -1, 1)), ["boundary_target", "target_past_row"]),
    ("flat", lambda batch: batch.update(shift_labels=batch["labels"]), ["not_shifted"]),
    ("megatron", lambda batch: batch.update(loss_mask=np.ones((1, 5))), ["wrong_token", "boundary_target", "target_past_row"]),
    ("megatron", lambda batch: batch.update(position_ids=np.arange(5)[None]), ["positions_not_restarted"]),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(FAULTS)))
def test_a_planted_fault_is_named_and_nothing_else_is(index: int) -> None:
    name, plant, kinds = FAULTS[index]
    batch = BATCHES[name]()
    plant(batch)
    report = check_batch(batch, vocab_size=100)
    assert {*report.kinds("error"), *report.kinds("warning")} == set(kinds), str(report)


def left_padded() -> Batch:
    """The rows of `wide`, padded on the left as preference trainers and generation have them."""
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    return {
        "input_ids": torch.tensor([[0, 11, 12, 13, 14, 15], [0, 0, 31, 32, 33, 34]]),
        "labels": torch.tensor([[-100, -100, 12, 13, 14, 15], [-100, -100, -100, 32, 33, 34]]),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "use_cache": False,
    }


def test_padding_on_the_left_is_padding() -> None:
    """Rows are read from their first token on, and places are told as they are in the batch."""
    report = check_batch(left_padded(), seq_lengths=[[5], [4]])
    assert not report.findings, str(report)
    assert (report.counts["tokens"], report.counts["targets"], report.counts["segments"]) == (9, 7, 2)
    wrong = left_padded()
    wrong["labels"][1, 0] = 3
    wrong["labels"][0, 4] = 7
    found = {finding.kind: finding.where for finding in check_batch(wrong).findings}
    assert set(found) == {"padding_trained", "wrong_token"}
    assert (found["padding_trained"]["row"], found["padding_trained"]["position"]) == (1, 0)
    assert (found["wrong_token"]["row"], found["wrong_token"]["position"]) == (0, 4)


def test_offsets_without_a_segment_are_no_boundaries() -> None:
    """What accelerate's dispatcher leaves of cu_seq_lens in a streamed batch of one row."""
    assert check_batch(flat() | {"cu_seq_lens_q": torch.tensor([0])}).kinds("error") == ["lengths_disagree"]


def test_a_batch_of_embeddings_alone_is_held_against_its_boundaries() -> None:
    """Everything but the ids is looked at, and that they were not is said."""
    batch = flat()
    batch["inputs_embeds"] = torch.zeros(1, 9, 4)
    del batch["input_ids"]
    report = check_batch(batch, vocab_size=10)
    assert not report.findings and any("inputs_embeds" in reason for reason in report.not_checked), str(report)
    assert report.counts["segments"] == 3 and report.counts["targets"] == 6
    for plant, kind in (
        (lambda b: b["labels"].__setitem__((0, 3), 21), "boundary_target"),
        (lambda b: b.update(position_ids=torch.arange(9)[None]), "positions_not_restarted"),
        (lambda b: b.update(attention_mask=torch.ones(1, 9)), "mask_hides_boundaries"),
    ):
        wrong = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        plant(wrong)
        assert check_batch(wrong).kinds("error") == [kind]
    shifted = {**batch, "shift_labels": torch.tensor([[12, 13, -100, 22, -100, 32, 33, 34, -100]])}
    assert not check_batch(shifted).findings
    shifted["shift_labels"][0, 2] = 21
    assert check_batch(shifted).kinds("error") == ["boundary_target"]


def test_a_cache_that_may_be_on_is_noted() -> None:
    batch = flat()
    for name in ("use_cache", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
        batch.pop(name)
    report = check_batch(batch)
    assert report.ok and report.kinds() == ["cache_on"]
    assert not check_batch(batch | {"use_cache": False}).findings


def test_known_lengths_tell_of_positions_that_never_restart() -> None:
    batch = {"input_ids": [[5, 6, 7, 8]], "position_ids": [[0, 1, 2, 3]], "use_cache": False}
    assert check_batch(batch).ok
    assert check_batch(batch, seq_lengths=[2, 2]).kinds("error") == ["positions_not_restarted"]
    assert check_batch(batch, seq_lengths=[2, 3]).kinds("error") == ["lengths_disagree"]


@pytest.mark.parametrize(
    ("batch", "asked"),
    [
        ({"labels": [[1]]}, "a batch needs input_ids"),
        ({"input_ids": [["a"]]}, "input_ids must be integers"),
        ({"inputs_embeds": np.zeros((2, 3))}, "inputs_embeds must be [B, T, width]"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, "labels must have the shape"),
        ({"input_ids": [[1, 2]], "position_ids": [[1, 2], [1, 2]]}, "position_ids must have the shape"),
        ({"input_ids": [[1, 2]], "attention_mask": np.zeros((1, 1, 2, 3))}, "a 4-D mask must be"),
    ],
)
def test_arrays_that_do_not_belong_together_are_errors(batch: Batch, asked: str) -> None:
    with pytest.raises(InputError) as caught:
        check_batch(batch)
    assert asked in caught.value.asked and caught.value.remedy
