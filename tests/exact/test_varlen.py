"""Rung a: lengths to kernels. The kernels themselves need CUDA: references stand in below transformers' own code.

flash attention: transformers' integration with its masks and its handling of arguments, only ``flash_attn_varlen_func`` and
``flash_attn_func`` replaced; and an attention of that contract under a name of its own in the attention interface. Mixers:
causal-conv1d and mamba with ``seq_idx``, flash-linear-attention with ``cu_seqlens`` of one row.
"""

from __future__ import annotations

import importlib
import itertools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import transformers.modeling_flash_attention_utils as flash_utils  # noqa: E402
from transformers.integrations import flash_attention  # noqa: E402

from cloison.exact import adapt, choices  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from tests.exact import helpers, kernels_reference  # noqa: E402
from tests.exact.test_adapt import packed_against_alone  # noqa: E402


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """Choices that were made without these kernels are not remembered."""
    monkeypatch.setattr(choices, "_CHOICES", {})


@pytest.fixture
def flash(monkeypatch):
    """transformers' flash attention with reference kernels; what each varlen call got."""
    calls = []

    def varlen(q, k, v, **arguments):
        calls.append(arguments)
        return kernels_reference.flash_attn_varlen_func(q, k, v, **arguments)

    kernels = (kernels_reference.flash_attn_func, varlen, None, None, None)
    # what the argument handling reads of the real signature: which arguments there are
    process = flash_utils._lazy_define_process_function(kernels_reference.flash_attn_varlen_func)
    monkeypatch.setattr(flash_utils, "lazy_import_flash_attention", lambda *_, **__: (kernels, (process, None)))
    return calls


def flash_model(name, **changes):
    model = tiny_model(name, attn="eager", **changes)[0]
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
            module.config._attn_implementation_internal = "flash_attention_2"
    return model


@pytest.mark.parametrize("name", ["llama", "mistral", "mixtral"])
def test_lengths_reach_flash_attention_through_transformers(flash, name):
    model = flash_model(name).train()
    adapter = adapt(model, show=False)
    assert adapter.way.name == "a: lengths to a varlen kernel (flash_attention_2, positions from 0)"
    blocks = helpers.blocks_of([7, 1, 11, 2])
    flash.clear()
    adapter(**adapter.collate(blocks))
    assert [call["cu_seqlens_q"].tolist() for call in flash] == [[0, 7, 8, 19, 21]] * model.config.num_hidden_layers
    assert {call["max_seqlen_q"] for call in flash} == {11}
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5
    _, wanted = helpers.alone_gradients(model, blocks)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)


def test_rows_with_padding_are_covered(flash):
    """What no segment covers a kernel leaves unwritten: the padding tails are segments of their own."""
    adapter = adapt(flash_model("llama"), show=False)
    rows = {"input_ids": torch.ones(2, 6, dtype=torch.int64), "seq_lengths": torch.tensor([[2, 3], [4, 0]])}
    rows["attention_mask"] = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])
    flash.clear()
    adapter(**rows)
    assert flash[0]["cu_seqlens_q"].tolist() == [0, 2, 5, 6, 10, 12]


def test_a_kernel_that_drops_the_lengths_is_not_used(flash, monkeypatch):
    """An integration that runs the plain kernel on whole rows: rung a leaks, and our own attention is next."""
    whole = lambda module, q, k, v, *_, scaling=None, **__: (  # noqa: E731
        kernels_reference.flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), softmax_scale=scaling, causal=True), None
    )  # fmt: skip
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "flash_attention_2", whole)
    adapter = adapt(flash_model("llama"), show=False)
    assert adapter.certificate.tried[0]["way"].startswith("a: lengths to a varlen kernel")
    assert adapter.certificate.tried[0]["leak"] > 0.1
    assert adapter.way.rung == "d"


