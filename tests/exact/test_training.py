"""Training through an adapter: gradients as the samples alone give them, whatever else runs in between."""

from __future__ import annotations

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.errors import BoundaryError, InputError  # noqa: E402
from cloison.exact import adapt, calling, singles  # noqa: E402
from cloison.exact.trial import trial_of  # noqa: E402
from cloison.proof.blocks import alone  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from tests.exact import helpers  # noqa: E402

TYPES = {"llama": "d", "gpt_oss": "d", "qwen3_next": "e", "deepseek_v32": "b", "bart": "f"}


@pytest.mark.parametrize("name", TYPES)
def test_loss_and_gradients_equal_those_of_the_samples_alone(name):
    model = tiny_model(name)[0].train()
    blocks = helpers.blocks_of()
    adapter = adapt(model, show=False)
    assert adapter.way.rung == TYPES[name]
    wanted_loss, wanted = helpers.alone_gradients(model, blocks)
    loss = adapter(**adapter.collate(blocks)).loss
    assert float(loss.detach()) == pytest.approx(wanted_loss, rel=1e-5)
    helpers.assert_same_gradients(helpers.gradients(model, loss), wanted)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["gpt_oss", "mamba", "jamba"])
def test_checkpointing_recomputes_with_the_boundaries_of_its_own_call(name, reentrant):
    """Between forward and backward other batches and the bare model run: boundaries kept anywhere else would be theirs."""
    model = tiny_model(name)[0].train()
    blocks, others = helpers.blocks_of(), helpers.blocks_of([31, 2, 9, 29], seed=1)
    _, wanted = helpers.alone_gradients(model, blocks)
    _, wanted_other = helpers.alone_gradients(model, others)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    adapter = adapt(model, show=False)
    assert adapter.certificate.set_up["checkpointing"]
    loss = adapter(**adapter.collate(blocks)).loss
    other = adapter(**adapter.collate(others)).loss  # a second forward, with other boundaries, before the first backward
    with torch.no_grad():
        model(input_ids=torch.arange(4, 12)[None], use_cache=False)
    helpers.assert_same_gradients(helpers.gradients(model, loss), wanted)
    helpers.assert_same_gradients(helpers.gradients(model, other), wanted_other)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["gpt_oss", "jamba"])
def test_checkpointing_may_be_switched_afterwards(name, reentrant):
    """Trainers switch it on in ``train()``; gradients were compared with and without when the model was adapted."""
    model = tiny_model(name)[0].train()
    blocks = helpers.blocks_of()
    _, wanted = helpers.alone_gradients(model, blocks)
    adapter = adapt(model, show=False)
    assert "recomputation" in adapter.certificate.verdicts
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)
    model.gradient_checkpointing_disable()
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)


def test_checkpointing_of_another_kind_is_not_switched_in_silence(monkeypatch):
    """A model that recomputes by a function of its own would do so without the boundaries."""
    from cloison.exact import recomputation

    assert not recomputation.holds_recomputed(trial_of(helpers.Foreign(helpers.SdpaMixer), None, 0), singles.ways()[0])
    monkeypatch.setattr(calling, "_CHECKPOINT", "another_function")
    model = tiny_model("gpt_oss")[0].train()
    adapter = adapt(model, show=False)
    assert "recomputation" not in adapter.certificate.verdicts, "the experiment fails where recomputation is not reached"
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with pytest.raises(InputError, match="checkpointing was switched on"):
        adapter(**adapter.collate(helpers.blocks_of()))


def test_a_pipeline_schedule_runs_backwards_in_another_order_and_on_another_thread():
    from threading import Thread

    model = tiny_model("jamba")[0].train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    adapter = adapt(model, show=False)
    batches = [helpers.blocks_of(seed=seed)[:1] for seed in range(3)]
    losses = [adapter(**adapter.collate(blocks)).loss for blocks in batches]
    model.zero_grad(set_to_none=True)
    for loss in losses[::-1]:
        thread = Thread(target=loss.backward)
        thread.start()
        thread.join()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for blocks in batches:
        _, share = helpers.alone_gradients(model, blocks)
        total = {name: total[name] + share[name] for name in total}
    helpers.assert_same_gradients(found, {name: total[name] for name in found})


def test_a_wrong_backward_would_be_found():
    """The yardstick itself: gradients of the bare model on position_ids that it does not heed differ by tens of per cent."""
    model = tiny_model("gpt_oss")[0].train()
    blocks = helpers.blocks_of()
    _, wanted = helpers.alone_gradients(model, blocks)
    adapter = adapt(model, show=False)
    batch = adapter.collate(blocks)
    leaking = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(leaking[0, :-1], batch["labels"][0, 1:])
    with pytest.raises(AssertionError):
        helpers.assert_same_gradients(helpers.gradients(model, loss), wanted)


