"""watch: a hand-written loop runs as it is, and what it fed, leaked and trained is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import cloison  # noqa: E402
from cloison.errors import InputError  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402

IDS = torch.tensor([[11, 12, 13, 14, 21, 22, 23]])
LABELS = torch.tensor([[-100, 12, 13, 14, -100, 22, 23]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
LENGTHS = [[4, 3]]


def step(model: Any, **changes: Any) -> Any:
    batch = {"input_ids": IDS, "labels": LABELS, "position_ids": POSITIONS, "use_cache": False} | changes
    loss = model(**batch).loss
    loss.backward()
    return loss


def errors(report: Any) -> list[str]:
    return sorted(f.kind for f in report.findings if f.severity == "error")


def test_a_right_step_and_wrong_ones() -> None:
    for changes, wanted in (
        ({}, []),
        ({"labels": IDS}, ["boundary_target"]),
        ({"use_cache": True}, ["leak"]),
        ({"attention_mask": torch.ones_like(IDS), "labels": IDS}, ["boundary_target", "leak"]),
    ):
        model = tiny_model("llama")[0].train()
        with cloison.watch(model, seq_lengths=LENGTHS) as w:
            step(model, **changes)
        assert errors(w.report) == wanted, str(w.report)
        assert "gradient at the real logits" in w.report["targets"].summary


def test_the_step_is_not_changed() -> None:
    grads = []
    for watched in (False, True):
        model = tiny_model("gpt2", resid_pdrop=0.2, attn_pdrop=0.2)[0].train()
        torch.manual_seed(3)
        if watched:
            with cloison.watch(model, seq_lengths=LENGTHS) as w:
                loss = step(model)
            assert w.report["isolation"].status == "exact"
        else:
            loss = step(model)
        grads.append([loss.item(), torch.rand(1).item(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert grads[0][:2] == grads[1][:2]
    assert all(torch.equal(a, b) for a, b in zip(grads[0][2:], grads[1][2:], strict=True))


def test_micro_batches_of_one_step() -> None:
    model = tiny_model("llama")[0]
    w = cloison.watch(model, seq_lengths=LENGTHS)
    for labels in (LABELS, torch.where(LABELS == 23, -100, LABELS)):
        with w:
            (model(input_ids=IDS, labels=labels, position_ids=POSITIONS, use_cache=False).loss / 2).backward()
    assert errors(w.report) == ["weights"]
    assert w.report["weights"].evidence["kind"] == "mean of means over micro-batches"
    assert w.report["weights"].evidence["total"] == pytest.approx(1, abs=1e-3)


def test_a_fused_loss_and_one_outside_the_model() -> None:
    model = tiny_model("llama")[0]
    with cloison.watch(model, seq_lengths=LENGTHS) as w:
        logits = model(input_ids=IDS, position_ids=POSITIONS, use_cache=False).logits
        functional.cross_entropy(logits[0, :-1], IDS[0, 1:], label_smoothing=0.1).backward()
    assert errors(w.report) == ["boundary_target"]
    assert w.report["targets"].evidence["loss"] == "label smoothing"

    class Fused(nn.Module):
        """Never shows logits."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_model("llama")[0]
            self.base_model = self.inner.model

        def get_output_embeddings(self) -> Any:
            return self.inner.lm_head

        def forward(self, input_ids: Any, position_ids: Any, labels: Any) -> Any:
            hidden = self.base_model(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
            weight = self.inner.lm_head.weight
            return functional.cross_entropy(hidden[0, :-1] @ weight.T, labels[0, 1:])

    fused = Fused()
    with cloison.watch(fused, seq_lengths=LENGTHS) as w:
        fused(input_ids=IDS, position_ids=POSITIONS, labels=IDS).backward()
    assert errors(w.report) == ["boundary_target"]
    assert w.report["targets"].evidence["place"] == "real hidden"


def test_a_plain_module() -> None:
    """No Hugging Face model at all: an embedding, a mixing layer, a head."""

    class Plain(nn.Module):
        def __init__(self, mix: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head, self.mix = nn.Embedding(96, 16), nn.Linear(16, 96), mix

        def forward(self, input_ids: Any) -> Any:
            x = self.embed(input_ids)
            return self.head(x.cumsum(1) if self.mix else x)

    for mix, wanted in ((False, []), (True, ["leak"])):
        model = Plain(mix)
        with cloison.watch(model, seq_lengths=LENGTHS) as w:
            logits = model(IDS)
            functional.cross_entropy(logits[0, :-1], LABELS[0, 1:]).backward()
        assert errors(w.report) == wanted, str(w.report)


def test_samples_and_lengths_by_function() -> None:
    model = tiny_model("llama")[0]
    samples = [{"input_ids": [11, 12, 13, 14], "labels": [-100, -100, 13, 14]}, {"input_ids": [21, 22, 23]}]
    with cloison.watch(model, samples=samples) as w:
        step(model)
    assert errors(w.report) == ["prompt_trained"]
    with cloison.watch(model, seq_lengths=lambda call: [[call["input_ids"].shape[1]]]) as w:
        step(model)
    assert w.report["isolation"].status == "not tested"


def test_wrong_use() -> None:
    model = tiny_model("llama")[0]
    with cloison.watch(model, seq_lengths=LENGTHS) as w:
        model(input_ids=IDS)
        with pytest.raises(InputError, match="after the block"):
            _ = w.report
    assert "no_loss" in errors(w.report) and w.report["targets"].status == "error"
    with pytest.raises(ZeroDivisionError), cloison.watch(model) as w:
        1 / 0  # noqa: B018
    assert not model._forward_pre_hooks
    with pytest.raises(InputError, match="torch module"):
        cloison.watch("model")


def test_a_model_that_is_sure_is_not_accused() -> None:
    model = tiny_model("llama")[0]
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(150):
        optimizer.zero_grad()
        step(model)
        optimizer.step()
    samples = [[11, 12, 13, 14], [21, 22, 23]]
    known = [{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in samples]
    with cloison.watch(model, samples=known) as w:
        assert float(step(model)) < 1e-4
    assert errors(w.report) == [] and "unseen_targets" in [f.kind for f in w.report.findings]


def test_too_confident_targets_are_not_called_untrained() -> None:
    """Reading at real logits has a blind spot that substitution has not: p = 1 sends no gradient."""
    from cloison.proof.fit import from_logits, from_real_logits

    logits = torch.full((2, 96), -40.0)
    logits[0, 12] = 40.0
    logits.requires_grad_()
    functional.cross_entropy(logits, torch.tensor([12, 13])).backward()
    assert from_real_logits(logits.grad, logits.detach()).tokens.tolist() == [-1, 13]
    zeros = torch.zeros(2, 96, requires_grad=True)
    functional.cross_entropy(zeros, torch.tensor([12, 13])).backward()
    assert from_logits(zeros.grad).tokens.tolist() == [12, 13]
    assert np.allclose(from_logits(zeros.grad).weights, 0.5)


def _accumulated(divide: Any) -> Any:
    """Two micro-batches of other sizes inside one block; ``divide`` gives what each summed loss is divided by."""
    model = tiny_model("llama")[0].train()
    second = {"input_ids": IDS[:, :4], "labels": LABELS[:, :4], "position_ids": POSITIONS[:, :4]}
    with cloison.watch(model) as w:
        for changes in ({}, second):
            batch = {"input_ids": IDS, "labels": LABELS, "position_ids": POSITIONS, "use_cache": False} | changes
            targets = int((batch["labels"] != -100).sum())
            model(**batch, num_items_in_batch=divide(targets)).loss.backward()
    return w.report


def test_accumulation_inside_one_block_is_a_step() -> None:
    """Each forward that is trained on is a micro-batch of its own."""
    right = _accumulated(lambda targets: 8)
    assert right.ok and right["weights"].evidence["micro_batches"] == 2, str(right)
    assert right["weights"].evidence["targets"] == 8
    assert errors(_accumulated(lambda targets: 2 * targets)) == ["weights"]  # a mean of means
    assert errors(_accumulated(lambda targets: 16)) == ["accumulation_off"]


def test_a_forward_that_is_not_trained_on_is_no_micro_batch() -> None:
    model = tiny_model("llama")[0].train()
    with cloison.watch(model, seq_lengths=LENGTHS) as w:
        with torch.no_grad():
            model(input_ids=IDS[:, :3], use_cache=False)
        step(model)
    assert w.report.ok and w.report["targets"].evidence["targets"] == 5, str(w.report)


@pytest.mark.parametrize(("scale", "kinds"), [(65536.0, ["loss_scaled"]), (1000.0, ["loss_scale"]), (4.0, ["loss_scale"])])
def test_the_scale_of_a_loss_scaler_is_no_fault(scale: float, kinds: list[str]) -> None:
    """torch.amp.GradScaler multiplies the loss by a large power of two, and divides the gradients again."""
    model = tiny_model("llama")[0].train()
    with cloison.watch(model, seq_lengths=LENGTHS) as w:
        (model(input_ids=IDS, labels=LABELS, position_ids=POSITIONS, use_cache=False).loss * scale).backward()
    assert [finding.kind for finding in w.report.findings] == kinds
    assert w.report.ok is (kinds == ["loss_scaled"])
