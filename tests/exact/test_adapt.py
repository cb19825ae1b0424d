"""adapt: what it chooses, by experiment; what it refuses; and that the model is as it was."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import cloison  # noqa: E402
from cloison.errors import InputError, NotExactError  # noqa: E402
from cloison.exact import adapt, choices  # noqa: E402
from cloison.proof.blocks import alone  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from cloison.proof.tiny_configs import VARIANTS  # noqa: E402
from tests.exact import helpers  # noqa: E402

SPREAD = {
    "llama": "d",
    "mistral": "d",
    "gpt_oss": "d",
    "gemma3_text": "d",
    "llama4_text": "d",
    "bert": "d",
    "falcon+alibi": "b",
    "mpt": "c",
    "deepseek_v32": "b",
    "mamba2": "e",
    "qwen3_next": "e",
    "jamba": "e",
    "openai-gpt": "e",
    "bart": "f",
    "bloom": "f",
    "llama+dynamic": "f",
    "phi3+longrope": "f",
}
"""A spread of types with the rung that is the cheapest exact one for each."""


def built(name, attn="eager", **more):
    model_type, changes = VARIANTS.get(name, (name, {}))
    return tiny_model(model_type, attn=attn, **{**changes, **more})[0]


@pytest.fixture
def forgetful(monkeypatch):
    """Forget the choices of this process, now and whenever it is called."""

    def forget():
        monkeypatch.setattr(choices, "_CHOICES", {})

    forget()
    return forget


def packed_against_alone(adapter, blocks):
    """The largest difference of logits, in standard deviations."""
    batch = adapter.collate(blocks)
    with torch.no_grad():
        logits = adapter(**batch).logits
        wanted = [adapter.model(input_ids=torch.from_numpy(b.input_ids.astype(np.int64))[None], use_cache=False).logits[0]
                  for b in alone(blocks)]  # fmt: skip
    assert logits.shape[:2] == batch["input_ids"].shape
    rows = batch["seq_lengths"].tolist()
    pieces, index = [], 0
    for row, lengths in enumerate(rows):
        place = 0
        for length in filter(None, lengths):
            pieces.append((logits[row, place : place + length] - wanted[index]).abs().max())
            place, index = place + length, index + 1
    return float(max(pieces)) / float(torch.cat(wanted).std())


@pytest.mark.parametrize("name", SPREAD)
def test_it_finds_the_cheapest_exact_rung(name):
    adapter = adapt(built(name), show=False)
    assert adapter.way.rung == SPREAD[name], adapter
    with (Path(__file__).parents[2] / "docs" / "atlas.csv").open(newline="", encoding="utf-8") as file:
        said = {row["adapted"] for row in csv.DictReader(file) if (row["model_type"], row["attention"]) == (name, "eager")}
    assert said == {adapter.way.name}
    if name != "llama+dynamic":  # alone, this one remembers what ran before
        assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5
    assert cloison.verify(adapter, seed=5).ok


@pytest.mark.parametrize("rung", "bcfg")
def test_every_rung_that_is_allowed_is_exact_on_llama(rung):
    adapter = adapt(built("llama", attn="sdpa"), rungs=rung, show=False)
    assert adapter.way.rung == rung
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5


def test_a_type_that_position_ids_do_not_isolate_is_refused_with_the_table():
    with pytest.raises(NotExactError) as caught:
        adapt(built("gpt_oss"), rungs="b", show=False)
    assert "b: position_ids (positions from 0): leak" in caught.value.found
    assert "allow more rungs" in caught.value.remedy


@pytest.mark.parametrize("name", ["cpmant", "prophetnet"])
def test_a_model_that_looks_ahead_is_refused_unless_that_is_meant(name):
    with pytest.raises(NotExactError, match="they see their targets"):
        adapt(built(name), show=False)
    assert adapt(built(name), bidirectional=True, show=False).way.rung in "fg"


def test_what_is_chosen_is_shown_on_one_line(capsys):
    adapter = adapt(built("llama"))
    shown = capsys.readouterr().err
    assert shown.startswith("cloison: LlamaForCausalLM (eager, float32, cpu) runs packed blocks by d: own attention")
    assert shown.count("\n") == 1
    assert "0 of 56 cells moved" in shown
    assert repr(adapter) == f"Adapter({adapter.certificate.line()})"


@pytest.mark.parametrize("name", ["llama", "mamba", "phi3"])
def test_the_line_is_short_and_the_certificate_has_the_rest(name):
    adapter = adapt(built(name), show=False)
    line, plain = adapter.certificate.line(), adapter.certificate.to_dict()
    assert len(line) <= 160
    assert line.split("; ")[1:3] == ["isolation: 0 of 56 cells moved", "equality: within rounding"]
    assert ("; on a twin of 2 layers" in line) == (name == "phi3")
    assert adapter.way.detail in plain["way"]
    assert "parameter gradients" in plain["verdicts"]["equality"]


def test_outside_the_call_the_model_is_untouched():
    model = built("jamba").train()
    before = copy.deepcopy(model.state_dict())
    config, attributes = model.config.to_json_string(), {n: dict(vars(m)) for n, m in model.named_modules()}
    ids = torch.arange(4, 20)[None]
    own = model(input_ids=ids, use_cache=False).logits
    adapter = adapt(model, show=False)
    adapter(**adapter.collate(helpers.blocks_of())).loss.backward()
    assert model.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert model.config.to_json_string() == config
    for name, module in model.named_modules():
        assert vars(module).keys() == attributes[name].keys(), name
        assert not module._forward_hooks and not module._forward_pre_hooks, name
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, own)
    assert adapter.restore() is model


def test_a_call_that_raises_leaves_the_model_untouched_too(monkeypatch):
    model = built("mamba")
    adapter = adapt(model, show=False)
    assert adapter.way.rung == "e"
    batch = adapter.collate(helpers.blocks_of())
    monkeypatch.setattr(model.backbone.norm_f, "forward", lambda hidden: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapter(**batch)
    monkeypatch.undo()
    assert all("forward" not in vars(module) for module in model.modules())
    assert model.config._attn_implementation == "eager"


def test_outputs_are_the_models_own_in_packed_order():
    for name in ("llama", "bart"):
        adapter = adapt(built(name), show=False)
        batch = adapter.collate(helpers.blocks_of())
        labels = batch.pop("labels")
        out = adapter(**batch, output_hidden_states=True)
        assert out.loss is None
        assert {tuple(hidden.shape[:2]) for hidden in out.hidden_states} == {tuple(batch["input_ids"].shape)}
        assert float(adapter(**batch, labels=labels).loss) > 0


def test_rows_with_padding_run_as_well_as_flat_ones():
    adapter = adapt(built("gpt_oss"), show=False)
    blocks = helpers.blocks_of([5, 9, 4, 12, 3], capacity=16)
    rows = cloison.forms.hf.rows(blocks)
    lengths = [block.segments.seq_lengths.tolist() for block in blocks]
    most = max(map(len, lengths))
    batch = rows | {"seq_lengths": torch.tensor([[*row, *[0] * (most - len(row))] for row in lengths])}
    assert int((batch["position_ids"] == 0).sum()) > len([n for row in lengths for n in row])  # there is padding
    flat = adapter.collate(blocks)
    torch.testing.assert_close(adapter(**batch).loss, adapter(**flat).loss, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- bad input


def test_what_adapt_itself_refuses():
    with pytest.raises(InputError, match="rungs are among a, b, c, d, e, f, g"):
        adapt(built("llama"), rungs="dz", show=False)
    with pytest.raises(InputError, match="takes a torch module"):
        adapt("llama", show=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model.to(torch.bfloat16), "its dtype went from float32 to bfloat16"),
        (lambda model: model.set_attn_implementation("sdpa"), "its attention went from 'eager' to 'sdpa'"),
        (lambda model: model.to("meta"), "it was moved from cpu to meta"),
        (lambda model: model.model.layers.append(copy.deepcopy(model.model.layers[0])), "wrapped or added"),
        (lambda model: model.compile(backend="eager"), "it was compiled"),
    ],
)
def test_a_model_that_changed_since_is_refused(change, said):
    model = built("llama")
    adapter = adapt(model, show=False)
    batch = adapter.collate(helpers.blocks_of())
    change(model)
    with pytest.raises(InputError, match="runs the model that was certified") as caught:
        adapter(**batch)
    assert said in caught.value.found


def test_a_peft_wrapper_put_on_afterwards_is_refused():
    peft = pytest.importorskip("peft")
    model = built("llama")
    adapter = adapt(model, show=False)
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.raises(InputError, match="wrapped or added"):
        adapter(**adapter.collate(helpers.blocks_of()))


def test_an_adapter_that_was_given_back_is_refused():
    adapter = adapt(built("llama"), show=False)
    adapter.restore()
    with pytest.raises(InputError, match="runs no more"):
        adapter(**adapter.collate(helpers.blocks_of()))


# ---------------------------------------------------------------------- certificate, cache, twin


def test_the_certificate_says_what_was_proven_and_what_was_not(forgetful):
    certificate = adapt(built("mamba"), show=False).certificate
    plain = json.loads(certificate.to_json())
    assert plain["set_up"]["model"] == "MambaForCausalLM"
    assert plain["set_up"]["dtype"] == "float32"
    assert set(plain["set_up"]["versions"]) >= {"torch", "transformers"}
    assert plain["rung"] == "e"
    assert any(entry["way"].startswith("b: position_ids") and entry["leak"] > 0.1 for entry in plain["tried"])
    assert plain["measured"]["equality"] <= plain["measured"]["floor"]
    assert plain["not_tested"]
    assert plain["verdicts"]["equality"].startswith("equality: within rounding")
    assert certificate.key == adapt(built("mamba"), show=False).certificate.key
    assert certificate.key != adapt(built("mamba", state_size=8), show=False).certificate.key


def test_a_choice_is_remembered_by_key_and_proven_again(tmp_path, forgetful):
    first = adapt(built("qwen3_next"), cache=tmp_path, show=False)
    assert len(first.certificate.tried) > 2
    forgetful()
    second = adapt(built("qwen3_next"), cache=tmp_path, show=False)
    assert second.way.name == first.way.name
    assert second.certificate.tried == ()
    # a wrong choice in the folder is tried, found out, and replaced
    path = next(tmp_path.glob("*.json"))
    stored = json.loads(path.read_text())
    stored["choice"] = {"rung": "b", "detail": "", "positions": [0, 1]}
    path.write_text(json.dumps(stored))
    forgetful()
    third = adapt(built("qwen3_next"), cache=tmp_path, show=False)
    assert third.way.name == first.way.name
    assert third.certificate.tried[0]["way"].startswith("b: position_ids")


@pytest.mark.parametrize("stored", ["{", "[]", '{"choice": {"rung": "e"}}', '{"choice": {"below": 1}}', '{"choice": 3}'])
def test_a_file_that_says_something_else_is_passed_over(tmp_path, forgetful, stored):
    model = built("llama")
    key = adapt(model, show=False).certificate.key
    (tmp_path / f"{key}.json").write_text(stored)
    forgetful()
    assert adapt(model, cache=tmp_path, show=False).way.rung == "d"


def test_scaling_that_looks_at_the_longest_position_rests_below_its_limit():
    """Batches whose samples stay below the limit run packed; only those that pass it are unpacked."""
    model = built("phi3+longrope")
    adapter = adapt(model, show=False)
    assert "where a sample passes the scaling limit; else d: own attention" in adapter.way.detail
    calls = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    below, above = helpers.blocks_of([7, 1, 11, 16, 5]), helpers.blocks_of([7, 1, 11, 29, 5])
    for blocks, shapes in ((below, [(1, 40)]), (above, [(1, 7), (1, 1), (1, 11), (1, 29), (1, 5)])):
        calls.clear()
        adapter(**adapter.collate(blocks))
        assert calls == shapes
    handle.remove()
    for blocks in (below, above, below):
        assert packed_against_alone(adapter, blocks) < 5e-5


def test_low_precision_is_chosen_in_float32_and_tried_in_its_own_dtype():
    model = built("mixtral").to(torch.bfloat16)
    certificate = adapt(model, show=False).certificate
    assert certificate.twin == "chosen on a float32 copy"
    assert certificate.set_up["dtype"] == "bfloat16"
    assert certificate.measured["floor"] < 1e-3  # float32's: bfloat16's own would let a wrong window pass
    assert "0 of" in certificate.verdicts["isolation on the model itself"]
    assert next(model.parameters()).dtype == torch.bfloat16


def test_long_windows_are_tried_on_a_twin_and_hold_on_the_model():
    for name, more in (
        ("gemma3_text", {"sliding_window": 4096, "max_position_embeddings": 8192}),
        ("mistral", {"sliding_window": 2048}),
    ):
        model = built(name, **more)
        adapter = adapt(model, show=False)
        assert "twin of" in adapter.certificate.twin
        assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5
        long = helpers.blocks_of([2300, 40, 2100], capacity=8192)
        assert packed_against_alone(adapter, long) < 2e-4


# ---------------------------------------------------------------------- models from outside transformers


@pytest.mark.parametrize(
    ("mixer", "rung", "detail"),
    [
        (helpers.SdpaMixer, "d", "in place of torch's"),
        (helpers.ConvMixer, "e", "padded"),
        (helpers.LengthMixer, "e", "equal lengths"),
    ],
)
def test_foreign_models(mixer, rung, detail):
    adapter = adapt(helpers.Foreign(mixer), show=False)
    assert adapter.way.rung == rung
    assert detail in adapter.way.detail
    out = adapter(**adapter.collate(helpers.blocks_of([5, 9, 4, 12, 3], vocabulary=64)))
    assert out.logits.shape[:2] == (1, 33)


def test_a_foreign_model_with_statistics_over_time_looks_ahead():
    with pytest.raises(NotExactError, match="they see their targets"):
        adapt(helpers.Foreign(helpers.TimeNormMixer), show=False)


def test_compiled_models_get_fixed_shapes_only():
    model = torch.compile(built("llama", attn="sdpa"), backend="eager")
    adapter = adapt(model, show=False)
    assert adapter.way.rung in "bc"
    assert adapter.way.fixed_shapes
    foreign = torch.compile(helpers.Foreign(helpers.SdpaMixer), backend="eager")
    with pytest.raises(NotExactError):
        adapt(foreign, show=False)


# ---------------------------------------------------------------------- reported faults


def test_case_XATT_01_other_samples_do_not_move_and_losses_add_up(cases):
    case = cases["XATT-01"]
    samples = case["input"]["samples"]
    adapter = adapt(built("llama"), show=False)
    packed = cloison.pack_samples(samples, capacity=5, order="input")
    changed = cloison.pack_samples([[95, 94, 93], samples[1]], capacity=5, order="input")
    with torch.no_grad():
        first, second = (adapter(**adapter.collate(blocks)) for blocks in (packed, changed))
        alone_losses = [float(adapter(**adapter.collate(cloison.pack_samples([s], capacity=5))).loss) for s in samples]
    assert torch.equal(first.logits[0, 3:], second.logits[0, 3:])
    targets = [len(sample) - 1 for sample in samples]
    total = sum(loss * count for loss, count in zip(alone_losses, targets, strict=True))
    assert float(first.loss) * sum(targets) == pytest.approx(total, rel=1e-5)


def test_case_XATT_02_an_attention_that_knows_only_causal_is_not_used_in_silence(cases):
    assert "raise naming the backend" in cases["XATT-02"]["expectation"]["outcomes_allowed"]
    with pytest.raises(NotExactError, match="position_ids"):
        adapt(built("gpt_oss"), rungs="b", show=False)
    assert adapt(built("gpt_oss"), rungs="bc", show=False).way.rung == "c"


def test_case_POS_05_scaling_looks_at_the_sample_not_at_the_pack(cases):
    lengths = cases["POS-05"]["input"]["lengths"]
    window = cases["POS-05"]["input"]["original_window"]
    assert sum(lengths) > window > max(lengths)
    model_type, changes = VARIANTS["llama+dynamic"]
    model = tiny_model(model_type, **{**changes, "max_position_embeddings": window})[0]
    adapter = adapt(model, show=False)
    assert packed_against_alone(adapter, helpers.blocks_of(lengths, capacity=16)) < 5e-5
    rotary = model.model.rotary_emb
    assert torch.equal(rotary.inv_freq, rotary.original_inv_freq)  # never scaled


def test_case_POS_04_a_pack_longer_than_the_position_table_is_legal(cases):
    case = cases["POS-04"]
    lengths, table = case["input"]["lengths"], case["input"]["max_position"]
    assert sum(lengths) > table
    model = tiny_model("gpt2", n_positions=table)[0]
    adapter = adapt(model, helpers.blocks_of([7, 1, 4, 8, 2, 5], capacity=16), show=False)
    blocks = helpers.blocks_of(lengths, capacity=16)
    assert int(adapter.collate(blocks)["position_ids"].max()) == case["expectation"]["max_used_position"]
    assert packed_against_alone(adapter, blocks) < 5e-5


def test_case_POS_07_two_copies_give_the_same(cases):
    samples = cases["POS-07"]["input"]["samples"]
    adapter = adapt(built("llama"), show=False)
    with torch.no_grad():
        logits = adapter(**adapter.collate(cloison.pack_samples(samples, capacity=8, order="input"))).logits[0]
    torch.testing.assert_close(logits[3:], logits[:3], rtol=0, atol=1e-5 * float(logits.std()))


def test_segments_shorter_than_the_filter():
    adapter = adapt(built("mamba"), show=False)
    assert packed_against_alone(adapter, helpers.blocks_of([1, 2, 1, 1, 3], capacity=16)) < 5e-5


def test_case_XATT_12_copies_get_no_help_from_earlier_copies(cases):
    doc = cases["XATT-12"]["input"]["doc"]
    copies = 1 + cases["XATT-12"]["input"]["copies_after_first_in_pack"]
    adapter = adapt(built("gpt_oss"), show=False)
    blocks = cloison.pack_samples([doc] * copies, capacity=len(doc) * copies, order="input")
    with torch.no_grad():
        logits = adapter(**adapter.collate(blocks)).logits.reshape(copies, len(doc), -1)
    torch.testing.assert_close(logits[1:], logits[:1].expand(copies - 1, -1, -1), rtol=0, atol=1e-5 * float(logits.std()))
