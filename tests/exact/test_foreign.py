"""Models of one's own, from outside transformers: a small GPT that calls SDPA, names its attention, or takes lengths."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402

from cloison.errors import InputError, NotExactError  # noqa: E402
from cloison.exact import adapt, choices  # noqa: E402
from tests.exact import helpers, kernels_reference  # noqa: E402

SIZE, HEADS, LAYERS, VOCABULARY, LONGEST = 32, 4, 2, 96, 128


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    monkeypatch.setattr(choices, "_CHOICES", {})


def by_sdpa(q, k, v, **_):
    return scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)


def by_hand(q, k, v, **_):
    """As nanoGPT does it where torch has no SDPA: no function to stand in for."""
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
    return scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf).softmax(-1) @ v


def by_varlen(q, k, v, cu_seqlens=None, max_seqlen=None):
    """A varlen kernel's contract: one row, offsets of int32, the longest length on the host."""
    if cu_seqlens is None:
        return by_sdpa(q, k, v)
    assert q.shape[0] == 1, "varlen models take one row"
    flat = (t[0].transpose(0, 1) for t in (q, k, v))
    out = kernels_reference.flash_attn_varlen_func(*flat, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)
    return out.transpose(0, 1)[None]


class Attention(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend, self.qkv, self.out = attend, nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, hidden, **lengths):
        rows, width, _ = hidden.shape
        q, k, v = (t.view(rows, width, HEADS, -1).transpose(1, 2) for t in self.qkv(hidden).mul(2.0).split(SIZE, dim=2))
        return self.out(self.attend(q, k, v, **lengths).transpose(1, 2).reshape(rows, width, SIZE))


class Layer(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.first, self.attn, self.second = nn.LayerNorm(SIZE), Attention(attend), nn.LayerNorm(SIZE)
        self.mlp = nn.Sequential(nn.Linear(SIZE, 4 * SIZE), nn.GELU(), nn.Linear(4 * SIZE, SIZE))

    def forward(self, hidden, **lengths):
        hidden = hidden + self.attn(self.first(hidden), **lengths)
        return hidden + self.mlp(self.second(hidden))


class Gpt(nn.Module):
    """A GPT in the style of nanoGPT, with positions to pass."""

    def __init__(self, attend=by_sdpa):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(LONGEST, SIZE)
        self.h = nn.ModuleList(Layer(attend) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)

    def run(self, ids, position_ids=None, **lengths):
        places = torch.arange(ids.shape[1])[None] if position_ids is None else position_ids
        hidden = self.tokens(ids) + self.places(places)
        for layer in self.h:
            hidden = layer(hidden, **lengths)
        return self.head(self.norm(hidden))

    def forward(self, input_ids, position_ids=None):
        return self.run(input_ids, position_ids)


class VarlenGpt(Gpt):
    def forward(self, input_ids, position_ids=None, cu_seqlens=None, max_seqlen=None):
        return self.run(input_ids, position_ids, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)


class DroppingGpt(Gpt):
    """Takes the lengths, and forgets them."""

    def forward(self, input_ids, position_ids=None, cu_seqlens=None, max_seqlen=None):
        return self.run(input_ids, position_ids)


class NanoGpt(Gpt):
    """nanoGPT's own signature: other names, absolute positions, a loss, and the last logits only where no targets are given."""

    def forward(self, idx, targets=None):
        logits = self.run(idx)
        if targets is None:
            return logits[:, [-1]], None
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Wrapped(nn.Module):
    """What adapt asks for around it."""

    def __init__(self, gpt):
        super().__init__()
        self.gpt = gpt

    def forward(self, input_ids):
        return self.gpt(input_ids, targets=input_ids)[0]


def assert_exact(adapter, rung):
    """Loss and gradients of packed blocks are those of the samples alone."""
    assert adapter.way.rung == rung, adapter.way.name
    model = adapter.model
    blocks = helpers.blocks_of()

    def alone(input_ids, **_):
        return SimpleNamespace(logits=model(input_ids=input_ids))

    alone.named_parameters = model.named_parameters
    wanted_loss, wanted = helpers.alone_gradients(alone, blocks)
    loss = adapter(**adapter.collate(blocks)).loss
    assert float(loss.detach()) == pytest.approx(wanted_loss, rel=1e-5)
    helpers.assert_same_gradients(helpers.gradients(model, loss), wanted)


def test_one_that_calls_sdpa():
    assert_exact(adapt(Gpt(), show=False), "d")


def test_one_that_takes_varlen_arguments():
    adapter = adapt(VarlenGpt(by_varlen), show=False)
    assert adapter.way.name == "a: lengths to a varlen kernel (cu_seqlens and max_seqlen, positions from 0)"
    assert_exact(adapter, "a")


def test_one_that_takes_varlen_arguments_and_drops_them_gets_none():
    adapter = adapt(DroppingGpt(), show=False)
    assert not any(entry["way"].startswith("a:") for entry in adapter.certificate.tried)
    assert_exact(adapter, "d")


@pytest.mark.parametrize("mixers", [None, ["h.*.attn"], ["h.0.attn", "h.1.attn"]])
def test_one_whose_attention_is_found_or_named(mixers):
    adapter = adapt(Gpt(by_hand), mixers=mixers, show=False)
    assert "h.0.attn" in adapter.way.detail
    assert_exact(adapter, "e")


def test_a_name_that_leaves_a_mixer_out_is_not_believed():
    with pytest.raises(NotExactError, match=r"h\.0\.attn, padded"):
        adapt(Gpt(by_hand), mixers=["h.0.attn"], rungs="abcde", show=False)


@pytest.mark.parametrize("mixers", ["h.*.attn", ["blocks.*"], []])
def test_names_that_no_module_has_are_refused(mixers):
    with pytest.raises(InputError, match="mixers are names of modules"):
        adapt(Gpt(by_hand), mixers=mixers, show=False)


def test_a_signature_of_its_own_is_refused_with_what_to_wrap():
    with pytest.raises(InputError) as caught:
        adapt(NanoGpt(), show=False)
    assert caught.value.found == "The forward of NanoGpt takes idx, targets."
    assert "Wrap it in a module" in caught.value.remedy

    class Short(Wrapped):
        def forward(self, input_ids):
            return self.gpt(input_ids)

    with pytest.raises(InputError, match="one row a token") as caught:
        adapt(Short(NanoGpt()), show=False)
    assert "it returned [1, 1, 96]" in caught.value.found
    assert_exact(adapt(Wrapped(NanoGpt()), show=False), "f")  # absolute positions leave only rows


def test_what_cannot_be_made_exact_is_refused():
    class Centred(Gpt):
        """Subtracts the mean over the row: what a sample gets depends on all of them, and on its own future."""

        def forward(self, input_ids, position_ids=None):
            logits = self.run(input_ids, position_ids)
            return logits - logits.mean(1, keepdim=True)

    with pytest.raises(NotExactError, match="they see their targets"):
        adapt(Centred(), show=False)
    assert adapt(Centred(), bidirectional=True, show=False).way.detail == "equal lengths together"
    with pytest.raises(NotExactError, match="allow more rungs"):
        adapt(Centred(), bidirectional=True, rungs="abcde", show=False)
    with pytest.raises(InputError, match="has none"):
        adapt(nn.Identity(), show=False)
    compiled = torch.compile(Gpt(), backend="eager")
    with pytest.raises(NotExactError):  # what stands in for SDPA is not asked by a compiled graph
        adapt(compiled, rungs="d", show=False)
