"""Segments: every view against twenty slow lines, and every reported fault about boundaries that it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison import Block, Sample, Segments
from cloison.errors import BoundaryError, InputError
from cloison.segments import IGNORE

Case = dict[str, dict[str, Any]]

rows_of_lengths = st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=5)


@st.composite
def segments(draw: st.DrawFn, ragged: bool = True) -> Segments:
    rows = draw(rows_of_lengths)
    fullest = max(sum(row) for row in rows)
    extra = draw(st.integers(0, 4))
    width = max(1, fullest + extra)
    return Segments.from_lengths(rows, capacity=draw(st.sampled_from([None, width])) if ragged else width)


# ---------------------------------------------------------------------- slow oracles


def slow_ids(seg: Segments) -> list[list[int]]:
    out = []
    for row in seg.rows():
        ids = [number for number, length in enumerate(row, 1) for _ in range(length)]
        out.append(ids + [0] * (seg.width - len(ids)))
    return out


def slow_positions(seg: Segments) -> list[list[int]]:
    out = []
    for row in seg.rows():
        places = [place for length in [*row, seg.width - sum(row)] for place in range(length)]
        out.append(places)
    return out


def slow_mask(seg: Segments, causal: bool, window: int | None, chunk: int | None) -> np.ndarray:
    ids, positions = slow_ids(seg), slow_positions(seg)
    out = np.zeros((seg.num_rows, 1, seg.width, seg.width), bool)
    for b in range(seg.num_rows):
        for i in range(seg.width):
            for j in range(seg.width):
                ok = ids[b][i] == ids[b][j] and (j <= i or not causal)
                if window is not None:
                    ok = ok and abs(i - j) < window
                if chunk is not None:
                    ok = ok and positions[b][i] // chunk == positions[b][j] // chunk
                out[b, 0, i, j] = ok
    return out


def slow_targets(lengths: list[int], labels: list[int], depth: int) -> list[int]:
    out, start = [], 0
    for length in lengths:
        own = labels[start : start + length]
        out += [own[i + depth] if i + depth < length else IGNORE for i in range(length)]
        start += length
    return out


# ---------------------------------------------------------------------- properties


@settings(deadline=None)
@given(segments())
def test_segment_ids_and_positions_are_those_of_the_slow_form(seg: Segments) -> None:
    ids, positions = seg.segment_ids(), seg.position_ids()
    assert ids.tolist() == slow_ids(seg) and ids.dtype == np.int32
    assert positions.tolist() == slow_positions(seg) and positions.dtype == np.int64
    assert seg.position_ids(start=2).tolist() == (positions + 2).tolist()


@settings(deadline=None)
@given(segments(), st.booleans(), st.sampled_from([None, 1, 3]), st.sampled_from([None, 1, 4]))
def test_the_dense_mask_is_that_of_the_slow_form(seg: Segments, causal: bool, window: int | None, chunk: int | None) -> None:
    mask = seg.dense_mask(causal=causal, window=window, chunk=chunk)
    assert mask.dtype == bool
    assert np.array_equal(mask, slow_mask(seg, causal, window, chunk))
    assert mask.any(-1).all(), "no row is empty"
    ids = seg.segment_ids()
    assert not (mask[:, 0] & (ids[:, :, None] != ids[:, None, :])).any()


@settings(deadline=None)
@given(segments())
def test_offsets_cover_what_they_say(seg: Segments) -> None:
    real, covering = seg.cu_seqlens(), seg.cu_seqlens(covering=True)
    assert real.dtype == covering.dtype == np.int32
    for offsets, total in ((real, seg.num_tokens), (covering, seg.num_rows * seg.width)):
        assert offsets[0] == 0 and offsets[-1] == total
        assert (np.diff(offsets) > 0).all()
    static = seg.cu_seqlens(static=seg.num_segments + seg.num_rows)
    assert static.size == seg.num_segments + seg.num_rows + 2
    assert np.array_equal(np.unique(static), covering) and (np.diff(static) >= 0).all()


@settings(deadline=None)
@given(segments(ragged=False))
def test_what_is_read_back_from_each_view_is_the_same(seg: Segments) -> None:
    assert Segments.from_segment_ids(seg.segment_ids()) == seg
    assert Segments.from_position_ids(seg.position_ids(), seg.row_tokens) == seg
    flat = Segments.from_cu_seqlens(seg.cu_seqlens())
    assert flat.seq_lengths.tolist() == seg.seq_lengths.tolist()
    assert Segments.from_lengths(seg.rows(), seg.capacity) == seg
    covered = Segments.from_cu_seqlens(seg.cu_seqlens(covering=True), row_length=seg.width)
    with_tails = [row + ([seg.width - sum(row)] if sum(row) < seg.width else []) for row in seg.rows()]
    assert covered.rows() == with_tails


@settings(deadline=None)
@given(segments(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_targets_are_shifted_inside_each_segment(seg: Segments, depth: int, random: Any) -> None:
    labels = [random.choice([IGNORE, 5, 6, 7]) for _ in range(seg.num_tokens)]
    assert seg.targets(labels, depth).tolist() == slow_targets(seg.seq_lengths.tolist(), labels, depth)
    weights = np.array([random.random() for _ in labels], np.float32)
    assert seg.targets(weights, fill=0.0)[np.cumsum(seg.seq_lengths) - 1].tolist() == [0.0] * seg.num_segments


@settings(deadline=None)
@given(segments())
def test_rows_sizes_and_slices_agree(seg: Segments) -> None:
    assert [one.rows()[0] for one in seg] == seg.rows()
    assert seg.row_tokens.tolist() == [sum(row) for row in seg.rows()]
    assert seg.num_segments == sum(len(row) for row in seg.rows()) and len(seg) == seg.num_rows
    assert seg.max_seqlen == max((length for row in seg.rows() for length in row), default=0)
    starts = [0]
    for length in seg.seq_lengths:
        starts.append(starts[-1] + int(length))
    assert seg.first_tokens().tolist() == starts[:-1]
    assert seg[-1] == seg[seg.num_rows - 1]
    with pytest.raises(IndexError):
        seg[seg.num_rows]


@settings(deadline=None)
@given(rows_of_lengths, st.integers(1, 5))
def test_aligned_lengths_are_the_next_multiples(rows: list[list[int]], multiple: int) -> None:
    seg = Segments.from_lengths(rows)
    aligned = seg.align(multiple)
    assert (aligned.seq_lengths % multiple == 0).all()
    assert ((aligned.seq_lengths - seg.seq_lengths) >= 0).all() and ((aligned.seq_lengths - seg.seq_lengths) < multiple).all()
    assert aligned.row_offsets.tolist() == seg.row_offsets.tolist()


@settings(deadline=None)
@given(segments())
def test_views_are_read_only_and_segments_are_values(seg: Segments) -> None:
    for view in (seg.seq_lengths, seg.row_offsets, seg.cu_seqlens(), seg.segment_ids(), seg.position_ids(), seg.dense_mask()):
        assert not view.flags.writeable
    twin = Segments.from_lengths(seg.rows(), seg.capacity)
    assert twin == seg and hash(twin) == hash(seg)
    assert seg != Segments.from_lengths(seg.rows(), seg.width + 1)


@settings(deadline=None)
@given(segments(ragged=False), st.integers(0, 2**31))
def test_any_ids_that_differ_side_by_side_state_the_same_segments(seg: Segments, salt: int) -> None:
    ids = seg.segment_ids().astype(np.int64)
    other = np.where(ids > 0, ids * 7919 + salt + 1, -1)
    assert Segments.from_segment_ids(other, padding=-1) == seg


# ---------------------------------------------------------------------- errors, each beside what is right


@pytest.mark.parametrize(
    ("build", "asked", "found"),
    [
        (lambda: Segments.from_lengths([[3, -1]]), "lengths are 0 or more", "-1"),
        (lambda: Segments.from_lengths([[1.5]]), "must be integers", "float64"),
        (lambda: Segments.from_lengths([[True]]), "must be integers", "bool"),
        (lambda: Segments.from_lengths([[2**31]]), "fit int32", str(2**31)),
        (lambda: Segments.from_lengths([[3, 3]], capacity=5), "at most 5", "Row 0 has 6 (1 of 1"),
        (lambda: Segments.from_lengths([3], capacity=0), "capacity must be at least 1", "0"),
        (lambda: Segments.from_cu_seqlens([1, 3]), "start with 0", "[1, 3]"),
        (lambda: Segments.from_cu_seqlens([0, 3, 2]), "must increase", "Entry 2 is 2 after 3"),
        (lambda: Segments.from_cu_seqlens([0, 0, 2]), "must increase", "Entry 1 is 0 after 0"),
        (lambda: Segments.from_cu_seqlens([0, -1, 2]), "must increase", "-1"),
        (lambda: Segments.from_cu_seqlens([0, 3, 8], row_length=4), "every row edge", "miss one"),
        (lambda: Segments.from_segment_ids([1, 0, 2]), "padding may only follow", "Position 1"),
        (lambda: Segments.from_segment_ids([1, 2, 1]), "one unbroken run", "comes back"),
        (lambda: Segments.from_segment_ids([[[1]]]), "[T] or [B, T]", "[1, 1, 1]"),
        (lambda: Segments.from_position_ids(np.zeros((2, 1, 4), int)), "[3, B, T]", "[2, 1, 4]"),
        (lambda: Segments.from_position_ids([[0, 1]], [3]), "0 to 2 valid", "[3]"),
        (lambda: Segments.from_position_ids([[0, 1]], [1, 1]), "[1] of", "[1, 1]"),
        (lambda: Segments.from_lengths([3]).targets([1, 2]), "the 3 tokens", "[2]"),
        (lambda: Segments.from_lengths([3]).targets([1, 2, 3], depth=0), "depth must be at least 1", "0"),
        (lambda: Segments.from_lengths([3]).dense_mask(window=0), "window must be at least 1", "0"),
        (lambda: Segments.from_lengths([3]).dense_mask(chunk=0), "chunk must be at least 1", "0"),
        (lambda: Segments.from_lengths([3]).dense_mask(prefix_lengths=[1, 1]), "one entry for each of 1", "2"),
        (lambda: Segments.from_lengths([2, 2, 2]).cu_seqlens(static=1), "hold 3 entries", "need 4"),
        (lambda: Segments.from_lengths([[2**31 - 1], [1]]).cu_seqlens(), "cu_seqlens are int32", "2,147,483,648"),
        (lambda: Segments.from_lengths([3]).align(0), "align must be at least 1", "0"),
    ],
)
def test_what_cannot_be_right_says_what_was_asked_and_found(build: Any, asked: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert asked in caught.value.asked and found in caught.value.found and caught.value.remedy


def test_a_prefix_is_seen_by_the_whole_of_its_own_segment_only() -> None:
    mask = Segments.from_lengths([3, 2]).dense_mask(prefix_lengths=[2, 1])[0, 0].astype(int)
    assert mask.tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]


def test_flat_lists_arrays_and_nothing() -> None:
    assert Segments.from_lengths([3, 2]) == Segments.from_lengths([[3, 2]]) == Segments.from_lengths(np.array([3, 2]))
    assert Segments.from_lengths(np.array([[3, 2], [4, 1]])).rows() == [[3, 2], [4, 1]]
    empty = Segments.from_lengths([])
    assert (empty.num_rows, empty.num_segments, empty.width) == (0, 0, 0)
    assert empty.cu_seqlens().tolist() == [0] and empty.segment_ids().shape == (0, 0)
    assert Segments.from_lengths([[]], capacity=3).position_ids().tolist() == [[0, 1, 2]]


# ---------------------------------------------------------------------- reported faults, by id


def test_case_XATT_01(cases: Case) -> None:
    """The mask; that logits do not move is an experiment on a model."""
    case = cases["XATT-01"]
    seg = Segments.from_lengths([len(ids) for ids in case["input"]["samples"]], case["input"]["capacity"])
    assert seg.segment_ids()[0].tolist() == case["expectation"]["segment_ids"]
    assert seg.dense_mask()[0, 0].astype(int).tolist() == case["expectation"]["allowed"]


def test_case_XATT_04(cases: Case) -> None:
    want = cases["XATT-04"]["expectation"]
    seg = Segments.from_segment_ids(cases["XATT-04"]["input"]["segment_id_row"])
    assert seg.rows() == [want["segments"]]
    assert seg.cu_seqlens().tolist() == want["cu_seqlens"]
    assert (seg.max_seqlen, seg.num_tokens) == (want["max_seqlen"], want["real_tokens"])
    with pytest.raises(BoundaryError):
        Segments.from_segment_ids(np.array(cases["XATT-04"]["input"]["segment_id_row"], bool))


def test_case_XATT_05(cases: Case) -> None:
    case = cases["XATT-05"]
    seg = Segments.from_lengths([row["segments"] for row in case["input"]["rows"]], case["input"]["row_length"])
    want = case["expectation"]
    assert seg.cu_seqlens().tolist() == want["flattened_cu_seqlens"]
    assert seg.max_seqlen == want["max_seqlen"]
    assert seg.position_ids().tolist() == want["position_ids_rows"]
    assert Segments.from_cu_seqlens(want["flattened_cu_seqlens"], row_length=case["input"]["row_length"]) == seg


def test_case_XATT_07(cases: Case) -> None:
    case = cases["XATT-07"]
    seg = Segments.from_position_ids(case["input"]["position_ids"])
    assert seg.rows() == [case["expectation"]["segments"]]
    assert seg.cu_seqlens().tolist() == case["expectation"]["cu_seqlens"]
    assert seg.max_seqlen == case["expectation"]["max_seqlen"]


def test_case_XATT_08(cases: Case) -> None:
    case = cases["XATT-08"]
    seg = Segments.from_position_ids(np.array(case["input"]["position_ids_3axis"]))
    assert seg.rows() == [case["expectation"]["segments"]]
    assert seg.cu_seqlens().tolist() == case["expectation"]["cu_seqlens"]
    text_first = np.array([[[0, 1, 2, 0, 1]], [[0, 0, 0, 0, 0]], [[0, 1, 0, 0, 1]], [[0, 0, 1, 0, 0]]])
    assert Segments.from_position_ids(text_first).rows() == [[3, 2]]


def test_case_XATT_09(cases: Case) -> None:
    case = cases["XATT-09"]
    want = case["expectation"]
    seg = Segments.from_lengths(case["input"]["lengths"], case["input"]["capacity"])
    assert seg.segment_ids()[0].tolist() == want["segment_ids"]
    assert seg.cu_seqlens().tolist() == want["cu_seqlens_real"]
    assert seg.cu_seqlens(covering=True).tolist() == want["cu_seqlens_covering"]
    wrong = list(want["wrong_if"].values())
    assert seg.cu_seqlens(covering=True).tolist() not in wrong
    mask = seg.dense_mask()[0, 0]
    assert not mask[:5, 5:].any() and not mask[5:, :5].any() and mask[7, 5]


def test_case_XATT_11(cases: Case) -> None:
    case = cases["XATT-11"]
    mask = Segments.from_lengths(case["input"]["lengths"]).dense_mask(causal=False)
    assert mask[0, 0].astype(int).tolist() == case["expectation"]["allowed"]


def test_case_BND_01(cases: Case) -> None:
    """Lengths come from the samples; a scan for the end of text gives others."""
    case = cases["BND-01"]
    samples = case["input"]["samples"]
    seg = Segments.from_lengths([len(ids) for ids in samples])
    assert seg.rows() == [case["expectation"]["segments"]]
    flat = np.concatenate(samples)
    scanned = np.diff(np.flatnonzero(flat == case["input"]["eos_id"]) + 1, prepend=0).tolist()
    assert scanned == case["expectation"]["wrong_if"]["eos_scan_segments"] != seg.rows()[0]


def test_case_BND_02(cases: Case) -> None:
    """Inputs without their last token, targets without their first: the lengths shrink with them."""
    case = cases["BND-02"]
    samples = [Sample(ids) for ids in case["input"]["samples"]]
    seg = Segments.from_lengths([len(sample) for sample in samples])
    labels = np.concatenate([sample.labels for sample in samples])
    ids = np.concatenate([sample.input_ids for sample in samples])
    last = np.cumsum(seg.seq_lengths) - 1
    inputs, targets = np.delete(ids, last), np.delete(seg.targets(labels), last)
    shrunk = Segments.from_lengths(seg.seq_lengths - 1)
    want = case["expectation"]
    assert inputs.tolist() == want["inputs"] and targets.tolist() == want["targets"]
    assert shrunk.rows() == [want["segments"]] and shrunk.position_ids()[0].tolist() == want["position_ids"]


def test_case_BND_04(cases: Case) -> None:
    """The padding id ends turns too, so only the true lengths say where the padding begins."""
    case = cases["BND-04"]
    padded = np.array(case["input"]["padded_rows"])
    seg = Segments.from_lengths([[n] for n in case["input"]["true_lengths"]], padded.shape[1])
    assert seg.seq_lengths.tolist() == case["expectation"]["segments"]
    assert (seg.segment_ids() > 0).sum(1).tolist() == case["expectation"]["segments"]


def _labels_of(samples: list[list[int]]) -> tuple[Segments, np.ndarray]:
    made = [Sample(ids) for ids in samples]
    return Segments.from_lengths([len(one) for one in made]), np.concatenate([one.labels for one in made])


def test_case_LBL_01(cases: Case) -> None:
    case = cases["LBL-01"]
    _, labels = _labels_of(case["input"]["samples"])
    assert labels.tolist() == case["expectation"]["labels"]
    assert (labels != IGNORE).sum() == case["expectation"]["scored"]


def test_case_LBL_02(cases: Case) -> None:
    case = cases["LBL-02"]
    seg, labels = _labels_of(case["input"]["samples"])
    targets = seg.targets(labels)
    assert targets.tolist() == case["expectation"]["targets"]
    assert (targets != IGNORE).sum() == case["expectation"]["scored"]
    assert targets.tolist() != case["expectation"]["wrong_if"]["global_roll"]


def test_case_LBL_03(cases: Case) -> None:
    """A weight lies at the token that predicts: the labels' weights, shifted inside each segment."""
    case = cases["LBL-03"]
    seg = Segments.from_segment_ids(case["input"]["segment_ids"])
    weights = seg.targets(case["input"]["token_mask"], fill=0)
    assert weights.tolist() == case["expectation"]["predictor_weights"]
    assert weights.sum() == case["expectation"]["trained_tokens"]


