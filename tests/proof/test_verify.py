"""verify: what it says of right and wrong set-ups, what it does with bad input, and that it leaves no trace."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

from cloison.errors import FindingsError, InputError  # noqa: E402
from cloison.proof.blocks import block_of, bounds, lengths_of, synthetic  # noqa: E402
from cloison.proof.run import places, subject  # noqa: E402
from cloison.proof.signals import signal  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from cloison.proof.verify import verify  # noqa: E402
from tests.proof.toy import flat, make, rows  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def finding(report, kind):
    return next(found for found in report.findings if found.kind == kind)


# ---------------------------------------------------------------------- the two that convince


def test_llama_is_exact_in_all_56_cells():
    model, _ = tiny_model("llama")
    report = verify(model)
    assert report.ok
    assert {v.experiment: v.status for v in report.verdicts} == {
        "isolation": "exact",
        "look-ahead": "exact",
        "gradients": "exact",
        "equality": "exact",
        "positions": "right",
        "targets": "right",
    }
    assert report["isolation"].summary.startswith("0 of 56 cells moved")
    assert np.nansum(report.influence[~np.eye(8, dtype=bool)]) == 0.0
    report.raise_for_findings()


def test_gpt_oss_leaks_and_the_report_says_where_how_much_and_what_mends_it():
    model, _ = tiny_model("gpt_oss")
    report = verify(model, collate=signal("positions"))
    leak = finding(report, "leak")
    assert leak.where["module"] == "model.layers.0.self_attn"
    assert leak.where["nature"] == "attention"
    assert leak.where["size"] > 0.5
    assert "masks_by_layer_type" in leak.fix and "Tried here: exact." in leak.fix
    assert report["isolation"].evidence["cells_moved"] == 28
    with pytest.raises(FindingsError, match="samples see each other"):
        report.raise_for_findings()


@pytest.mark.parametrize(
    ("name", "cache", "attn", "fix"),
    [
        ("positions", "on", "eager", "Pass use_cache=False."),
        ("positions-ones", "off", "eager", "Drop the 2-D attention_mask"),
        ("mask4d-bool", "off", "eager", "Pass an additive float mask instead of a bool one"),
        ("none", "off", "sdpa", "Pass position_ids that start anew"),
    ],
)
def test_fixes_were_tried_and_can_be_typed(name, cache, attn, fix):
    model, _ = tiny_model("llama", attn=attn)
    report = verify(model, collate=signal(name, cache), gradients=False)
    assert not report.ok
    assert finding(report, "leak").fix.startswith(fix)
    assert finding(report, "leak").fix.endswith("(Tried here: exact.)")


# ---------------------------------------------------------------------- bad input


class Wrapped(torch.nn.Module):
    """A Toy whose forward does something more."""

    def __init__(self, inner, also):
        super().__init__()
        self.inner, self.also = inner, also

    def forward(self, **batch):
        return self.also(self.inner, self.inner(**batch))


def test_no_logits():
    report = verify(Wrapped(make(), lambda model, out: {"loss": out["logits"].sum()}), collate=flat)
    assert not report.ok
    assert finding(report, "error").where["experiment"] == "isolation"
    assert "without logits" in finding(report, "error").message


def test_a_model_that_raises_on_a_signal_is_an_error_of_that_signal_and_the_rest_goes_on():
    model, _ = tiny_model("bloom")
    report = verify(model, collate=signal("mask4d"))
    assert report["isolation"].status == "error"
    assert report["positions"].status == "right"
    assert not report.ok
    assert verify(model, collate=signal("positions"))["isolation"].status == "leak"


def test_weights_that_a_forward_changes_are_named_and_put_back():
    def grow(model, out):
        with torch.no_grad():
            model.head.bias.add_(1e-3)
        return out

    model = make()
    before = model.head.bias.detach().clone()
    report = verify(Wrapped(model, grow), collate=flat, gradients=False, fix=False)
    assert "inner.head.bias" in finding(report, "weights_changed").where["parameters"]
    assert torch.equal(model.head.bias, before)


def test_a_forward_that_draws_random_numbers_is_seeded_and_said():
    def noise(model, out):
        return {"logits": out["logits"] + 0.01 * torch.randn(out["logits"].shape)}

    report = verify(Wrapped(make(), noise), collate=flat, gradients=False, fix=False)
    assert report["isolation"].status == "exact"
    assert finding(report, "random_forward").severity == "note"


def test_nan_outputs():
    def poison(model, out):
        return {"logits": torch.where(out["logits"] > 1.5, torch.nan, out["logits"])}

    report = verify(Wrapped(make(), poison), collate=flat, fix=False)
    assert not report.ok
    assert "NaN" in finding(report, "error").message


def test_dropout_is_off_and_said():
    model, _ = tiny_model("gpt2", resid_pdrop=0.3, attn_pdrop=0.2, embd_pdrop=0.1)
    model.train()
    report = verify(model, collate=signal("positions"))
    assert report.ok
    assert finding(report, "dropout_off").where["rate"] == 0.3
    assert model.training and all(module.training for module in model.modules())


def test_one_segment_is_not_tested_for_isolation():
    model, _ = tiny_model("llama")
    report = verify(model, [block_of([9], np.arange(10, 19))])
    assert report["isolation"].status == report["gradients"].status == "not tested"
    assert report["equality"].status == "exact"
    assert report.ok
    assert any("isolation" in entry for entry in report.certificate["not_tested"])


def test_kernels_that_differ_from_run_to_run_are_held_against_their_own_noise():
    generator = torch.Generator().manual_seed(0)

    def atomics(model, out):
        return {"logits": out["logits"] + 1e-6 * torch.randn(out["logits"].shape, generator=generator)}

    report = verify(Wrapped(make(), atomics), collate=flat, gradients=False, fix=False)
    assert report["isolation"].status == "exact"
    assert 0 < report["isolation"].evidence["noise"] < 1e-4

    from tests.proof.mutants_model import attention, plain_causal

    leaky = verify(Wrapped(make(attention=attention(mask=plain_causal)), atomics), collate=flat, gradients=False, fix=False)
    assert leaky["isolation"].status == "leak"


def test_constant_outputs_are_no_proof():
    report = verify(Wrapped(make(), lambda model, out: {"logits": 0 * out["logits"]}), collate=flat, fix=False)
    assert not report.ok
    assert "must depend on the tokens" in finding(report, "error").message


@pytest.mark.parametrize(("model", "blocks"), [("text", None), (lambda batch: batch, None), (make(), [])])
def test_wrong_use(model, blocks):
    with pytest.raises(InputError):
        verify(model, blocks)


# ---------------------------------------------------------------------- no trace


def test_the_model_and_the_random_states_are_left_as_they_were():
    model, _ = tiny_model("llama", rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4})
    model.model.layers[0].train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    plain = {name: dict(vars(module)) for name, module in model.named_modules()}
    modes = [module.training for module in model.modules()]
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    verify(model, collate=signal("positions"))
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, module in model.named_modules():
        assert vars(module).keys() == plain[name].keys()
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert all(vars(module)[key] is plain[name][key] for key in plain[name] if isinstance(plain[name][key], (int, float)))


def test_the_same_seed_gives_the_same_report():
    model, _ = tiny_model("qwen3_next")
    first, second = (verify(model, collate=signal("positions"), seed=5).to_json() for _ in range(2))
    assert first == second
    assert json.loads(first)["ok"] is False


# ---------------------------------------------------------------------- forms of batches


def test_outputs_are_found_in_flat_rows_padded_rows_and_one_row_a_sample():
    model = make()
    blocks = synthetic(None)
    expected = subject(model, flat).run(blocks).logits

    def left(parts):
        batch = rows(parts)
        width = batch["input_ids"].shape[1]
        order = torch.stack([torch.roll(torch.arange(width), width - part.num_tokens) for part in parts])
        return {name: value.gather(1, order) for name, value in batch.items()}

    def shuffled(parts):
        batch = flat(list(reversed(parts)))
        return batch

    for collate in (rows, left, shuffled):
        assert torch.allclose(subject(model, collate).run(blocks).logits, expected, atol=1e-4)


def test_places_are_none_where_the_batch_holds_other_tokens():
    blocks = synthetic(None)
    assert places({"input_ids": torch.zeros(1, 71, dtype=torch.long)}, blocks) is None
    assert places({}, blocks) is None


def test_synthetic_blocks_are_awkward():
    _, config = tiny_model(
        "llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, max_position_embeddings=16
    )
    blocks = synthetic(config)
    lengths = lengths_of(blocks)
    assert {1, 2, 7, 11, 13} <= set(lengths)
    assert max(lengths) > config.max_position_embeddings > min(lengths)
    assert len(blocks) == 2 and len(bounds(blocks)) == 8


def test_a_model_in_bfloat16_is_measured_against_its_own_noise():
    model, _ = tiny_model("llama")
    model.bfloat16()
    report = verify(model, collate=signal("positions"))
    assert report.ok, str(report)
    assert report["equality"].evidence["comparisons"]["logits"]["floor"] > 1e-3
    assert not verify(model, collate=signal("none"), fix=False).ok


def test_an_adapter_is_verified_with_its_own_collate():
    from cloison.exact import adapt

    model, _ = tiny_model("gpt_oss")
    report = verify(adapt(model))
    assert report.ok, str(report)
    assert report["isolation"].status == report["equality"].status == "exact"


def test_a_certificate_names_the_setup_and_what_was_not_tested():
    model, _ = tiny_model("mistral", sliding_window=4096)
    certificate = verify(model, collate=signal("positions")).certificate
    assert certificate["model_type"] == "mistral"
    assert certificate["dtype"] == ["float32"]
    assert certificate["attention"] == "eager"
    assert set(certificate["signal"]) == {"input_ids", "labels", "position_ids", "use_cache"}
    assert certificate["versions"]["torch"] and certificate["versions"]["transformers"]
    assert any(entry.startswith("sliding_window=4096") for entry in certificate["not_tested"])
    assert json.loads(json.dumps(certificate))["verdicts"]["isolation"] == "exact"


@pytest.mark.parametrize("places", [8, 13, 64])
def test_samples_are_no_longer_than_the_model_has_positions(places):
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=128, n_positions=places, bos_token_id=1, eos_token_id=2)
    report = verify(GPT2LMHeadModel(config))
    assert report.ok
    said = {verdict.experiment: verdict.summary for verdict in report.verdicts}
    assert "a shift of 3 moves the outputs" in said["positions"]  # a table of positions is read, however short it is


# ---------------------------------------------------------------------- right set-ups that are easily accused


@pytest.mark.parametrize("seed", range(6))
def test_a_handful_of_tokens_is_not_accused_of_its_rounding(seed):
    draw = random.Random(seed)
    lengths = [draw.choice([1, 2, 3, 4]) for _ in range(draw.choice([2, 3]))]
    block = block_of(lengths, np.array([draw.randrange(4, 64) for _ in range(sum(lengths))]))
    report = verify(make(), [block], collate=flat, fix=False)
    assert report.ok, str(report)
    assert report["equality"].status == "exact"


def test_the_floor_of_a_loss_is_never_below_that_of_the_logits_it_is_made_of():
    comparisons = verify(make(), collate=flat)["equality"].evidence["comparisons"]
    assert comparisons["loss per token"]["floor"] > 0.1 * comparisons["logits"]["floor"]


def test_a_function_that_closes_over_a_module_is_measured_like_the_module():
    model = make()
    report = verify(lambda batch: model(**batch)["logits"], collate=flat)
    assert report.ok, str(report)
    assert {report[e].status for e in ("isolation", "gradients", "equality")} == {"exact"}
    assert verify(model.forward, collate=flat).ok


def test_a_callable_that_shows_no_module_is_not_accused():
    models = [make(), make()]  # two: nobody says which it is
    report = verify(lambda batch: models[0](**batch)["logits"], collate=flat)
    assert report.ok, str(report)
    assert report["isolation"].status == "exact"
    assert report["equality"].status == "not tested" and "sigma" in report["equality"].summary


class OtherNames(torch.nn.Module):
    """A model that calls its ids otherwise, and knows few of them."""

    def __init__(self, known=24):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = torch.nn.Embedding(known, 8), torch.nn.Linear(8, known)

    def forward(self, idx, segments=None):
        segments = torch.ones_like(idx) if segments is None else segments
        seen = (segments[:, :, None] == segments[:, None, :]).tril().float()
        return self.head(seen @ self.table(idx) / seen.sum(-1, keepdim=True)), None


def named(blocks):
    batch = flat(blocks)
    return {"idx": batch["input_ids"], "segments": batch["segment_ids"]}


def test_a_model_with_few_ids_and_other_names_is_run_as_it_is():
    report = verify(OtherNames(), collate=named)
    assert report.ok, str(report)
    assert report["equality"].status == "exact"
    report = verify(OtherNames(), collate=lambda blocks: {"idx": named(blocks)["idx"]}, fix=False)
    assert [f.kind for f in report.findings if f.severity == "error"] == ["leak"]


def test_what_raises_says_what_to_try():
    block = block_of([3, 2], np.array([90, 91, 200, 5, 6]))
    assert "ids up to 200 and the model knows 64" in finding(verify(make(), [block], collate=flat), "error").fix
    assert "callable" in finding(verify(OtherNames()), "error").fix
    for blocks, said in (([[1, 2, 3]], "pack_samples"), ("abc", "pack_samples")):
        with pytest.raises(InputError, match=said):
            verify(make(), blocks, collate=flat)
    with pytest.raises(InputError, match="Load the model first"):
        verify("gpt2")


def test_outputs_that_do_not_repeat_say_what_would_not_show():
    class Remembers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = make(), None

        def forward(self, **batch):
            logits = self.inner(**batch)["logits"]
            out = logits if self.last is None else logits + 0.2 * self.last
            self.last = logits.detach().mean((0, 1))
            return {"logits": out}

    report = verify(Remembers(), collate=flat, fix=False)
    assert "would show" in report["isolation"].summary
    assert finding(report, "mismatch").where["cause"] == "stale_state"
    assert report["positions"].status == "not tested"
