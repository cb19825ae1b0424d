"""New pairings each epoch: every sample once, in other company, labelled as the job labels; epoch 0 is what was packed."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloison
from cloison.errors import ChangedError, StoreError
from cloison.samples import Sample
from cloison.store.records import sealed


def _pack(folder: Path, **fields: Any) -> Any:
    rng = np.random.default_rng(0)
    records = [{"input_ids": rng.integers(1, 500, int(n)).tolist()} for n in rng.integers(5, 120, 900)]
    for number, record in enumerate(records):
        ids = record["input_ids"]
        record["labels"] = [-100] * (len(ids) // 2) + ids[len(ids) // 2 :]
        record["score"] = [float(number)] * len(ids)
        record["origin"] = f"page {number}"
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, records)))
    return cloison.pack(str(folder / "data.jsonl"), folder / "out", cloison.PackSpec(carry=("score", "origin"), **fields))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _pack(tmp_path_factory.mktemp("anew"), capacity=128)


def _all(source: Any) -> dict[int, Sample]:
    return dict(enumerate(cloison.unpack(source[b] for b in range(len(source)))))


def test_epoch_0_is_what_was_packed_column_by_column(packed: Any) -> None:
    source = cloison.pair_anew(packed)
    assert len(source) == len(packed)
    for index in range(len(packed)):
        mine, stored = source[index], packed[index]
        assert mine == stored
        assert mine.segment_columns["origin"] == stored.segment_columns["origin"]
        assert np.array_equal(mine.token_columns["score"], stored.token_columns["score"])
    assert source.segments() == packed.segments()


def test_every_epoch_has_every_sample_in_other_company(packed: Any) -> None:
    source = cloison.pair_anew(packed)
    everything = _all(packed)
    companies = []
    for number in range(3):
        epoch = source.epoch(number)
        assert _all(epoch) == everything
        lengths = [length for row in epoch.segments().rows() for length in row]
        assert lengths == [length for b in range(len(epoch)) for length in epoch[b].segments.seq_lengths.tolist()]
        companies.append({frozenset(epoch[b].sample_ids.tolist()) for b in range(len(epoch)) if len(epoch[b]) > 1})
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(companies[one] & companies[other]) < 0.1 * len(companies[one])


def test_split_samples_come_whole(tmp_path: Path) -> None:
    packed = _pack(tmp_path, capacity=64, overflow="split", split_prompts=True)
    source = cloison.pair_anew(packed)
    assert all(source[b] == packed[b] for b in range(len(packed)))
    assert _all(source.epoch(1)) == _all(packed)


def test_ranks_share_an_epoch_and_a_resume_finds_its_pairings(packed: Any) -> None:
    source = cloison.pair_anew(packed)

    def made(rank: int) -> Any:
        return cloison.loader(source, list, blocks_per_step=2, rank=rank, world_size=2, balance_window=2)

    ranks = [made(rank) for rank in (0, 1)]
    for _ in range(2):
        real = [block for rank in ranks for batch in rank for block in batch if block.sample_ids[0] >= 0]
        assert sorted(i for block in real for i in block.sample_ids.tolist()) == list(range(900))
    straight = made(1)
    straight.set_epoch(2)
    straight.skip(3)
    state = json.loads(json.dumps(straight.state_dict()))
    resumed = cloison.loader(
        pickle.loads(pickle.dumps(source)), list, blocks_per_step=2, rank=1, world_size=2, balance_window=2
    )
    resumed.load_state_dict(state)
    for one, other in zip(straight, resumed, strict=True):
        assert [block.sample_ids.tolist() for block in one] == [block.sample_ids.tolist() for block in other]
    with pytest.raises(ChangedError, match="must be of this data set"):
        cloison.loader(packed, list, blocks_per_step=2, rank=1, world_size=2).load_state_dict(state)


def test_a_store_that_is_not_there_or_plans_otherwise(packed: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="pairing anew reads the token store"):
        cloison.pair_anew(packed, tmp_path)
    shutil.copytree(packed.path, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["spec"]["seed"] = 5
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(ChangedError, match="the plan of the token store must be that"):
        cloison.pair_anew(cloison.open(tmp_path / "out"), packed.path.parent / "tokens")
