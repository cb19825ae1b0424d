"""Kernels of our own attention: each gives what SDPA per segment gives, one that does not is found out, adapt keeps the others.

Varlen kernels run on CUDA only: here slow references stand in that consume exactly their arguments (`kernels_reference`); the
tests marked ``gpu`` run the real ones. flex runs on the host, forward only.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.errors import InputError  # noqa: E402
from cloison.exact import adapt, kernels  # noqa: E402
from cloison.exact.faster import Asked, asked_of, missed_by  # noqa: E402
from cloison.exact.kernels import KERNELS  # noqa: E402
from cloison.exact.per_segment import Kind  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from tests.exact import helpers, kernels_reference  # noqa: E402
from tests.exact.test_adapt import packed_against_alone  # noqa: E402

PLAIN = Kind(True, 0, None, 0.0, None, None, None)
KINDS = {
    "plain": PLAIN,
    "windowed": replace(PLAIN, window=9),
    "both ways": replace(PLAIN, causal=False),
    "window both ways": replace(PLAIN, causal=False, window=4),
    "scaled": replace(PLAIN, scaling=0.21),
    "soft cap": replace(PLAIN, softcap=3.0),
    "sinks": replace(PLAIN, sinks=torch.zeros(4)),
}
KNOWN = {
    "flash": set(KINDS) - {"sinks"},
    "varlen_attn": set(KINDS) - {"sinks", "soft cap"},
    "flex": set(KINDS),
}


def asked(kind, dtype=torch.float32, chunk=0, value_size=16, device="cpu"):
    return Asked(kind, chunk, 4, 2, 16, value_size, (1.5, 1.0), torch.empty(0, dtype=dtype, device=device), False)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch, request):
    """References for what does not run here, and flex uncompiled."""
    if "gpu" in request.keywords:
        return
    from torch.nn.attention import varlen
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setitem(sys.modules, "flash_attn", kernels_reference.flash_attn_module())
    monkeypatch.setattr(varlen, "varlen_attn", kernels_reference.varlen_attn)
    monkeypatch.setattr(kernels, "compiled_flex", lambda: flex_attention)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kernel", KNOWN)
def test_a_kernel_gives_what_sdpa_gives_or_says_what_it_does_not_know(kernel, name, dtype, chunk):
    said = missed_by(kernel, asked(KINDS[name], dtype, chunk), gradients=kernel != "flex")
    assert said == "" if name in KNOWN[kernel] else "The model asks for" in said


@pytest.mark.parametrize("kernel", ["flash", "varlen_attn"])
def test_values_of_another_size_are_filled_up_and_cut(kernel):
    assert missed_by(kernel, asked(PLAIN, value_size=12)) == ""


def test_no_kernel_here_drops_what_it_cannot_do():
    for kernel in KNOWN:
        assert "position bias" in missed_by(kernel, replace(asked(PLAIN), biased=True))
    dropped = replace(PLAIN, dropout=0.1)
    for kernel in ("varlen_attn", "flex"):
        assert "dropout" in missed_by(kernel, asked(dropped))
    assert missed_by("flash", asked(dropped)) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", ["window off by one", "no boundaries", "backward"])
def test_a_wrong_kernel_is_found_out_in_any_dtype(monkeypatch, wrong, dtype):
    """A window that is one token too long moves a whole model by less than bfloat16 does; one attention shows it."""
    right = kernels_reference.varlen_attn

    def kernel(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, **rest):
        if wrong == "window off by one":
            window_size = (window_size[0] + 1, window_size[1])
        if wrong == "no boundaries":
            cu_seq_q = cu_seq_k = torch.tensor([0, query.shape[0]], dtype=torch.int32)
            max_q = max_k = query.shape[0]
        if wrong == "backward":
            key = key * 0.9 + key.detach() * 0.1
        return right(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window_size, **rest)

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", kernel)
    said = missed_by("varlen_attn", asked(KINDS["windowed"], dtype))
    assert ("gradients of keys" if wrong == "backward" else "outputs") in said


def test_what_a_model_asks_for_is_seen_at_its_attention():
    model = tiny_model("gemma2", attn="eager")[0]
    found = asked_of(model, adapt(model, show=False).way)
    assert {one.kind.softcap is not None for one in found} == {True}
    assert len({one.kind.window for one in found}) == 2, "a windowed kind of layer, and one that is not"
    sinks = asked_of((model := tiny_model("gpt_oss")[0]), adapt(model, show=False).way)
    assert all(one.kind.sinks is not None for one in sinks)


@pytest.mark.parametrize(
    ("name", "kept"), [("llama", "flash"), ("mistral", "flash"), ("gpt_oss", "sdpa"), ("qwen3_next", "flash")]
)
def test_adapt_keeps_the_first_kernel_that_is_exact(name, kept):
    model = tiny_model(name)[0].train()
    adapter = adapt(model, kernels=("flash", "varlen_attn"), show=False)
    assert adapter.way.kernel == kept
    blocks = helpers.blocks_of()
    assert packed_against_alone(adapter, blocks) < 5e-5
    _, wanted = helpers.alone_gradients(model, blocks)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)
    if kept == "sdpa":
        assert all("attention sinks" in entry["error"] for entry in adapter.certificate.tried[-2:])
    else:
        assert f"{kept} kernel" in adapter.way.name
        assert f"isolation with the kernel {kept}" in adapter.certificate.verdicts
    assert adapt(model, show=False).way.kernel == "sdpa", "the host has no other by itself"


def test_a_choice_with_a_kernel_is_remembered(tmp_path):
    model = tiny_model("llama")[0]
    first = adapt(model, kernels=("varlen_attn",), cache=tmp_path, show=False)
    assert first.way.kernel == "varlen_attn"
    again = adapt(model, kernels=("varlen_attn",), cache=tmp_path, show=False)
    assert (again.way.name, again.certificate.tried) == (first.way.name, ())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_flex_serves_a_model_that_is_not_trained_on_the_host(name):
    model = tiny_model(name)[0]
    refused = adapt(model, kernels=("flex",), show=False)
    assert refused.way.kernel == "sdpa"
    assert "does not support backward on CPU" in refused.certificate.tried[-1]["error"]
    adapter = adapt(model.requires_grad_(False), kernels=("flex",), show=False)
    assert adapter.way.kernel == "flex"
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_layers_of_a_call_share_one_block_mask(monkeypatch):
    made = []
    own = kernels.block_mask
    monkeypatch.setattr(kernels, "block_mask", lambda *args, **options: made.append(1) or own(*args, **options))
    model = tiny_model("llama")[0].requires_grad_(False)
    assert len(model.model.layers) > 1
    adapter = adapt(model, kernels=("flex",), show=False)
    made.clear()
    adapter(**adapter.collate(helpers.blocks_of()))
    assert len(made) == 1


def test_compiled_flex_takes_rows_of_any_length_with_few_compilations(monkeypatch):
    """Flat rows differ in length from step to step: past its limit of graphs dynamo would run flex uncompiled."""
    import torch._dynamo
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    graphs = []
    monkeypatch.setattr(kernels, "compiled_flex", lambda: compiled)
    compiled = torch.compile(flex_attention, backend=lambda graph, inputs: graphs.append(1) or graph.forward)
    for tokens in (300, 511, 1024, 777, 1300):
        query, key, value = (torch.randn(1, heads, tokens, 16) for heads in (4, 2, 2))
        pieces = [7, tokens - 107, 100]
        for kind in (PLAIN, replace(PLAIN, window=30)):
            with torch.no_grad():
                out = KERNELS["flex"](query, key, value, pieces, kind, None)
            torch.testing.assert_close(out, KERNELS["sdpa"](query, key, value, pieces, kind, None), rtol=0, atol=5e-6)
    assert len(graphs) <= 3


def test_unknown_kernels_are_refused():
    with pytest.raises(InputError, match="kernels are among sdpa, flash, varlen_attn, flex"):
        adapt(tiny_model("llama")[0], kernels=("triton",), show=False)
    with pytest.raises(InputError, match="kernels are among"):
        adapt(tiny_model("llama")[0], kernels="flex", show=False)


def test_a_foreign_model_runs_by_a_kernel_too():
    adapter = adapt(helpers.Foreign(helpers.SdpaMixer), kernels=("varlen_attn",), show=False)
    assert adapter.way.name == "d: own attention (in place of torch's, varlen_attn kernel, no positions)"
    out = adapter(**adapter.collate(helpers.blocks_of([5, 9, 4, 12, 3], vocabulary=64)))
    out.loss.backward()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "detail"), [("mistral", "the window")])
def test_a_model_on_flex_gets_block_masks(monkeypatch, name, detail):
    """Dense masks grow with the square; a compiled model has nothing else where flex gets no BlockMask."""
    import transformers.integrations.flex_attention as integration
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils

    def plain(*args, training, **rest):
        return flex_attention(*args, **rest)

    def uncompiled(*args, _compile=False, **rest):
        return create_block_mask(*args, **rest)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", plain)
    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled)
    model = tiny_model(name, attn="flex_attention")[0].requires_grad_(False)
    adapter = adapt(model, rungs="c", show=False)
    assert adapter.way.detail == f"{detail}, in blocks, positions from 0"
    assert adapter.way.fixed_shapes
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5


# ---------------------------------------------------------------------- the real kernels


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kernel", KNOWN)
def test_on_a_gpu_the_real_kernels_give_what_sdpa_gives(kernel, name):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if kernel == "flash":
        pytest.importorskip("flash_attn")
    kind = KINDS[name] if name != "sinks" else replace(PLAIN, sinks=torch.zeros(4, device="cuda"))
    one = replace(asked(kind, torch.bfloat16, device="cuda"), size=64, value_size=64)
    said = missed_by(kernel, one)
    assert said == "" if name in KNOWN[kernel] else "The model asks for" in said


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "gemma2", "mixtral"])
def test_on_a_gpu_adapt_keeps_a_kernel_that_is_faster(name):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = tiny_model(name, attn="sdpa" if name in ("llama", "mistral", "mixtral") else "eager")[0]
    model = model.to("cuda", torch.bfloat16).train()
    adapter = adapt(model, show=False)
    assert adapter.way.rung == "d"
    assert adapter.way.kernel != "sdpa", adapter.certificate.tried
    adapter(**{k: v.cuda() if k in ("input_ids", "labels") else v for k, v in adapter.collate(helpers.blocks_of()).items()})
