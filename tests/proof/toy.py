"""A small transformer whose parts can be swapped for faulty ones: attention, convolution, recurrence, experts, norms."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cloison.proof.signals import flat_segments

WIDTH, HEADS, VOCAB = 16, 2, 64


def starts_of(segment_ids: Tensor) -> Tensor:
    """bool [B, T]: the first token of every segment."""
    before = torch.nn.functional.pad(segment_ids[:, :-1], (1, 0), value=-1)
    return segment_ids != before


def own(segment_ids: Tensor, positions: Tensor) -> Tensor:
    """bool [B, T, T]: causal inside the segment."""
    width = segment_ids.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    return (segment_ids[:, :, None] == segment_ids[:, None, :]) & causal


class Attention(nn.Module):
    """Heads with an additive or boolean mask; positions as rotary, ALiBi, or not at all."""

    def __init__(self, mask=own, kind="rope", scale=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mask, self.kind, self.scale = mask, kind, scale

    def forward(self, x, segment_ids, positions):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if self.kind == "rope":
            angle = positions[:, None, :, None].to(x.dtype) / 8 ** torch.arange(q.shape[-1] // 2, dtype=x.dtype)
            if self.scale is not None:
                angle = angle / self.scale(positions)
            q, k = _rotate(q, angle), _rotate(k, angle)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.kind == "alibi":
            scores = scores - 0.3 * (positions[:, None, :, None] - positions[:, None, None, :]).to(x.dtype)
        if self.kind == "temperature":
            scores = scores * torch.log1p(positions.to(x.dtype) + 1)[:, None, :, None]
        mask = self.mask(segment_ids, positions)
        mask = mask[:, None] if mask.dim() == 3 else mask
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, torch.finfo(x.dtype).min)
        else:
            scores = scores + mask.to(x.dtype)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


def _rotate(x, angle):
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Toy(nn.Module):
    """Two layers of attention, one more mixer, and an MLP. Called without segment_ids it takes a row for one sample."""

    def __init__(self, attention=Attention, extra=None, table=False, embed=None, second=None, first_position=0):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH) if embed is None else embed()
        self.table = nn.Embedding(128, WIDTH) if table else None
        self.attentions = nn.ModuleList([attention(), (second or attention)()])
        self.extra = None if extra is None else extra()
        self.mlps = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.head = nn.Linear(WIDTH, VOCAB)
        self.first_position = first_position

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, segment_ids=None, position_ids=None, labels=None):
        segment_ids = torch.ones_like(input_ids) if segment_ids is None else segment_ids
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids) + self.first_position
        x = self.embed(input_ids) if isinstance(self.embed, nn.Embedding) else self.embed(input_ids, segment_ids)
        if self.table is not None:
            x = x + self.table(position_ids)
        for index, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[index](x), segment_ids, position_ids)
            if index == 0 and self.extra is not None:
                x = x + self.extra(x, segment_ids)
            x = x + mlp(x)
        return {"logits": self.head(self.norms[2](x))}


def make(**parts) -> Toy:
    """Return a Toy with weights that make every token matter, the same each time."""
    torch.manual_seed(0)
    model = Toy(**parts)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.4 / parameter.shape[-1] ** 0.5)
    model.embed.weight.data.copy_(torch.randn(model.embed.weight.shape, generator=generator))
    return model.eval()


def flat(blocks) -> dict:
    """One row with segment ids and positions that start anew: what is right for a Toy."""
    segments = flat_segments(blocks)
    tokens = np.concatenate([block.input_ids for block in blocks]).astype(np.int64)
    return {
        "input_ids": torch.from_numpy(tokens)[None],
        "segment_ids": torch.from_numpy(segments.segment_ids().astype(np.int64)),
        "position_ids": torch.from_numpy(segments.position_ids().copy()),
    }


def rows(blocks) -> dict:
    """A row a block, right-padded with id 0 and segment 0."""
    from cloison.segments import Segments

    segments = Segments.from_lengths([block.segments.seq_lengths for block in blocks])
    ids = np.zeros((len(blocks), segments.width), np.int64)
    for row, block in zip(ids, blocks, strict=True):
        row[: block.num_tokens] = block.input_ids
    return {
        "input_ids": torch.from_numpy(ids),
        "segment_ids": torch.from_numpy(segments.segment_ids().astype(np.int64)),
        "position_ids": torch.from_numpy(segments.position_ids().copy()),
    }


class CausalConv(nn.Module):
    """Depthwise convolution over the last four tokens; ``reach`` says which of them a token may see."""

    def __init__(self, same=None, centred=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, WIDTH))
        self.same = same or (lambda ids, past: ids == past)
        self.centred = centred

    def forward(self, x, segment_ids):
        out = torch.zeros_like(x)
        for back in range(4):
            shift = back - 1 if self.centred else back
            moved, ids = torch.roll(x, shift, 1), torch.roll(segment_ids, shift, 1)
            index = torch.arange(x.shape[1]) - shift
            inside = ((index >= 0) & (index < x.shape[1]))[None] & self.same(segment_ids, ids)
            out = out + torch.where(inside[..., None], moved, 0.0) * self.weight[back]
        return out


class Recurrence(nn.Module):
    """h = a * h + b x, reset where ``reset(segment_ids)`` says; ``backwards`` runs it from the end."""

    def __init__(self, reset=starts_of, backwards=False, decay=0.8):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.reset, self.backwards, self.decay = reset, backwards, decay

    def forward(self, x, segment_ids):
        reset = self.reset(segment_ids)
        value = self.inner(x)
        state, out = torch.zeros_like(value[:, 0]), [None] * x.shape[1]
        order = range(x.shape[1])
        for t in reversed(order) if self.backwards else order:
            at = (t + 1 < x.shape[1] and reset[:, t + 1]) if self.backwards else reset[:, t]
            state = torch.where(torch.as_tensor(at).reshape(-1, 1), 0.0, self.decay * state) + value[:, t]
            out[t] = state
        return torch.stack(out, 1)


class GroupNormOverTime(nn.Module):
    """Normalise by the mean and size over tokens: of the row so far, or of the segment so far."""

    def __init__(self, by_segment=True, whole_row=False):
        super().__init__()
        self.by_segment, self.whole_row = by_segment, whole_row
        self.scale = nn.Parameter(torch.ones(1, WIDTH))

    def forward(self, x, segment_ids):
        if self.whole_row:
            return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1.0) * self.scale
        weight = own(segment_ids if self.by_segment else torch.ones_like(segment_ids), segment_ids).to(x.dtype)
        return (x - weight @ x / weight.sum(-1, keepdim=True)) * self.scale


class BatchNormMixer(nn.Module):
    """Batch normalisation over all tokens, as a projection head might have it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x, segment_ids):
        return self.norm(x.reshape(-1, WIDTH)).reshape(x.shape)


