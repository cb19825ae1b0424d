"""Shards: with only counts exchanged, their shares fill every place of the global plan once."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.errors import InputError
from cloison.planning import histogram, plan_share


@settings(max_examples=60, deadline=None)
@given(
    shards=st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=4),
    align=st.sampled_from([1, 4]),
    max_segments=st.none() | st.integers(1, 4),
    policy=st.sampled_from(["best_fit", "optimal"]),
)
def test_shares_fill_the_global_plan(shards: list[list[int]], align: int, max_segments: int | None, policy: str) -> None:
    options = {"overflow": "split", "align": align}
    counts = [histogram(lengths, 32, **options) for lengths in shards]
    shares = [
        plan_share(lengths, counts, i, 32, policy=policy, max_segments=max_segments, **options)
        for i, lengths in enumerate(shards)
    ]
    whole = cloison.plan(list(chain(*shards)), 32, policy=policy, max_segments=max_segments, **options)
    assert {share.num_blocks for share in shares} == {whole.num_blocks}
    assert {share.lower_bound for share in shares} == {whole.lower_bound}
    places = [(b, s) for share in shares for b, s in zip(share.blocks.tolist(), share.slots.tolist(), strict=True)]
    assert len(set(places)) == len(places) == whole.num_segments
    blocks = np.concatenate([share.blocks for share in shares])
    lengths = np.concatenate([share.seq_lengths for share in shares]).astype(np.int64)
    assert (np.bincount(blocks, weights=-(-lengths // align) * align, minlength=whole.num_blocks) <= 32).all()
    assert set(blocks.tolist()) == set(range(whole.num_blocks))
    if max_segments is not None and blocks.size:
        assert np.bincount(blocks).max() <= max_segments
    merged = cloison.Ledger.merge([share.ledger.shifted(sum(map(len, shards[:i]))) for i, share in enumerate(shares)]).verify()
    assert merged == whole.ledger


def test_a_shard_may_plan_its_own_counts() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1, 40_000).astype(int).clip(1, 2048)
    whole = cloison.plan(lengths, 2048, policy="best_fit")
    parts = [cloison.plan(part, 2048, policy="best_fit") for part in np.array_split(lengths, 4)]
    assert sum(len(part) for part in parts) <= len(whole) * 1.004


def test_histograms_that_do_not_match_are_refused() -> None:
    counts = [histogram([1, 2], 4), histogram([3], 4)]
    with pytest.raises(InputError, match="other ones"):
        plan_share([1, 3], counts, 0, 4)
    with pytest.raises(InputError, match="Histogram 1"):
        cloison.merge_histograms([[0, 1], [0, 1, 2]])
    for bad in ([[0, -1]], [[0.5, 1.0]], [], [[[0, 1]]]):
        with pytest.raises(InputError):
            cloison.merge_histograms(bad)
    with pytest.raises(InputError, match="shard"):
        plan_share([1, 2], counts, 2, 4)
    with pytest.raises(InputError, match="policy"):
        plan_share([1, 2], counts, 0, 4, policy="look_ahead")
