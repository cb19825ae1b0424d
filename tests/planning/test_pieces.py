"""Pieces: what each process plans alone is its part of the whole plan, and what is passed over in stretches is the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloison.planning import Settings
from cloison.planning.composition import composition_of
from cloison.planning.intake import read_items
from cloison.planning.ordering import planning_order
from cloison.planning.pieces import num_pieces, plan_piece
from cloison.planning.planner import items_of, plan_with
from cloison.planning.stretches import Stretch, stretches_of

_CHOICES = st.fixed_dictionaries(
    {
        "overflow": st.sampled_from(["truncate", "drop", "split"]),
        "order": st.sampled_from(["shuffled", "input"]),
        "seed": st.integers(0, 3),
        "max_segments": st.none() | st.integers(1, 4),
        "align": st.sampled_from([1, 4]),
        "max_sample_tokens": st.none() | st.integers(3, 20),
        "look_ahead": st.sampled_from([1, 7, 1024]),
    }
)
_SOME = st.lists(st.integers(0, 60), max_size=60)
_LENGTHS = st.builds(lambda before, after: [*before, 1, *after], _SOME, _SOME)
"""One sample at least fits whatever the limits are."""


def in_pieces(chosen: Settings, lengths: list[int], shard: int, stretch: int) -> tuple[list[Stretch], list[Any]]:
    """Return all stretches of all pieces, their ``begins`` from the first token of the plan, and the pieces."""
    stretches, pieces, before = [], [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloison.planning.pieces.SHARD", shard)
        patch.setattr("cloison.planning.look_ahead.SHARD", shard)
        patch.setattr("cloison.planning.stretches.STRETCH", stretch)
        items = items_of(chosen, lengths)
        for index in range(num_pieces(chosen, items.ids)):
            piece = plan_piece(chosen, items_of(chosen, lengths), index)  # each process reads the lengths by itself
            found = list(piece.stretches)
            stretches += [replace(s, begins=None if s.begins is None else s.begins + before) for s in found]
            before += sum(int(s.seq_lengths.sum()) for s in found)
            pieces.append(piece)
    return stretches, pieces


@settings(max_examples=120, deadline=None)
@given(_LENGTHS, _CHOICES, st.integers(5, 60), st.integers(1, 50))
def test_the_pieces_of_a_look_ahead_are_its_plan(lengths: list[int], choices: dict[str, Any], shard: int, stretch: int) -> None:
    chosen = Settings(24, **choices)
    stretches, pieces = in_pieces(chosen, lengths, shard, stretch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloison.planning.look_ahead.SHARD", shard)
        whole = plan_with(chosen, lengths)
    assert whole.num_blocks > 0
    assert np.concatenate([s.sizes for s in stretches]).tolist() == np.diff(whole.offsets).tolist()
    assert np.concatenate([s.sample_ids for s in stretches]).tolist() == whole.sample_ids.tolist()
    assert np.concatenate([s.seq_lengths for s in stretches]).tolist() == whole.seq_lengths.tolist()
    if whole.starts.any():
        assert np.concatenate([s.starts for s in stretches if s.starts is not None]).tolist() == whole.starts.tolist()
    assert all(s.sizes.size == 1 or s.seq_lengths.size <= stretch for s in stretches)
    for piece in pieces:
        assert piece.lower_bound == whole.lower_bound and piece.ledger.to_dict() == whole.ledger.to_dict()
    found, expected = composition_of(lambda: stretches).to_dict(), whole.composition.to_dict()
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), name


@settings(max_examples=40, deadline=None)
@given(_LENGTHS, _CHOICES, st.sampled_from(["best_fit", "in_order", "wrap"]))
def test_other_policies_are_one_piece(lengths: list[int], choices: dict[str, Any], policy: str) -> None:
    chosen = Settings(24, policy=policy, **choices)
    stretches, (piece,) = in_pieces(chosen, lengths, 10, 16)
    whole = plan_with(chosen, lengths)
    assert np.concatenate([s.sizes for s in stretches]).tolist() == np.diff(whole.offsets).tolist()
    assert np.concatenate([s.sample_ids for s in stretches]).tolist() == whole.sample_ids.tolist()
    assert piece.ledger.to_dict() == whole.ledger.to_dict()


@settings(max_examples=60, deadline=None)
@given(_LENGTHS, st.integers(1, 20), st.data())
def test_pieces_of_samples_follow_each_other_in_the_order_of_the_input(
    lengths: list[int], capacity: int, data: st.DataObject
) -> None:
    items = read_items(lengths, capacity, overflow="split")
    start = data.draw(st.integers(0, items.ids - 1))
    stop = data.draw(st.integers(start + 1, items.ids))
    ids, classes = planning_order(items, 0, False)(start, stop)
    samples = np.concatenate([np.arange(items.samples), items.extra_samples])
    slow = np.argsort(samples, kind="stable")[start:stop]
    assert ids.tolist() == slow.tolist() and classes.tolist() == items.classes_of(slow).tolist()


def test_where_a_segment_begins_in_the_order_is_what_lies_before_it() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 500)
    plan = plan_with(Settings(64, order="input"), lengths)
    before = np.cumsum(lengths) - lengths
    for stretch in stretches_of(plan)():
        assert stretch.begins is not None and stretch.begins.tolist() == before[stretch.sample_ids].tolist()
    assert all(s.begins is None for s in stretches_of(plan_with(Settings(64, policy="best_fit"), lengths))())