def test_case_LBL_05(cases: Case) -> None:
    case = cases["LBL-05"]
    seg = Segments.from_segment_ids(case["input"]["target_segment_ids"])
    weights = (seg.segment_ids()[0] > 0).astype(int)
    assert weights.tolist() == case["expectation"]["loss_weights"]
    assert weights.sum() == seg.num_tokens == case["expectation"]["denominator"]


def test_case_LBL_07(cases: Case) -> None:
    """A sample without labels is trained on every token but its first; the first tokens are -100 by contract."""
    case = cases["LBL-07"]
    samples = []
    for sample in case["input"]["samples"]:
        ids = np.array(sample["ids"])
        samples.append(Sample(ids, np.where(sample["mask"], ids, IGNORE) if "mask" in sample else None))
    trained = (np.concatenate([one.labels for one in samples]) != IGNORE).astype(int)
    mask = np.array(case["expectation"]["packed_mask"])
    first = Segments.from_lengths([len(one) for one in samples]).first_tokens()
    assert np.delete(trained, first).tolist() == np.delete(mask, first).tolist()
    assert trained[first].tolist() == [0, 0]


def test_case_LBL_08(cases: Case) -> None:
    case = cases["LBL-08"]
    seg, labels = _labels_of(case["input"]["samples"])
    assert seg.targets(labels, case["input"]["prediction_depth"]).tolist() == case["expectation"]["targets_depth2"]


