"""A mixer that cannot see boundaries, run on unpacked rows: the reported faults of recurrences and short convolutions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cloison.exact.mixers import unpacked  # noqa: E402
from cloison.segments import Segments  # noqa: E402


def packed(docs):
    values = torch.tensor([float(value) for doc in docs for value in doc]).reshape(1, -1, 1)
    return values, Segments.from_lengths([[len(doc) for doc in docs]])


def halving(hidden):
    """h = 0.5 * h + x along the row."""
    states = [hidden[:, 0]]
    for step in range(1, hidden.shape[1]):
        states.append(0.5 * states[-1] + hidden[:, step])
    return torch.stack(states, 1)


def summing(taps):
    def filtered(hidden):
        row = torch.nn.functional.pad(hidden, (0, 0, taps - 1, 0))
        return row.unfold(1, taps, 1).sum(-1)

    return filtered


@pytest.mark.parametrize("style", ["padded", "equal lengths"])
def test_case_SSM_01_state_starts_at_zero_for_each_sample(cases, style):
    case = cases["SSM-01"]
    hidden, segments = packed(case["input"]["docs"])
    assert unpacked(halving, segments, style)(hidden).flatten().tolist() == case["expectation"]["h"]
    assert halving(hidden).flatten().tolist() == case["expectation"]["wrong_if"]["state_carried"]


@pytest.mark.parametrize("style", ["padded", "equal lengths"])
def test_case_SSM_02_the_short_convolution_needs_the_boundary_too(cases, style):
    case = cases["SSM-02"]
    hidden, segments = packed(case["input"]["docs"])
    assert unpacked(summing(3), segments, style)(hidden).flatten().tolist() == case["expectation"]["y"]
    assert summing(3)(hidden).flatten().tolist() == case["expectation"]["wrong_if"]["no_boundary"]


def test_case_SSM_05_segments_shorter_than_the_filter(cases):
    case = cases["SSM-05"]
    hidden, segments = packed(case["input"]["docs"])
    assert unpacked(summing(4), segments, "padded")(hidden).flatten().tolist() == case["expectation"]["y"]


def test_what_comes_with_the_hidden_states_is_unpacked_with_them():
    """Rotary tables of one row for all, positions, dense and 2-D masks, and tuples of outputs."""
    segments = Segments.from_lengths([[2, 3], [5]])
    hidden = torch.arange(10.0).reshape(2, 5, 1)
    seen = {}

    def forward(hidden, tables, attention_mask=None, cache=None):
        seen.update(hidden=hidden.shape, cos=tables[0].shape, mask=attention_mask.shape)
        return hidden + tables[0], None

    dense = torch.zeros(2, 1, 5, 5)
    out, nothing = unpacked(forward, segments, "padded")(hidden, (torch.ones(1, 5, 1),) * 2, attention_mask=dense)
    assert seen == {"hidden": (3, 5, 1), "cos": (3, 5, 1), "mask": (3, 1, 5, 5)}
    assert torch.equal(out, hidden + 1)
    assert nothing is None
