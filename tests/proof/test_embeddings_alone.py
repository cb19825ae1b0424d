"""verify on batches of inputs_embeds alone, as models of images and sounds get them: every experiment but the targets runs."""

from __future__ import annotations

from typing import Any

import pytest

import cloison
from cloison.proof.tiny import tiny_model


def _report(model_type: str, *, detached: bool = True) -> Any:
    model, _ = tiny_model(model_type)
    table = model.get_input_embeddings()

    def collate(blocks: Any) -> dict[str, Any]:
        batch = dict(cloison.collate(blocks))
        embeds = table(batch.pop("input_ids"))
        return batch | {"inputs_embeds": embeds.detach() if detached else embeds}

    return cloison.verify(model, collate=collate)


@pytest.mark.parametrize("detached", [True, False])
def test_a_right_model_is_right_by_its_embeddings_too(detached: bool) -> None:
    report = _report("llama", detached=detached)
    assert report.ok, str(report)
    status = {verdict.experiment: verdict.status for verdict in report.verdicts}
    assert status.pop("targets") == "not tested"
    assert status == dict.fromkeys(("isolation", "look-ahead", "gradients", "equality"), "exact") | {"positions": "right"}


@pytest.mark.parametrize(("model_type", "module"), [("gpt_oss", "self_attn"), ("mamba", "mixer")])
def test_a_leak_is_placed_by_its_embeddings_too(model_type: str, module: str) -> None:
    report = _report(model_type)
    where = report["where"]
    assert where.status == "leak" and module in where.evidence["module"], str(report)
    assert report["gradients"].status == "leak" and [f.kind for f in report.findings] == ["leak"]
