"""What breaks adapters: odd blocks, threads, autocast, several adapters on one model, encoders, wrappers, and no batches."""

from __future__ import annotations

import sys
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cloison.errors import InputError, NotExactError  # noqa: E402
from cloison.exact import adapt, choices  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from tests.exact import helpers, kernels_reference  # noqa: E402
from tests.exact.test_adapt import packed_against_alone  # noqa: E402


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    monkeypatch.setattr(choices, "_CHOICES", {})


@pytest.fixture(scope="module")
def adapters():
    return {name: adapt(tiny_model(name)[0], show=False) for name in ("llama", "mamba", "bart")}


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1, 1], [16], [1, 15], [16, 1, 16]])
@pytest.mark.parametrize("name", ["llama", "mamba", "bart"])
def test_odd_blocks(adapters, name, lengths):
    adapter = adapters[name]
    blocks = helpers.blocks_of(lengths, capacity=16)
    assert packed_against_alone(adapter, blocks) < 5e-5
    loss = adapter(**adapter.collate(blocks)).loss
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in adapter.model.parameters() if p.grad is not None)
    adapter.model.zero_grad(set_to_none=True)


def test_threads_that_share_a_model_take_turns(adapters):
    """Each puts its own changes on the model: without turns one finds the other's, and the model stays changed."""
    jobs = [(adapters[name], helpers.blocks_of(seed=seed)) for name in ("llama", "mamba") for seed in range(3)]
    wanted = [adapter(**adapter.collate(blocks)).logits.detach() for adapter, blocks in jobs]
    wrong = []

    def work(adapter, blocks, logits):
        for _ in range(6):
            try:
                out = adapter(**adapter.collate(blocks))
                out.loss.backward()
                torch.testing.assert_close(out.logits, logits)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(*job, logits)) for job, logits in zip(jobs, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for name in ("llama", "mamba"):
        model = adapters[name].model
        assert not any("forward" in vars(module) for module in model.modules())
        assert model.config._attn_implementation == "eager"


def test_under_autocast_the_way_is_chosen_without_it_and_runs_with_it():
    model = tiny_model("llama")[0].train()
    with torch.autocast("cpu", torch.bfloat16):
        adapter = adapt(model, show=False)
        assert adapter.way.rung == "d"
        assert any("under autocast to bfloat16" in entry for entry in adapter.certificate.not_tested)
        blocks = helpers.blocks_of()
        loss = adapter(**adapter.collate(blocks)).loss
    assert adapter.certificate.measured["floor"] < 1e-3, "float32's, not bfloat16's"
    wanted, _ = helpers.alone_gradients(model, blocks)
    assert float(loss.detach()) == pytest.approx(wanted, rel=2e-2)
    loss.backward()
    assert not any("under autocast" in entry for entry in adapt(model, show=False).certificate.not_tested)


@pytest.mark.parametrize(
    ("name", "rates"), [("llama", {"attention_dropout": 0.1}), ("gpt2", {"attn_pdrop": 0.1, "resid_pdrop": 0.1})]
)
def test_a_model_that_drops_in_training_is_tried_without(name, rates):
    """Its own noise is no sight of the future."""
    model = tiny_model(name, **rates)[0].train()
    adapter = adapt(model, show=False)
    assert adapter.way.rung == "d" and model.training
    adapter(**adapter.collate(helpers.blocks_of())).loss.backward()
    assert adapt(model, kernels=("varlen_attn",), show=False).way.kernel == "sdpa", "no dropout there, or not here"


def test_under_autocast_a_kernel_gets_what_sdpa_would(monkeypatch):
    """Rotary embeddings make float32 queries of a model under autocast, and such kernels take none."""
    seen = []

    def kernel(q, *rest, **named):
        seen.append(q.dtype)
        if q.dtype == torch.float32:
            raise RuntimeError("only half precisions")
        return kernels_reference.flash_attn_varlen_func(q, *rest, **named)

    module = kernels_reference.flash_attn_module()
    module.flash_attn_varlen_func = kernel
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    model = tiny_model("llama")[0].train()
    with torch.autocast("cpu", torch.bfloat16):
        adapter = adapt(model, kernels=("flash",), show=False)
        assert adapter.way.kernel == "flash", adapter.certificate.tried
        seen.clear()
        blocks = helpers.blocks_of()
        loss = adapter(**adapter.collate(blocks)).loss
    assert set(seen) == {torch.bfloat16}
    wanted, _ = helpers.alone_gradients(model, blocks)
    assert float(loss.detach()) == pytest.approx(wanted, rel=2e-2)


def test_a_choice_among_fewer_rungs_is_no_choice_for_the_next_call():
    model = tiny_model("llama")[0]
    assert adapt(model, rungs="f", show=False).way.rung == "f"
    assert adapt(model, show=False).way.rung == "d"


def test_several_adapters_of_one_model_do_not_meet():
    model = tiny_model("llama")[0]
    ways = [adapt(model, rungs=rungs, show=False) for rungs in ("d", "c", "f")]
    blocks = helpers.blocks_of()
    assert max(packed_against_alone(adapter, blocks) for adapter in (*ways, ways[0])) < 5e-5
    assert ways[1].restore() is ways[1].restore() is model
    with pytest.raises(InputError, match="runs no more"):
        ways[1](**ways[1].collate(blocks))
    assert packed_against_alone(ways[2], blocks) < 5e-5


def test_generation_between_two_steps_is_the_models_own():
    model = tiny_model("llama")[0]
    adapter = adapt(model, show=False)
    prompt = torch.arange(4, 8)[None]
    before = model.generate(prompt, max_new_tokens=3, do_sample=False)
    adapter(**adapter.collate(helpers.blocks_of()))
    assert torch.equal(model.generate(prompt, max_new_tokens=3, do_sample=False), before)


@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_encoders_look_ahead_and_that_is_meant(kind):
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    local = {"local_attention": 8, "global_attn_every_n_layers": 2} if kind == "ModernBert" else {}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2} if local else {}
    config = getattr(transformers, f"{kind}Config")(**sizes, **local, **special, max_position_embeddings=128)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    with pytest.raises(NotExactError, match="they see their targets"):
        adapt(model, show=False)
    adapter = adapt(model, bidirectional=True, show=False)
    assert adapter.way.rung == "d"
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5