def test_case_LBL_09(cases: Case) -> None:
    case = cases["LBL-09"]
    seg = Segments.from_segment_ids(case["input"]["segment_ids"], padding=-1)
    weights = np.zeros(seg.width, int)
    weights[: seg.num_tokens] = seg.targets(np.ones(seg.num_tokens, int), fill=0)
    assert weights.tolist() == case["expectation"]["predictor_weights"]


def test_case_LBL_10(cases: Case) -> None:
    """A separator ends the sample before it, and is a token of that sample like any other."""
    case = cases["LBL-10"]
    separator = case["input"]["separator_id"]
    assert case["input"]["separator_trained"]
    seg, labels = _labels_of([[*ids, separator] for ids in case["input"]["samples"]])
    want = case["expectation"]
    assert labels.tolist() == want["labels"] and seg.rows() == [want["segments"]]


def test_case_NAN_02(cases: Case) -> None:
    """A sample without tokens is no segment (that the ledger counts it is the planner's test)."""
    case = cases["NAN-02"]
    seg = Segments.from_lengths([len(ids) for ids in case["input"]["samples"]])
    assert seg.rows() == [case["expectation"]["segments"]]
    assert seg.cu_seqlens().tolist() == case["expectation"]["cu_seqlens"]


def test_case_NAN_05(cases: Case) -> None:
    case = cases["NAN-05"]
    seg = Segments.from_lengths(case["input"]["lengths"], case["input"]["row_length"])
    assert seg.cu_seqlens(covering=True).tolist() == case["expectation"]["cu_seqlens_covering"]