def test_a_varlen_attention_under_a_name_of_its_own_gets_the_same_arguments():
    """As a user registers one: it must receive what transformers' integration passes on."""
    seen = []

    def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, **kwargs):
        lengths = {name: kwargs.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")}
        seen.append(lengths)
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
        if lengths["cu_seq_lens_q"] is None:
            return kernels_reference.flash_attn_func(q, k, v, softmax_scale=scaling, causal=True, window_size=window), None
        rows = q.shape[:2]
        flat = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
        out = kernels_reference.flash_attn_varlen_func(
            *flat, *(lengths[name] for name in lengths), softmax_scale=scaling, causal=True, window_size=window
        )
        return out.reshape(*rows, *out.shape[1:]), None

    transformers.AttentionInterface.register("varlen_reference", attention)
    transformers.AttentionMaskInterface.register("varlen_reference", lambda *_, **__: None)
    model = tiny_model("mistral")[0]
    model.set_attn_implementation("varlen_reference")
    adapter = adapt(model, show=False)
    assert adapter.way.name == "a: lengths to a varlen kernel (varlen_reference, positions from 0)"
    seen.clear()
    adapter(**adapter.collate(helpers.blocks_of([5, 2, 9])))
    assert [call["cu_seq_lens_k"].tolist() for call in seen] == [[0, 5, 7, 16]] * model.config.num_hidden_layers
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5


def test_the_real_integration_passes_what_the_reference_takes():
    assert set(flash_utils._lazy_define_process_function(kernels_reference.flash_attn_varlen_func).keywords["supports_mapping"])
    assert flash_attention.flash_attention_forward is transformers.AttentionInterface()["flash_attention_2"]


# ---------------------------------------------------------------------- mixers


def _runs(seq_idx):
    """(first, last) of each run of equal entries of one row."""
    edges = (torch.diff(seq_idx) != 0).nonzero().flatten() + 1
    bounds = [0, *edges.tolist(), seq_idx.numel()]
    return list(itertools.pairwise(bounds))


def conv_reference(own):
    def run(hidden_states, weight, bias=None, activation=None, seq_idx=None, **_):
        if seq_idx is None:
            return own(hidden_states, weight, bias, activation=activation)
        assert seq_idx.dtype == torch.int32 and tuple(seq_idx.shape) == (hidden_states.shape[0], hidden_states.shape[2])
        rows = [
            torch.cat([own(row[None, :, a:b], weight, bias, activation=activation) for a, b in _runs(ids)], 2)
            for row, ids in zip(hidden_states, seq_idx, strict=True)
        ]
        return torch.cat(rows)

    return run


def scan_reference(own):
    def run(hidden_states, dt, A, B, C, chunk_size, seq_idx=None, return_final_states=False, initial_states=None, **options):
        assert initial_states is None and not return_final_states
        ids = torch.zeros(hidden_states.shape[:2]) if seq_idx is None else seq_idx
        rows = []
        for row in range(hidden_states.shape[0]):
            parts = [
                own(hidden_states[row, None, a:b], dt[row, None, a:b], A, B[row, None, a:b], C[row, None, a:b], chunk_size,
                    **{k: v for k, v in options.items() if k in ("D", "dt_bias", "dt_softplus", "dt_limit")})
                for a, b in _runs(ids[row])
            ]  # fmt: skip
            rows.append(torch.cat([part[0] if isinstance(part, tuple) else part for part in parts], 1))
        return torch.cat(rows)

    return run


def delta_reference(own):
    def run(query, key, value, g, beta, cu_seqlens=None, **options):
        options = {k: v for k, v in options.items() if k in ("output_final_state", "use_qk_l2norm_in_kernel", "initial_state")}
        if cu_seqlens is None:
            return own(query, key, value, g=g, beta=beta, **options)
        assert query.shape[0] == 1, "flash-linear-attention: one row, where cu_seqlens are given"
        assert int(cu_seqlens[-1]) == query.shape[1]
        bounds = cu_seqlens.tolist()
        parts = [
            own(*(t[:, a:b] for t in (query, key, value)), g=g[:, a:b], beta=beta[:, a:b], **options)[0]
            for a, b in itertools.pairwise(bounds)
        ]
        return torch.cat(parts, 1), None

    return run


@pytest.fixture
def with_kernels(monkeypatch):
    def patch(name):
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        references = {
            "causal_conv1d_fn": conv_reference,
            "mamba2_chunk_scan": scan_reference,
            "torch_chunk_gated_delta_rule": delta_reference,
        }
        for function, reference in references.items():
            if hasattr(module, function):
                monkeypatch.setattr(module, function, reference(getattr(module, function).__wrapped__))
        if hasattr(module, "mamba2_split_conv1d_scan_combined"):
            monkeypatch.setattr(module, "mamba2_split_conv1d_scan_combined", lambda *_, **__: None)
        return tiny_model(name)[0]

    return patch


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bamba", "told by seq_idx; own attention"),
        ("granitemoehybrid", "told by seq_idx; own attention"),
        ("qwen3_next", "told by seq_idx and cu_seq_lens; own attention"),
    ],
)
def test_mixers_are_told_where_their_kernels_heed_it(with_kernels, name, told):
    model = with_kernels(name).train()
    adapter = adapt(model, show=False)
    assert adapter.way.rung == "a"
    assert adapter.way.detail.startswith(told)
    assert packed_against_alone(adapter, helpers.blocks_of()) < 5e-5
    blocks = helpers.blocks_of()
    _, wanted = helpers.alone_gradients(model, blocks)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**adapter.collate(blocks)).loss), wanted)


def test_rows_become_one_where_a_kernel_takes_one(with_kernels):
    adapter = adapt(with_kernels("qwen3_next"), show=False)
    ids = torch.arange(4, 16).reshape(2, 6)
    rows = {"input_ids": ids, "seq_lengths": torch.tensor([[2, 4], [5, 0]]), "attention_mask": ids.ne(15).long()}
    out = adapter(**rows, output_hidden_states=True)
    flat = adapter(input_ids=ids.reshape(1, 12)[:, :11], seq_lengths=torch.tensor([[2, 4, 5]]))
    assert out.logits.shape[:2] == (2, 6)
    assert out.hidden_states[0].shape[:2] == (2, 6)
    torch.testing.assert_close(out.logits.reshape(12, -1)[:11], flat.logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mamba2", "bamba"])
def test_without_the_kernels_or_the_keywords_mixers_are_wrapped(with_kernels, name):
    """mamba2 has kernels here, and its model drops what it is told on the way to them (transformers 5.24)."""
    adapter = adapt(with_kernels(name) if name == "mamba2" else tiny_model(name)[0], show=False)
    assert adapter.way.rung == "e"
    assert not any(entry["way"].startswith("a:") for entry in adapter.certificate.tried)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bamba", "qwen3_next"])
def test_on_a_gpu_the_real_kernels_are_told(name):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for package in ("causal_conv1d", "mamba_ssm" if name == "bamba" else "fla"):
        pytest.importorskip(package)
    model = tiny_model(name)[0].to("cuda", torch.bfloat16)
    assert adapt(model, show=False).way.rung == "a"


@pytest.mark.gpu
def test_on_a_gpu_flash_attention_gets_the_lengths():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    pytest.importorskip("flash_attn")
    model = tiny_model("llama", attn="flash_attention_2")[0].to("cuda", torch.bfloat16)
    assert adapt(model, show=False).way.rung == "a"