def test_ddp_around_what_calls_the_adapter(tmp_path):
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = tiny_model("llama")[0].train()
        adapter = adapt(model, show=False)

        class Training(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, **batch):
                return adapter(**batch).loss

        blocks = helpers.blocks_of()
        _, wanted = helpers.alone_gradients(model, blocks)
        training = torch.nn.parallel.DistributedDataParallel(Training())
        helpers.assert_same_gradients(helpers.gradients(model, training(**adapter.collate(blocks))), wanted)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({}, "input_ids of shape"),
        ({"input_ids": torch.ones(1, 3), "seq_lengths": [[3]]}, "are token ids"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.int64), "seq_lengths": [[]]}, "are token ids"),
        ({"input_ids": torch.ones(1, 3, dtype=torch.int64), "seq_lengths": "abc"}, "boundaries are numbers"),
        ({"input_ids": torch.ones(1, 3, dtype=torch.int64), "seq_lengths": 3}, "boundaries are numbers"),
    ],
)
def test_what_is_no_batch_is_refused(adapters, batch, said):
    with pytest.raises(InputError, match=said):
        adapters["llama"](**batch)


def test_weights_without_values_are_refused():
    with pytest.raises(InputError, match="Weights are on meta"):
        adapt(tiny_model("llama")[0].to("meta"), show=False)
    with torch.inference_mode():
        model = tiny_model("llama")[0]
    with pytest.raises(InputError, match=r"made under torch\.inference_mode"):
        adapt(model, show=False)
    usual = tiny_model("llama")[0]
    with torch.inference_mode():
        assert adapt(usual, show=False).way.rung == "d"


@pytest.mark.parametrize("rungs", ["f", "g"])
def test_rows_of_samples_are_verified_like_any_other_layout(rungs):
    """Gradients and targets have the index of the rows that ran, found by their ids."""
    from cloison.proof.verify import verify

    report = verify(adapt(tiny_model("llama")[0].train(), rungs=rungs, show=False))
    said = {verdict.experiment: verdict for verdict in report.verdicts}
    assert said["gradients"].summary.startswith("exactly zero in all 56 cells")
    assert "targets read from the cross entropy loss by substituting the output" in said["targets"].summary


def test_a_backward_that_leaks_is_seen_in_rows_too():
    """A row that is joined to the next one in the backward alone: the forward is right, and no perturbation sees it."""
    from cloison.proof.verify import verify

    adapter = adapt(tiny_model("llama")[0].train(), rungs="f", show=False)

    class Joined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            return hidden.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient + 0.1 * gradient.roll(1, 0)

    first = adapter.model.model.layers[0]
    handle = first.register_forward_pre_hook(lambda _, args: (Joined.apply(args[0]), *args[1:]))
    said = {verdict.experiment: verdict for verdict in verify(adapter).verdicts}
    handle.remove()
    assert (said["isolation"].status, said["gradients"].status) == ("exact", "leak")
