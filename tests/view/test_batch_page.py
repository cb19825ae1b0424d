"""The page of one batch: wrong targets stand where the real loss trains them, and what is right is said too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

import cloison
from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.tiny import tiny_model
from cloison.view.batch_page import batch_page


@pytest.fixture(scope="module")
def block() -> Block:
    return cloison.pack_samples([list(range(5, 5 + n)) for n in (9, 7, 12)], capacity=30, order="input")[0]


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])["blocks"][0]


def test_a_boundary_target_is_marked_where_it_is(block: Block) -> None:
    def faulty(blocks: Sequence[Block]) -> dict[str, Any]:
        batch = cloison.collate(blocks)
        batch["labels"][0, 9] = batch["input_ids"][0, 9]
        return batch

    model, _ = tiny_model("llama")
    html, report = batch_page(model, block, faulty, title="one boundary")
    assert data_of(html)["wrong"] == [9]
    assert [finding.kind for finding in report.findings if finding.severity == "error"] == ["boundary_target"]
    assert report["isolation"].status == "exact"
    assert report["throughput"].status == "right"


def test_the_right_batch_has_no_mark(block: Block) -> None:
    model, _ = tiny_model("llama")
    html, report = batch_page(model, block, cloison.collate, title="right")
    assert report.ok
    assert data_of(html)["wrong"] == []
    assert data_of(html)["labels"] == block.labels.tolist()


def test_several_rows_are_refused(block: Block) -> None:
    model, _ = tiny_model("llama")
    with pytest.raises(InputError, match="shows one row"):
        batch_page(model, block, lambda blocks: cloison.forms.hf.rows([*blocks, *blocks]), title="two")
