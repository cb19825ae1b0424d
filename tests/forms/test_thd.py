"""Packed sequences for Transformer Engine and Megatron: real and padded offsets, shift before split, both splits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import BoundaryError, InputError
from cloison.forms import thd
from cloison.segments import IGNORE, Segments
from tests.forms.forms_reference import a_block, segments

torch = pytest.importorskip("torch")


def _seen(real: Any, wide: Any, total: int) -> np.ndarray[Any, Any]:
    """What a thd kernel lets a query see: real lengths from the one offsets, places from the other."""
    out = np.zeros((total, total), np.bool_)
    for index in range(len(real) - 1):
        start, length = int(wide[index]), int(real[index + 1] - real[index])
        assert length <= int(wide[index + 1]) - start
        out[start : start + length, start : start + length] = np.tri(length, dtype=np.bool_)
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.sampled_from([1, 4, 16]), st.integers(1, 4), st.integers(0, 3))
def test_the_kernel_sees_each_segment_and_no_padding(lengths: list[int], align: int, cp: int, extra: int) -> None:
    block = a_block(lengths)
    multiple = np.lcm(align, 2 * cp if cp > 1 else 1)
    total = int(sum(-(-length // multiple) * multiple for length in lengths) + extra * multiple)
    batch = thd.batch(block, align=align, cp=cp, total=total)
    params = batch["packed_seq_params"]
    real, wide = params["cu_seqlens_q"], params["cu_seqlens_q_padded"]
    assert real.dtype == wide.dtype == torch.int32
    assert wide[-1] == batch["tokens"].shape[1] == params["total_tokens"] == total
    assert (wide.diff() % multiple == 0).all()
    assert params["max_seqlen_q"] == int(wide.diff().max())
    mask = _seen(real.tolist(), wide.tolist(), total)
    valid = ~batch["padding_mask"][0].numpy()
    assert np.array_equal(mask[valid][:, valid], block.segments.dense_mask()[0, 0])
    assert not mask[~valid].any()
    assert not mask[:, ~valid].any()
    assert batch["tokens"][0, valid].tolist() == block.input_ids.tolist()
    assert batch["position_ids"][0, valid].tolist() == Segments.from_lengths([lengths]).position_ids()[0].tolist()


def test_labels_are_shifted_inside_each_padded_segment() -> None:
    block = a_block([5, 3, 4], loss_weights=np.linspace(0.5, 1.5, 12))
    batch = thd.batch(block, align=4)
    valid = ~batch["padding_mask"][0].numpy()
    targets = block.targets
    trained = targets != IGNORE
    assert batch["labels"][0, valid][trained].tolist() == targets[trained].tolist()
    weights = block.segments.targets(block.loss_weights, fill=0)
    assert np.array_equal(batch["loss_mask"][0, valid].numpy(), np.where(trained, weights, 0))
    assert not batch["loss_mask"][0, ~valid].any()
    assert not batch["labels"][0, ~valid].any()


@settings(max_examples=40, deadline=None)
@given(segments(), st.integers(1, 4))
def test_the_zigzag_gives_every_token_to_one_rank_and_all_ranks_the_same_work(seg: Segments, cp: int) -> None:
    wide = thd.padded(seg, cp=cp, align=2 * cp)
    parts = [thd.zigzag_indices(wide, cp, rank) for rank in range(cp)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(wide.num_tokens))
    work = [int(wide.position_ids()[0][part].sum()) for part in parts]
    assert len(set(work)) == 1


def test_the_zigzag_of_a_known_segment() -> None:
    wide = Segments.from_lengths([[8, 4]])
    assert thd.zigzag_indices(wide, 2, 0).tolist() == [0, 1, 6, 7, 8, 11]
    assert thd.zigzag_indices(wide, 2, 1).tolist() == [2, 3, 4, 5, 9, 10]


def test_a_split_batch_pairs_each_token_with_its_own_target() -> None:
    block = a_block([7, 6, 9])
    batch = thd.batch(block, cp=2)
    wide = Segments.from_cu_seqlens(batch["packed_seq_params"]["cu_seqlens_q_padded"].numpy())
    pairs = set()
    for rank in range(2):
        part = thd.split(batch, thd.zigzag_indices(wide, 2, rank))
        assert part["packed_seq_params"] is batch["packed_seq_params"]
        for token, label, weight in zip(*(part[key][0].tolist() for key in ("tokens", "labels", "loss_mask")), strict=True):
            if weight:
                pairs.add((token, label))
    trained = block.targets != IGNORE
    assert pairs == set(zip(block.input_ids[trained].tolist(), block.targets[trained].tolist(), strict=True))


def test_labels_that_a_model_would_shift_later_are_not_split() -> None:
    batch = cloison.collate([a_block([4, 4])])
    with pytest.raises(InputError, match="shifted before a batch is split"):
        thd.split(batch, thd.contiguous_indices(8, 2, 0))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: thd.padded(Segments.from_lengths([[3]]), cp=0), InputError, "at least 1"),
        (lambda: thd.padded(Segments.from_lengths([[3]]), cp=2, total=6), InputError, "multiple of 4"),
        (lambda: thd.padded(Segments.from_lengths([[3, 9]]), cp=2, total=8), BoundaryError, "must fit 8"),
        (lambda: thd.zigzag_indices(Segments.from_lengths([[4, 6]]), 2, 0), InputError, "multiple of 2 \\* cp = 4"),
        (lambda: thd.zigzag_indices(Segments.from_lengths([[4]]), 2, 2), InputError, "It is 2 of 2"),
        (lambda: thd.contiguous_indices(7, 2, 0), InputError, "multiple of 2 ranks"),
        (lambda: thd.contiguous_indices(8, 0, 0), InputError, "It is 0 of 0"),
    ],
)
def test_wrong_use_raises(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_case_CP_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["CP-01"]
    seg = Segments.from_lengths([case["input"]["lengths"]])
    wide = thd.padded(seg, cp=case["input"]["cp"])
    params = thd.packed_seq_params(seg, cp=case["input"]["cp"])
    expected = case["expectation"]
    assert wide.seq_lengths.tolist() == expected["padded_lengths"]
    assert params["cu_seqlens_q"].tolist() == params["cu_seqlens_kv"].tolist() == expected["cu_seqlens_real"]
    assert params["cu_seqlens_q_padded"].tolist() == params["cu_seqlens_kv_padded"].tolist() == expected["cu_seqlens_padded"]
    batch = thd.batch(a_block(case["input"]["lengths"]), align=expected["align"])
    assert int((~batch["padding_mask"]).sum()) == expected["tokens_trained"]


def test_case_CP_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["CP-02"]
    seg = Segments.from_cu_seqlens(case["input"]["cu_seqlens_fixed_size"])
    assert thd.packed_seq_params(seg)["cu_seqlens_q"].tolist() == case["expectation"]["cu_seqlens"]


def test_case_CP_04(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["CP-04"]
    ranks = case["input"]["sp"]
    [block] = cloison.pack_samples(case["input"]["samples"], capacity=4)
    batch = cloison.collate([block])
    batch["shift_labels"] = torch.tensor(block.targets[None].astype(np.int64))
    parts = [thd.split(batch, thd.contiguous_indices(block.num_tokens, ranks, rank)) for rank in range(ranks)]
    assert [part["input_ids"][0].tolist() for part in parts] == case["expectation"]["inputs_by_rank"]
    assert [part["shift_labels"][0].tolist() for part in parts] == case["expectation"]["targets_by_rank"]


@pytest.mark.gpu
def test_on_a_gpu_the_split_is_that_of_transformer_engine() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    extension = pytest.importorskip("transformer_engine_torch")
    wide = thd.padded(Segments.from_lengths([[70, 33, 129]]), cp=4)
    offsets = torch.tensor(wide.cu_seqlens(), device="cuda")
    for rank in range(4):
        theirs = extension.thd_get_partitioned_indices(offsets, wide.num_tokens, 4, rank)
        assert theirs.tolist() == thd.zigzag_indices(wide, 4, rank).tolist()
