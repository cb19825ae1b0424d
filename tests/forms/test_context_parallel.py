"""The loss of a step does not depend on how many context-parallel ranks share its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cloison.blocks import Block
from cloison.forms import thd
from cloison.forms.joining import segments_of
from cloison.packing.memory import pack_samples

VOCABULARY, WIDTH = 64, 16


def weights(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (VOCABULARY, WIDTH), "head": (WIDTH, VOCABULARY)} | dict.fromkeys("qkv", (WIDTH, WIDTH))
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def step_loss(blocks: list[Block], cp: int) -> float:
    """One attention layer, every rank with its own queries and the keys of all: what ring or all-gather attention computes.

    The ranks know their tokens, positions and segments from the split batch alone; sums and counts are added over ranks.
    """
    w = weights()
    whole = thd.batch(blocks, cp=cp)
    offsets = whole["packed_seq_params"]["cu_seqlens_q_padded"].numpy()
    wide = thd.padded(segments_of(blocks), cp=cp)
    assert wide.cu_seqlens().tolist() == offsets.tolist()
    whole["segment_ids"] = torch.from_numpy(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))[None]
    places_of = [thd.zigzag_indices(wide, cp, rank) if cp > 1 else np.arange(wide.num_tokens) for rank in range(cp)]
    shares = [thd.split(whole, places) for places in places_of]
    hidden = [w["embed"][share["tokens"][0]] + share["position_ids"][0, :, None].cos() for share in shares]
    keys = torch.cat([part @ w["k"] for part in hidden])
    values = torch.cat([part @ w["v"] for part in hidden])
    places = torch.cat([share["position_ids"][0] for share in shares])
    owners = torch.cat([share["segment_ids"][0] for share in shares])
    total = count = 0.0
    for share, part in zip(shares, hidden, strict=True):
        own = share["segment_ids"][0][:, None] == owners[None]
        seen = own & (places[None] <= share["position_ids"][0][:, None])
        scores = (part @ w["q"] @ keys.T).masked_fill(~seen, -torch.inf)
        logits = (scores.softmax(-1) @ values) @ w["head"]
        losses = torch.nn.functional.cross_entropy(logits, share["labels"][0], reduction="none")
        total += float((losses * share["loss_mask"][0]).sum())
        count += float(share["loss_mask"].sum())
    return total / count


def blocks_of(lengths: list[int]) -> list[Block]:
    draw = np.random.default_rng(1)
    samples = [draw.integers(1, VOCABULARY, length) for length in lengths]
    return pack_samples(samples, capacity=sum(lengths), order="input")


def test_case_XATT_14(cases: dict[str, Any]) -> None:
    given = cases["XATT-14"]["input"]
    assert sum(given["lengths"]) == sum(given["control_lengths"]) == 1024
    for lengths in (given["lengths"], given["control_lengths"]):
        alone, *shared = (step_loss(blocks_of(lengths), cp) for cp in given["cp_sizes"])
        assert shared == pytest.approx([alone] * len(shared), rel=1e-12)


def test_a_shift_after_the_split_would_show() -> None:
    blocks = blocks_of([40, 24, 33])
    whole = thd.batch(blocks, cp=2)
    wide = thd.padded(segments_of(blocks), cp=2)
    share = thd.split(whole, thd.zigzag_indices(wide, 2, 0))
    late = torch.roll(share["tokens"], -1)
    asked = share["loss_mask"][0] > 0
    assert (late[0][asked] != share["labels"][0][asked]).any()