def test_case_CMP_01(cases: Case) -> None:
    case = cases["CMP-01"]
    seg = Segments.from_lengths(case["input"]["lengths"], case["input"]["capacity"])
    offsets = seg.cu_seqlens(static=case["input"]["max_segments"])
    want = case["expectation"]
    assert offsets.tolist() == want["cu_seqlens_static"] and str(offsets.dtype) == want["dtype"]
    assert seg.width == want["max_seqlen"]


def test_case_CMP_02(cases: Case) -> None:
    """The block map of the specification: which (block x block) tiles hold a pair that may attend."""
    case = cases["CMP-02"]
    size = case["input"]["block"]
    mask = Segments.from_lengths(case["input"]["lengths"]).dense_mask()[0, 0]
    tiles = mask.reshape(mask.shape[0] // size, size, -1, size).any((1, 3)).astype(int)
    assert tiles.tolist() == case["expectation"]["block_map"] and tiles.sum() == case["expectation"]["non_empty"]
    plain = Segments.from_lengths([sum(case["input"]["lengths"])]).dense_mask()[0, 0]
    assert plain.reshape(4, size, -1, size).any((1, 3)).sum() == case["expectation"]["causal_only_non_empty"]


def test_case_CP_01(cases: Case) -> None:
    case = cases["CP-01"]
    want = case["expectation"]
    assert want["align"] == 2 * case["input"]["cp"]
    seg = Segments.from_lengths(case["input"]["lengths"])
    padded = seg.align(want["align"])
    assert padded.seq_lengths.tolist() == want["padded_lengths"]
    assert padded.cu_seqlens().tolist() == want["cu_seqlens_padded"]
    assert seg.cu_seqlens().tolist() == want["cu_seqlens_real"] and seg.num_tokens == want["tokens_trained"]


def test_case_CP_02(cases: Case) -> None:
    case = cases["CP-02"]
    seg = Segments.from_cu_seqlens(case["input"]["cu_seqlens_fixed_size"])
    assert seg.cu_seqlens().tolist() == case["expectation"]["cu_seqlens"]


def test_case_CP_04(cases: Case) -> None:
    """Shift first, split over ranks second."""
    case = cases["CP-04"]
    seg, labels = _labels_of(case["input"]["samples"])
    ids = np.array(case["input"]["samples"][0])
    ranks = case["input"]["sp"]
    assert [part.tolist() for part in np.split(ids, ranks)] == case["expectation"]["inputs_by_rank"]
    assert [part.tolist() for part in np.split(seg.targets(labels), ranks)] == case["expectation"]["targets_by_rank"]


def test_case_POS_01(cases: Case) -> None:
    """Every token-aligned view has the row's padded length."""
    case = cases["POS-01"]
    lengths, multiple = case["input"]["lengths"], case["input"]["pad_to_multiple_of"]
    width = -(-sum(lengths) // multiple) * multiple
    seg = Segments.from_lengths(lengths, capacity=width)
    want = case["expectation"]
    assert seg.width == want["row_length"]
    assert seg.position_ids().shape[1] == seg.segment_ids().shape[1] == want["len_of"]["position_ids"]
    assert seg.position_ids()[0, : seg.num_tokens].tolist() == want["position_ids_real"]
    assert int((seg.segment_ids() == 0).sum()) == want["pad_count"]


def test_case_POS_04(cases: Case) -> None:
    case = cases["POS-04"]
    seg = Segments.from_lengths(case["input"]["lengths"])
    assert seg.position_ids().max() == case["expectation"]["max_used_position"] < case["input"]["max_position"]


def test_case_POS_05(cases: Case) -> None:
    case = cases["POS-05"]
    seg = Segments.from_lengths(case["input"]["lengths"])
    assert seg.max_seqlen == case["expectation"]["length_used_for_scaling"]
    assert (seg.max_seqlen > case["input"]["original_window"]) is case["expectation"]["scaled"]


def test_case_EOS_02(cases: Case) -> None:
    """Padding is masked by place: the end of text, which has the padding's id, stays a target."""
    case = cases["EOS-02"]
    sample = Sample(case["input"]["ids"])
    block = Block(sample.input_ids, sample.labels, Segments.from_lengths([3], case["input"]["row_length"]), [0])
    labels = np.full(block.segments.width, IGNORE)
    labels[: block.num_tokens] = block.labels
    assert labels.tolist() == case["expectation"]["labels_unshifted"]
