"""Shared by the tests of adapters: gradients of samples alone, and small models from outside transformers."""

from __future__ import annotations

import numpy as np
import torch

from cloison.proof.blocks import alone, block_of
from cloison.segments import IGNORE

LENGTHS = [7, 1, 11, 2, 5, 29, 3, 13]


def blocks_of(lengths=LENGTHS, capacity=64, seed=0, vocabulary=96):
    """Blocks of random tokens, filled in order."""
    rng = np.random.default_rng(seed)
    rows = [[]]
    for length in lengths:
        if sum(rows[-1]) + length > capacity:
            rows.append([])
        rows[-1].append(length)
    return [block_of(row, rng.integers(4, vocabulary, sum(row))) for row in rows]


def alone_gradients(model, blocks):
    """The gradient of the mean over all targets, from each sample run alone."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    total = {name: torch.zeros_like(p) for name, p in named}
    count = sum(block.num_targets for block in blocks)
    loss = 0.0
    for block in alone(blocks):
        if not block.num_targets:
            continue
        ids = torch.from_numpy(block.input_ids.astype(np.int64))[None]
        labels = torch.from_numpy(block.labels.astype(np.int64))[None]
        logits = model(input_ids=ids, use_cache=False).logits
        share = (
            torch.nn.functional.cross_entropy(logits[0, :-1].float(), labels[0, 1:], reduction="sum", ignore_index=IGNORE)
            / count
        )
        loss += float(share.detach())
        for (name, _), g in zip(named, torch.autograd.grad(share, [p for _, p in named], allow_unused=True), strict=True):
            if g is not None:
                total[name] += g
    return loss, total


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters() if p.requires_grad
    }


def assert_same_gradients(found, wanted, share=2e-5):
    """Within ``share`` of the largest entry of any gradient: rounding, where a wrong backward is off by tens of per cent."""
    unit = max(float(g.abs().max()) for g in wanted.values())
    worst = max((float((found[name] - wanted[name]).abs().max()) / unit, name) for name in wanted)
    assert worst[0] <= share, worst


class Block(torch.nn.Module):
    def __init__(self, mixer, size):
        super().__init__()
        self.norm, self.mixer = torch.nn.LayerNorm(size), mixer
        self.feed = torch.nn.Sequential(torch.nn.LayerNorm(size), torch.nn.Linear(size, size), torch.nn.GELU())

    def forward(self, hidden):
        hidden = hidden + self.mixer(self.norm(hidden))
        return hidden + self.feed(hidden)


class Foreign(torch.nn.Module):
    """A language model that no library knows: no configuration, no mask, no positions."""

    def __init__(self, mixer, size=16, layers=2, vocabulary=64):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(vocabulary, size)
        self.blocks = torch.nn.ModuleList(Block(mixer(size), size) for _ in range(layers))
        self.head = torch.nn.Linear(size, vocabulary)

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class SdpaMixer(torch.nn.Module):
    """Calls torch's attention by itself, causal, on whatever rows it gets."""

    def __init__(self, size, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)

    def forward(self, hidden):
        rows, width, size = hidden.shape
        q, k, v = self.qkv(hidden).mul(3.0).reshape(rows, width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(rows, width, size))


class ConvMixer(torch.nn.Module):
    """A short causal convolution."""

    def __init__(self, size):
        super().__init__()
        self.conv = torch.nn.Conv1d(size, size, 4, padding=3)

    def forward(self, hidden):
        return self.conv(hidden.transpose(1, 2))[..., : hidden.shape[1]].transpose(1, 2)


class LengthMixer(torch.nn.Module):
    """A causal filter parametrised by t / length: causal, and not independent of the length."""

    def __init__(self, size):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.linspace(1.0, 8.0, size))

    def forward(self, hidden):
        width = hidden.shape[1]
        t = torch.arange(width, dtype=hidden.dtype)
        kernel = torch.exp(-t[:, None] / width * self.rate)
        lag = (t[:, None] - t[None]).long()
        weights = torch.where((lag >= 0)[..., None], kernel[lag.clamp(min=0)], 0.0)
        return torch.einsum("tsd,bsd->btd", weights, hidden)


class TimeNormMixer(torch.nn.Module):
    """Statistics over the whole row: looks ahead."""

    def __init__(self, size):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((size,), 2.0))

    def forward(self, hidden):
        return (hidden - hidden.mean(1, keepdim=True)) * self.scale
