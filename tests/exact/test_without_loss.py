"""Models without a loss over next tokens: bases, encoders, reward models, classifiers, masked models."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import cloison  # noqa: E402
from cloison.errors import InputError, NotExactError  # noqa: E402
from cloison.exact import adapt  # noqa: E402
from cloison.proof.blocks import alone  # noqa: E402
from cloison.proof.tiny import livened, tiny_config  # noqa: E402
from tests.exact import helpers  # noqa: E402

BERT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


def built(name, kind=None, **more):
    """A model of the class ``name``, its weights large."""
    family = name.partition("For")[0].removesuffix("Model")
    config = tiny_config(kind, **more) if kind else getattr(transformers, f"{family}Config")(**BERT, **more)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, name)(config)
    livened(model, 0)
    return model.eval()


def rows_of(blocks):
    return [torch.from_numpy(block.input_ids.astype(np.int64))[None] for block in alone(blocks)]


def gradients_of(model, scalar):
    model.zero_grad(set_to_none=True)
    scalar.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# ---------------------------------------------------------------------- hidden states

BASES = {"BertModel": None, "LlamaModel": "llama", "GptOssModel": "gpt_oss", "MambaModel": "mamba"}


@pytest.mark.parametrize("name", BASES)
def test_hidden_states_and_their_gradients_are_those_of_the_samples_alone(name):
    model = built(name, BASES[name])
    adapter = adapt(model, bidirectional=name == "BertModel", show=False)
    assert adapter.way.rung == ("e" if name == "MambaModel" else "d")
    said = adapter.certificate.verdicts["equality"]
    assert "hidden states" in said and "parameter gradients" in said and "logits" not in said
    blocks = helpers.blocks_of(capacity=128)
    batch = adapter.collate(blocks)
    assert "labels" not in batch
    out = adapter(**batch)
    singles = [model(input_ids=row, use_cache=False).last_hidden_state for row in rows_of(blocks)]
    wanted = torch.cat([single[0] for single in singles])
    torch.testing.assert_close(out.last_hidden_state[0], wanted, rtol=0, atol=5e-5 * float(wanted.detach().std()))
    # an embedding trainer: the mean of each sample, and a loss between them
    lengths = [row.shape[1] for row in rows_of(blocks)]
    means = torch.stack([part.mean(0) for part in out.last_hidden_state[0].split(lengths)])
    others = torch.stack([single[0].mean(0) for single in singles])
    found, expected = (gradients_of(model, torch.cdist(e, e.roll(1, 0)).diagonal().sum()) for e in (means, others))
    assert set(found) == set(expected)
    helpers.assert_same_gradients(found, expected, 5e-5)
    report = cloison.verify(adapter, seed=3, bidirectional=name == "BertModel")
    assert report.ok, report


def test_what_a_base_pools_of_a_packed_row_is_not_given():
    model = built("BertModel")
    assert model(input_ids=torch.arange(4, 9)[None]).pooler_output is not None
    adapter = adapt(model, bidirectional=True, show=False)
    out = adapter(**adapter.collate(helpers.blocks_of()))
    assert out.pooler_output is None and "pooler_output" not in out


def test_a_base_has_no_loss_and_says_so():
    adapter = adapt(built("LlamaModel", "llama"), show=False)
    batch = adapter.collate(helpers.blocks_of())
    with pytest.raises(InputError, match="LlamaModel returns hidden states"):
        adapter(**batch, labels=torch.full_like(batch["input_ids"], -100))
    with pytest.raises(NotExactError, match="no head that transformers names"):
        adapt(built("LlamaModel", "llama"), keep_logits=False, show=False)


def test_a_base_that_leaks_and_a_backward_that_does_are_found_without_a_loss():
    report = cloison.verify(built("GptOssModel", "gpt_oss"), fix=False)
    assert {verdict.experiment: verdict.status for verdict in report.verdicts}["isolation"] == "leak"

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            return hidden.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (2.0 if gradient.shape[1] > 40 else 1.0)  # packed rows only

    model = built("LlamaModel", "llama")
    handle = model.layers[0].register_forward_pre_hook(lambda _, args: (Doubled.apply(args[0]), *args[1:]))
    said = {verdict.experiment: verdict for verdict in cloison.verify(model, fix=False).verdicts}
    handle.remove()
    assert (said["isolation"].status, said["gradients"].status, said["equality"].status) == ("exact", "exact", "mismatch")
    assert "parameter gradients" in said["equality"].summary


# ---------------------------------------------------------------------- one output a sample

SCORERS = {
    "LlamaForSequenceClassification": ("llama", {"num_labels": 1, "pad_token_id": 0}),
    "GPT2ForSequenceClassification": ("gpt2", {"num_labels": 1, "pad_token_id": None}),  # no padding id: pooled one by one
    "JambaForSequenceClassification": ("jamba", {"num_labels": 2, "pad_token_id": 0}),
    "BertForSequenceClassification": (None, {"num_labels": 3}),
    "ModernBertForSequenceClassification": (
        None,
        {"num_labels": 2, "classifier_pooling": "mean", "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
}


@pytest.mark.parametrize("name", SCORERS)
def test_scores_of_samples_and_their_gradients_are_those_of_the_samples_alone(name):
    kind, more = SCORERS[name]
    model = built(name, kind, **more)
    adapter = adapt(model, show=False)
    assert adapter.way.rung == ("e" if kind == "jamba" else "d"), adapter
    assert adapter.way.choice["pooled"] == ("one by one" if kind == "gpt2" else "together")
    blocks = helpers.blocks_of([7, 1, 11, 2, 5, 29, 3, 12], capacity=32)  # several rows
    scores = adapter(**adapter.collate(blocks)).logits
    wanted = torch.cat([model(input_ids=row).logits for row in rows_of(blocks)])
    assert scores.shape == wanted.shape == (8, more["num_labels"])
    torch.testing.assert_close(scores, wanted, rtol=0, atol=2e-5 * max(1.0, float(wanted.detach().std())))
    # pairs of a preferred and a rejected sample
    found, expected = (
        gradients_of(model, -torch.nn.functional.logsigmoid(s[::2, 0] - s[1::2, 0]).mean()) for s in (scores, wanted)
    )
    helpers.assert_same_gradients(found, expected, 5e-5)
    report = cloison.verify(adapter, seed=3)
    assert report.ok, report
    assert "outputs of samples" in next(v.summary for v in report.verdicts if v.experiment == "equality")


def test_a_sample_that_ends_with_the_padding_id_is_pooled_as_alone():
    model = built("LlamaForSequenceClassification", "llama", num_labels=1, pad_token_id=2)
    adapter = adapt(model, show=False)
    blocks = cloison.pack_samples([[5, 6, 7, 2], [8, 9, 2, 2], [11, 12, 13, 14, 15, 16]], capacity=16, order="input")
    wanted = torch.cat([model(input_ids=row).logits for row in rows_of(blocks)])
    torch.testing.assert_close(adapter(**adapter.collate(blocks)).logits, wanted, rtol=1e-5, atol=1e-5)


def test_a_reward_model_under_peft_and_checkpointing_and_by_each_rung():
    peft = pytest.importorskip("peft")
    base = built("LlamaForSequenceClassification", "llama", num_labels=1, pad_token_id=0)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj", "v_proj"], r=2)).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    blocks = helpers.blocks_of()
    wanted = gradients_of(model, torch.cat([model(input_ids=row).logits for row in rows_of(blocks)]).square().sum())
    assert any("score" in name for name in wanted)
    for rungs in "dcg":
        adapter = adapt(model, rungs=rungs, show=False)
        assert adapter.way.rung == rungs
        found = gradients_of(model, adapter(**adapter.collate(blocks)).logits.square().sum())
        helpers.assert_same_gradients(found, wanted, 5e-5)
    batch = adapter.collate(blocks)
    with pytest.raises(InputError, match="returns one output a sample"):
        adapter(**batch, labels=torch.full_like(batch["input_ids"], -100))


def test_a_reward_model_is_chosen_on_a_twin_where_its_window_is_long():
    model = built("MistralForSequenceClassification", "mistral", num_labels=1, pad_token_id=0, sliding_window=2048)
    adapter = adapt(model, show=False)
    assert "twin" in adapter.certificate.twin
    blocks = helpers.blocks_of()
    wanted = torch.cat([model(input_ids=row).logits for row in rows_of(blocks)])
    torch.testing.assert_close(adapter(**adapter.collate(blocks)).logits, wanted, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match=r"Pass its base \(model.base_model\)"):
        adapt(built("LlamaForQuestionAnswering", "llama"), show=False)  # one number a token, in two fields

    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = helpers.Foreign(helpers.SdpaMixer)

        def forward(self, input_ids):
            return self.inner(input_ids).mean(1)

    with pytest.raises(NotExactError, match="no base whose hidden states"):
        adapt(Mean(), show=False)


# ---------------------------------------------------------------------- labels of the token itself


def test_labels_of_masked_models_are_of_their_own_token():
    model = built("BertForMaskedLM")
    adapter = adapt(model, bidirectional=True, show=False)
    assert adapter.asks == "same tokens"
    blocks = helpers.blocks_of()
    batch = adapter.collate(blocks)
    masked = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(0)) < 0.4
    masked[0, 0] = True  # the first token of a sample can be masked
    labels = torch.where(masked, batch["input_ids"], -100)
    batch |= {"input_ids": batch["input_ids"].masked_fill(masked, 3), "labels": labels}
    lengths = [row.shape[1] for row in rows_of(blocks)]
    own = [
        model(input_ids=ids, labels=asked).loss * int((asked != -100).sum())
        for ids, asked in zip(batch["input_ids"].split(lengths, 1), labels.split(lengths, 1), strict=True)
        if bool((asked != -100).any())
    ]
    assert float(adapter(**batch).loss.detach()) == pytest.approx(float(sum(own).detach()) / int(masked.sum()), rel=1e-5)
    without = adapt(model, bidirectional=True, keep_logits=False, show=False)
    torch.testing.assert_close(without(**batch).loss, adapter(**batch).loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["LlamaForTokenClassification", "BertForTokenClassification"])
def test_classes_of_tokens(name):
    model = built(name, "llama" if "Llama" in name else None, num_labels=5)
    adapter = adapt(model, bidirectional=True, show=False)
    assert adapter.asks == "classes"
    blocks = helpers.blocks_of()
    batch = adapter.collate(blocks)
    assert "labels" not in batch
    labels = torch.randint(0, 5, batch["input_ids"].shape, generator=torch.Generator().manual_seed(0))
    lengths = [row.shape[1] for row in rows_of(blocks)]
    own = [
        model(input_ids=ids, labels=asked).loss * asked.numel()
        for ids, asked in zip(batch["input_ids"].split(lengths, 1), labels.split(lengths, 1), strict=True)
    ]
    assert float(adapter(**batch, labels=labels).loss.detach()) == pytest.approx(
        float(sum(own).detach()) / labels.numel(), rel=1e-5
    )


def test_causal_models_shift_whatever_their_own_loss_does():
    """Bart's causal model leaves the shift to the caller; blocks have labels at the index of their token."""
    assert adapt(built("BartForCausalLM", "bart"), show=False).asks == "next tokens"


# ---------------------------------------------------------------------- outputs as objects


@pytest.mark.parametrize("keep", [True, False])
def test_the_loss_comes_first_and_what_is_not_there_has_no_key(keep):
    model = built("LlamaForCausalLM", "llama")
    adapter = adapt(model, keep_logits=keep, show=False)
    out = adapter(**adapter.collate(helpers.blocks_of()))
    assert torch.equal(out[0], out.loss) and torch.equal(out["loss"], out.loss)
    assert ("logits" in out) == keep == (out.logits is not None)