class TokenShift(nn.Module):
    """Mix each token with the one before it."""

    def __init__(self, cross=False):
        super().__init__()
        self.mix = nn.Parameter(torch.ones(1, WIDTH) * 0.7)
        self.cross = cross

    def forward(self, x, segment_ids):
        before = torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
        if not self.cross:
            before = torch.where(starts_of(segment_ids)[..., None], 0.0, before)
        return before * self.mix


class TopKSelector(nn.Module):
    """Each token takes the values of the two tokens with the highest scores among those it may see; the choice is hard."""

    def __init__(self, allowed=own, detach=True):
        super().__init__()
        self.score, self.value = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.allowed, self.detach = allowed, detach

    def forward(self, x, segment_ids):
        scores = self.score(x)[..., 0][:, None, :].expand(-1, x.shape[1], -1)
        scores = scores.masked_fill(~self.allowed(segment_ids, segment_ids), -1e9)
        best = scores.detach().argmax(-1)
        value = self.value(x.detach() if self.detach else x)
        return torch.gather(value, 1, best[..., None].expand(-1, -1, WIDTH))


class Experts(nn.Module):
    """Two of four experts a token. ``capacity`` drops what is over it; ``fault`` breaks the way back."""

    def __init__(self, capacity=None, fault=None):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.capacity, self.fault = capacity, fault

    def forward(self, x, segment_ids):
        flat = x.reshape(-1, WIDTH)
        logits = self.gate(flat)
        if self.fault == "softmax over tokens":
            logits = logits.softmax(0) * 8
        weights, chosen = logits.softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == index)
            if self.capacity is not None:
                rows, slot = rows[: self.capacity], slot[: self.capacity]
            made = expert(flat[rows]) * weights[rows, slot][:, None]
            if self.fault == "scattered to the next token":
                rows = (rows + 1).clamp_max(flat.shape[0] - 1)
            out = out.index_add(0, rows, made)
        return out.reshape(x.shape)


class ScaledLinear(nn.Module):
    """A projection in eight bits with one scale for all tokens, as dynamic low precision has it."""

    def __init__(self):
        super().__init__()
        self.proj = DynamicLinear(WIDTH, WIDTH)

    def forward(self, x, segment_ids):
        return self.proj(x)


class DynamicLinear(nn.Linear):
    """Round the input to 255 steps of the largest number in the whole batch."""

    def forward(self, x):
        step = x.detach().abs().max() / 127
        rounded = (x / step).round() * step
        return super().forward(x + (rounded - x).detach())


class NGramEmbedding(nn.Module):
    """Token embeddings plus those of a hash of the token and the one before it."""

    def __init__(self, cross=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(VOCAB, WIDTH))
        self.pairs = nn.Parameter(torch.randn(97, WIDTH))
        self.cross = cross

    def forward(self, input_ids, segment_ids):
        before = torch.nn.functional.pad(input_ids[:, :-1], (1, 0))
        if not self.cross:
            before = torch.where(starts_of(segment_ids), 0, before)
        return self.weight[input_ids] + self.pairs[(input_ids * 31 + before) % 97]


class LeakyBackward(torch.autograd.Function):
    """Attention whose forward keeps to the segment; the backward spreads each gradient to the token before it."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + 0.5 * torch.nn.functional.pad(grad[:, 1:], (0, 0, 0, 1))


class ScaledBackward(torch.autograd.Function):
    """A backward that is right for short rows and half as large for long ones."""

    @staticmethod
    def forward(ctx, x):
        ctx.long = x.shape[1] > 40
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5 if ctx.long else grad


class Kernel(nn.Module):
    """A mixer with a backward of its own."""

    def __init__(self, function=None):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x, segment_ids):
        value = self.inner(x)
        return value if self.function is None else self.function.apply(value)
