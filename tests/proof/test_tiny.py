"""Tiny models: every type builds or says why not, depends on its content, and looks at nothing that comes later."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.errors import InputError  # noqa: E402
from cloison.proof.tiny import causal_types, tiny_config, tiny_model  # noqa: E402
from cloison.proof.tiny_configs import NOT_BUILT, VARIANTS  # noqa: E402

NOT_CAUSAL = {"cpmant", "prophetnet"}
"""Types whose outputs depend on later tokens by design: a prompt prefix, and n-gram streams."""


def _logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def test_every_causal_type_builds_reads_its_content_and_is_causal():
    entries = {name: (name, {}) for name, reason in causal_types().items() if not reason} | dict(VARIANTS)
    ids = torch.randint(4, 96, (1, 13), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[0, 2] = (other[0, 2] + 1) % 90 + 4
    faults = []
    for name, (model_type, changes) in entries.items():
        model, _ = tiny_model(model_type, **changes)
        first, second = _logits(model, ids), _logits(model, other)
        if first.shape[:2] != ids.shape or not torch.isfinite(first).all():
            faults.append((name, "shape or finite"))
            continue
        moved = (first - second).abs().amax(-1)[0] / first.std()
        if moved[3:].max() < 0.05:
            faults.append((name, f"later tokens hardly depend on token 2: {moved[3:].max():.3g}"))
        if (moved[:2].max() > 1e-5) != (name in NOT_CAUSAL):
            faults.append((name, f"earlier tokens moved by {moved[:2].max():.3g}"))
    assert faults == []
    assert len(entries) - len(VARIANTS) >= 190


def test_each_type_that_is_not_built_has_a_reason_and_is_a_type():
    types = causal_types()
    assert {name for name, reason in types.items() if reason} == set(NOT_BUILT) & set(types)
    assert all(len(reason) > 20 for reason in NOT_BUILT.values())


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_random_state():
    state = torch.get_rng_state()
    first, _ = tiny_model("llama", seed=3)
    second, _ = tiny_model("llama", seed=3)
    third, _ = tiny_model("llama", seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(third.parameters()))


def test_one_layer_of_every_kind_and_windows_shorter_than_samples():
    config = tiny_config("gpt_oss")
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.sliding_window == 4
    assert tiny_config("bailing_hybrid").mlp_layer_types == ["dense", "sparse", "sparse"]
    assert tiny_config("qwen3_5").text_config.layer_types == ["linear_attention", "full_attention"]


def test_changes_lie_over_the_tiny_values_and_merge_into_nested_ones():
    assert tiny_config("llama", hidden_size=64).hidden_size == 64
    config = tiny_config("gemma3", text_config={"sliding_window": 3})
    assert (config.text_config.sliding_window, config.text_config.hidden_size) == (3, 32)


def test_attention_is_far_from_uniform():
    model, _ = tiny_model("llama")
    ids = torch.randint(4, 96, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        weights = model(input_ids=ids, output_attentions=True).attentions[0][0, :, -1]
    assert (weights.max(-1).values > 2.5 / 12).float().mean() >= 0.5


def test_an_unknown_type_is_named():
    with pytest.raises(InputError, match="'lama' must be a model type"):
        tiny_config("lama")
