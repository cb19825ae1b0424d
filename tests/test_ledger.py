"""The ledger adds up, or says so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError
from cloison.ledger import Entry, Ledger


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    overflow=st.sampled_from(["truncate", "split", "drop"]),
    cut=st.none() | st.integers(1, 20),
)
def test_ledgers_of_plans_add_up_and_survive_json(lengths: list[int], overflow: str, cut: int | None) -> None:
    try:
        ledger = cloison.plan(lengths, 12, overflow=overflow, max_sample_tokens=cut).ledger
    except cloison.errors.OverlongError:
        return
    assert ledger.tokens_in == ledger.tokens_kept + ledger.lost_tokens == sum(lengths)
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger
    merged = Ledger.merge([ledger, ledger.shifted(len(lengths))]).verify()
    assert merged.tokens_in == 2 * ledger.tokens_in and merged.lost_tokens == 2 * ledger.lost_tokens


def test_a_ledger_that_does_not_add_up_is_refused() -> None:
    for ledger in (Ledger(3, 10, 2, 10), Ledger(3, 10, 3, 9), Ledger(3, 10, 3, 10, {"truncated": Entry(2, 0, [1])})):
        with pytest.raises(InputError):
            ledger.verify()
    with pytest.raises(InputError, match="10 came in; 9 were kept and 0"):
        Ledger(3, 10, 3, 9).verify()
    for plain in ({}, {"samples_in": 1}, {**Ledger(1, 1, 1, 1).to_dict(), "tokens_in": 5}):
        with pytest.raises(InputError):
            Ledger.from_dict(plain)


def test_steps_chain() -> None:
    reading = Ledger(5, 20, 3, 20, {"skipped": Entry.of([1, 3])})
    planning = cloison.plan([10, 4, 6], 8, overflow="truncate").ledger
    whole = reading.then(planning, indices=[0, 2, 4]).verify()
    assert (whole.samples_in, whole.samples_kept, whole.tokens_kept) == (5, 3, 18)
    assert whole.entries["truncated"].indices.tolist() == [0] and whole.entries["skipped"].indices.tolist() == [1, 3]
    with pytest.raises(InputError, match="starts with what the earlier one kept"):
        reading.then(Ledger(2, 20, 2, 20))