def test_peft():
    peft = pytest.importorskip("peft")
    base = tiny_model("gpt_oss")[0]
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2)).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    blocks = helpers.blocks_of()
    adapter = adapt(model, show=False)
    assert adapter.way.rung == "d"
    _, wanted = helpers.alone_gradients(model, blocks)
    assert wanted and all("lora" in name for name in wanted)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)


@pytest.mark.parametrize(("name", "rung"), [("mixtral", "d"), ("qwen3_moe", "c"), ("olmoe", "f"), ("jamba", "e")])
def test_the_loss_of_balance_counts_valid_tokens_only(name, rung):
    """The value that the model's own function gives for the routing of the samples alone, whatever layout ran."""
    model = tiny_model(name)[0].train()
    adapter = adapt(model, rungs=rung, show=False)
    blocks = helpers.blocks_of([9, 6, 12], capacity=16)  # two rows, one with padding where the layout has rows
    batch = adapter.collate(blocks)
    out = adapter(**batch, output_router_logits=True)
    with torch.no_grad():
        routed = [
            model(input_ids=torch.from_numpy(b.input_ids.astype(np.int64))[None], use_cache=False, output_router_logits=True)
            for b in alone(blocks)
        ]
    layers = tuple(torch.cat(logits) for logits in zip(*(single.router_logits for single in routed), strict=True))
    function = sys.modules[type(model).__module__].load_balancing_loss_func
    wanted = float(function(layers, layers[0].shape[-1], model.config.num_experts_per_tok))
    assert float(out.aux_loss) == pytest.approx(wanted, rel=1e-5)
    plain, coefficient = float(adapter(**batch).loss), model.config.router_aux_loss_coef
    assert float(out.loss) == pytest.approx(plain + coefficient * wanted, rel=1e-5)
    helpers.gradients(model, out.aux_loss)  # it has one


def test_the_configuration_may_ask_for_the_loss_of_balance():
    model = tiny_model("mixtral", output_router_logits=True)[0].train()
    adapter = adapt(model, show=False)
    assert adapter.way.rung == "d"
    blocks = helpers.blocks_of([9, 6, 12], capacity=16)
    out = adapter(**adapter.collate(blocks))
    assert float(out.loss - adapter(**adapter.collate(blocks), output_router_logits=False).loss) == pytest.approx(
        model.config.router_aux_loss_coef * float(out.aux_loss), rel=1e-3
    )


def test_asking_a_dense_model_for_the_loss_of_balance_is_refused():
    adapter = adapt(tiny_model("llama")[0], show=False)
    with pytest.raises(InputError, match="has no function for one"):
        adapter(**adapter.collate(helpers.blocks_of()), output_router_logits=True)


def test_sums_over_the_steps_items_and_weights():
    model = tiny_model("llama")[0].train()
    adapter = adapt(model, show=False)
    blocks = helpers.blocks_of()
    batch = adapter.collate(blocks)
    targets = int((batch["labels"] != -100).sum())
    mean = float(adapter(**batch).loss)
    assert float(adapter(**batch, num_items_in_batch=10).loss) == pytest.approx(mean * targets / 10, rel=1e-5)
    weights = torch.where(batch["labels"] != -100, 2.0, float("nan"))
    assert float(adapter(**batch, loss_weights=weights, num_items_in_batch=targets).loss) == pytest.approx(2 * mean, rel=1e-5)


def test_a_batch_without_a_target_has_no_loss_and_no_gradient():
    model = tiny_model("llama")[0].train()
    adapter = adapt(model, show=False)
    batch = adapter.collate(helpers.blocks_of())
    batch["labels"] = torch.full_like(batch["labels"], -100)
    loss = adapter(**batch).loss
    assert float(loss) == 0.0
    assert all(float(g.abs().max()) == 0.0 for g in helpers.gradients(model, loss).values())


def test_a_target_across_a_boundary_is_refused_in_training_too():
    adapter = adapt(tiny_model("llama")[0], show=False)
    batch = adapter.collate(helpers.blocks_of())
    batch["labels"] = batch["input_ids"].clone()
    with pytest.raises(BoundaryError, match="are no targets"):
        adapter(**batch)


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_what_an_adapter_trains_is_read_from_its_loss_whatever_layout_ran(name):
    """The loss of a call is `loss_of` its outputs: substituting those shows every target, also where samples run in rows."""
    from cloison.proof.judging import judge

    adapter = adapt(tiny_model(name)[0].train(), show=False)

    class Whole(torch.nn.Module):
        def forward(self, **batch):
            return adapter(**batch)

    blocks = helpers.blocks_of()
    batch = adapter.collate(blocks)
    verdict, findings = judge(Whole(), batch, blocks, adapter.loss_of)
    assert (verdict.status, findings) == ("right", []) or "not judged" in verdict.summary, verdict
    assert f"{sum(block.num_targets for block in blocks)} targets read" in verdict.summary
    labels = batch.pop("labels")
    torch.testing.assert_close(adapter.loss_of(adapter(**batch), {"labels": labels}), adapter(**batch, labels=labels).loss)
