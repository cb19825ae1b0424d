"""What an adapter accepts, and each thing that it refuses with the numbers and the remedy."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cloison.errors import BoundaryError, InputError  # noqa: E402
from cloison.exact.batches import read_batch  # noqa: E402
from cloison.segments import Segments  # noqa: E402

IDS = torch.arange(10, 20).reshape(1, 10)
ROWS = torch.arange(10, 22).reshape(2, 6)


def tensor(*values):
    return torch.tensor(values)


def test_lengths_offsets_and_ids_say_the_same():
    wanted = Segments.from_lengths([[4, 6]], capacity=10)
    for given in (
        {"seq_lengths": tensor(4, 6)},
        {"seq_lengths": [[4, 6]]},
        {"cu_seqlens": tensor(0, 4, 10)},
        {"cu_seq_lens_q": tensor(0, 4, 10), "cu_seq_lens_k": tensor(0, 4, 10), "max_length_q": 6, "max_length_k": 6},
        {"segment_ids": tensor([1, 1, 1, 1, 2, 2, 2, 2, 2, 2])},
    ):
        assert read_batch({"input_ids": IDS, **given}).segments == wanted


def test_rows_with_padding_need_their_positions_or_mask():
    lengths = tensor([2, 3], [6, 0])
    positions = tensor([0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5])
    mask = tensor([1, 1, 1, 1, 1, 0], [1] * 6)
    for given in ({"position_ids": positions}, {"attention_mask": mask}, {"position_ids": positions + 2}):
        assert read_batch({"input_ids": ROWS, "seq_lengths": lengths, **given}).segments.rows() == [[2, 3], [6]]
    with pytest.raises(BoundaryError, match=r"They sum to 11, and input_ids hold 2 x 6"):
        read_batch({"input_ids": ROWS, "seq_lengths": lengths})


def test_everything_else_goes_to_the_model():
    batch = read_batch({"input_ids": IDS, "seq_lengths": [10], "output_hidden_states": True, "use_cache": False})
    assert dict(batch.options) == {"output_hidden_states": True}


def test_lengths_that_do_not_sum_to_the_tokens():
    with pytest.raises(BoundaryError, match=r"They sum to 9, and input_ids hold 1 x 10"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 5]})
    with pytest.raises(BoundaryError, match=r"sum to 11, and its row has 10"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 7]})
    with pytest.raises(BoundaryError, match="cu_seqlens"):
        read_batch({"input_ids": IDS, "cu_seqlens": tensor(0, 4, 9)})


def test_boundaries_that_two_keywords_state_differently():
    with pytest.raises(BoundaryError, match=r"seq_lengths says \[4, 6\], cu_seq_lens_q says \[5, 5\]"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 6], "cu_seq_lens_q": tensor(0, 5, 10)})
    with pytest.raises(BoundaryError, match="position_ids must restart where seq_lengths says"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 6], "position_ids": torch.arange(10)[None]})
    with pytest.raises(BoundaryError, match="attention_mask must be 1 where"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 6], "attention_mask": tensor([1] * 9 + [0])})


def test_case_SSM_04_offsets_win_and_a_mask_that_conflicts_raises(cases):
    given = cases["SSM-04"]["input"]
    ids = torch.arange(len(given["attention_mask"]))[None]
    offsets, mask = torch.tensor(given["cu_seqlens"]), torch.tensor([given["attention_mask"]])
    read = read_batch({"input_ids": ids, "cu_seqlens": offsets, "attention_mask": mask})
    assert read.segments.rows() == [cases["SSM-04"]["expectation"]["segments_used"]]
    mask[0, -1] = 0
    with pytest.raises(BoundaryError):
        read_batch({"input_ids": ids, "cu_seqlens": offsets, "attention_mask": mask})


def test_no_boundaries_is_refused_not_guessed():
    with pytest.raises(InputError, match="neither seq_lengths, cu_seqlens nor segment_ids"):
        read_batch({"input_ids": IDS, "position_ids": tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5])})


def test_masks_of_the_caller_are_refused():
    with pytest.raises(BoundaryError, match="makes its own masks"):
        read_batch({"input_ids": IDS, "seq_lengths": [10], "attention_mask": torch.zeros(1, 1, 10, 10)})


def test_a_target_across_a_boundary_and_a_trained_pad_are_refused():
    labels = IDS.clone()
    labels[0, 0] = -100
    with pytest.raises(BoundaryError, match=r"labels\[0, 4\] is 14 \(1 such\)"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 6], "labels": labels})
    with pytest.raises(BoundaryError, match="must have the shape of input_ids"):
        read_batch({"input_ids": IDS, "seq_lengths": [4, 6], "labels": labels[:, 1:]})


@pytest.mark.parametrize("ids", [None, torch.arange(10)])
def test_ids_are_rows(ids):
    with pytest.raises(InputError, match=r"input_ids of shape \[B, T\]"):
        read_batch({"input_ids": ids, "seq_lengths": [10]})
