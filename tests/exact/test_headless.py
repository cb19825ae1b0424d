"""The loss without logits: the same value and gradients as with them, whatever way runs, and nothing of their size is made."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.cross_entropy import UnmadeLogits, chosen_cross_entropy  # noqa: E402
from cloison.errors import NotExactError  # noqa: E402
from cloison.exact import adapt  # noqa: E402
from cloison.losses import sample_mean, segment_losses, token_losses, token_mean  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from cloison.segments import Segments  # noqa: E402
from tests.exact import helpers  # noqa: E402

WAYS = {"llama": "d", "gemma2": "d", "cohere": "d", "gpt_oss": "d", "qwen3_next": "e", "bart": "f", "llama+rows": "f"}
"""Soft caps, scaled logits, experts, wrapped mixers, tied heads, rows for each sample."""


@pytest.mark.parametrize("name", WAYS)
def test_loss_and_gradients_equal_those_of_the_samples_alone(name):
    model = tiny_model(name.partition("+")[0])[0].train()
    adapter = adapt(model, rungs="f" if "+" in name else "adbcef", keep_logits=False, show=False)
    assert adapter.way.rung == WAYS[name]
    blocks = helpers.blocks_of()
    wanted_loss, wanted = helpers.alone_gradients(model, blocks)
    out = adapter(**adapter.collate(blocks))
    assert out.logits is None
    assert float(out.loss.detach()) == pytest.approx(wanted_loss, rel=1e-5)
    helpers.assert_same_gradients(helpers.gradients(model, out.loss), wanted)
    batch = adapter.collate(blocks)
    del batch["labels"]
    assert adapter(**batch).logits.shape[:2] == batch["input_ids"].shape, "without labels there are logits"
    assert all("forward" not in vars(module) for module in model.modules())


def test_weights_items_and_the_loss_of_balance_enter_as_ever():
    model = tiny_model("mixtral")[0].train()
    plain, headless = (adapt(model, keep_logits=keep, show=False) for keep in (True, False))
    batch = plain.collate(helpers.blocks_of())
    weights = torch.rand(batch["labels"].shape)
    for options in ({}, {"num_items_in_batch": 10}, {"loss_weights": weights}, {"output_router_logits": True}):
        torch.testing.assert_close(headless(**batch, **options).loss, plain(**batch, **options).loss, rtol=1e-5, atol=1e-6)


def test_checkpointing_and_peft():
    peft = pytest.importorskip("peft")
    base = tiny_model("llama")[0]
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2)).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    adapter = adapt(model, keep_logits=False, show=False)
    blocks = helpers.blocks_of()
    _, wanted = helpers.alone_gradients(model, blocks)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)


def test_a_batch_without_a_target_has_no_loss_and_no_gradient():
    model = tiny_model("llama")[0].train()
    adapter = adapt(model, keep_logits=False, show=False)
    batch = adapter.collate(helpers.blocks_of())
    loss = adapter(**batch | {"labels": torch.full_like(batch["labels"], -100)}).loss
    assert float(loss.detach()) == 0.0
    assert all(float(g.abs().max()) == 0.0 for g in helpers.gradients(model, loss).values())


def test_a_head_that_does_more_is_refused(monkeypatch):
    """What the forward adds to the logits from elsewhere is not in what the head makes of hidden states."""
    model = tiny_model("llama")[0]
    own = type(model).forward

    def forward(self, input_ids=None, **rest):
        out = own(self, input_ids=input_ids, **rest)
        out.logits = out.logits + 0.01 * input_ids[..., None]
        return out

    monkeypatch.setattr(type(model), "forward", forward)
    with pytest.raises(NotExactError, match="its logits are off by"):
        adapt(model, keep_logits=False, show=False)
    with pytest.raises(NotExactError, match="no head that transformers names"):
        adapt(helpers.Foreign(helpers.SdpaMixer), keep_logits=False, show=False)


def test_every_loss_takes_unmade_logits():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 9, 5, generator=generator)
    weight = torch.randn(11, 5, generator=generator)
    labels = torch.randint(0, 11, (2, 9), generator=generator)
    segments = Segments.from_lengths([[4, 5], [9]])
    labels[torch.from_numpy(segments.position_ids() == 0)] = -100
    found, wanted = [], []
    for results, made in ((found, False), (wanted, True)):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = leaves[0] @ leaves[1].T if made else UnmadeLogits(leaves[0], lambda rows, w=leaves[1]: rows @ w.T, 11, piece=3)
        values = [
            token_mean(logits, labels),
            sample_mean(logits, labels, segments),
            token_losses(logits, labels).square().sum(),
        ]
        values.append(segment_losses(logits, labels, segments)[0].prod())
        results += [*values, *torch.autograd.grad(sum(values), leaves)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-5)
    assert not any(torch.equal(found[0], value) for value in wanted[1:4])


def test_nothing_of_the_size_of_the_logits_is_made():
    model = tiny_model("llama", vocab_size=20_000)[0].train()
    adapters = {keep: adapt(model, keep_logits=keep, show=False) for keep in (True, False)}
    blocks = helpers.blocks_of([900, 1100, 500], capacity=2500)
    largest = {}
    for keep, adapter in adapters.items():
        sizes = []

        class Watching(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None, sizes=sizes):
                out = func(*args, **(kwargs or {}))
                sizes.extend(t.numel() for t in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(t))
                return out

        with Watching():
            adapter(**adapter.collate(blocks)).loss.backward()
        largest[keep] = max(sizes)
    assert largest[True] >= 2500 * 20_000
    assert largest[False] <= 2**23


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_rows_are_the_rows_in_order(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 5000, generator=generator).to(dtype)  # several pieces
    targets, factors = torch.randint(0, 5000, (300,), generator=generator), torch.rand(300, generator=generator)
    found = []
    for rows in (None, torch.arange(300)):
        leaf = logits.clone().requires_grad_()
        losses = chosen_cross_entropy(leaf, rows, targets)
        found.append((losses, *torch.autograd.grad((losses * factors).sum(), leaf)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    wanted = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    torch.testing.assert_close(found[0][0], wanted)
    assert torch.equal(leaf.detach(), logits), "the logits themselves stay"


def test_a_large_vocabulary_is_taken_in_pieces_that_are_worth_a_gradient_of_the_head():
    """Each piece adds once to the gradient of the weights, which is as large for few rows as for many."""
    sizes = []

    def head(rows):
        sizes.append(rows.shape[0])
        return rows @ weight.T

    weight, hidden = torch.randn(200_000, 2), torch.randn(1, 700, 2, requires_grad=True)
    unmade = UnmadeLogits(hidden, head, 200_000)
    with torch.no_grad():
        unmade.cross_entropy(torch.arange(700), torch.zeros(700, dtype=torch.int64))
    assert sizes == [256, 256, 188]
