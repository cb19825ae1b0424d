"""Planted faults in masks, positions, mixers, kernels and signals, each beside its right version, and how each must be named.

``python -m tests.proof.mutants_model`` prints the score. The faults are those that were reported of real systems; real model
types under real signals stand at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cloison.proof.report import VerifyReport
from cloison.proof.signals import flat_segments, signal
from cloison.proof.tiny import tiny_model
from cloison.proof.verify import verify
from tests.proof.toy import (
    Attention,
    BatchNormMixer,
    CausalConv,
    Experts,
    GroupNormOverTime,
    Kernel,
    LeakyBackward,
    NGramEmbedding,
    Recurrence,
    ScaledBackward,
    ScaledLinear,
    TokenShift,
    TopKSelector,
    flat,
    make,
    own,
    rows,
    starts_of,
)

Built = tuple[Any, Callable[..., Any]]


@dataclass(frozen=True)
class Mutant:
    """One fault: how to build it, what it must be called, and the right version.

    ``kind`` is the finding's kind; ``named`` further words that its ``where`` must hold, as {"nature": "recurrence"}.
    """

    name: str
    build: Callable[[], Built]
    kind: str
    named: dict[str, Any]
    right: Callable[[], Built]

    def found(self) -> tuple[bool, str]:
        """Return (found and named rightly, what was said)."""
        return judge(self, verify_built(self.build))

    def accused(self) -> tuple[bool, str]:
        """Return (whether the right version is accused, what was said)."""
        report = verify_built(self.right)
        return not report.ok, str(report)


def verify_built(build: Callable[[], Built]) -> VerifyReport:
    model, collate = build()
    return verify(model, collate=collate, fix=False)


def judge(mutant: Mutant, report: VerifyReport) -> tuple[bool, str]:
    for finding in report.findings:
        named = all(str(value) in str(finding.where.get(name)) for name, value in mutant.named.items())
        if finding.severity == "error" and finding.kind == mutant.kind and named:
            return True, finding.message
    return False, str(report)


def toy(collate=flat, **parts) -> Callable[[], Built]:
    return lambda: (make(**parts), collate)


# ---------------------------------------------------------------------- masks


def plain_causal(ids, positions):
    return own(torch.ones_like(ids), positions)


def one_edge(ids, positions):
    """The first token of the fourth segment sees the last of the third."""
    mask = own(ids, positions)
    start = int(torch.nonzero(starts_of(ids)[0])[3]) if int(ids.max()) > 3 else 0
    if start:
        mask[:, start, start - 1] = True
    return mask


def shifted_boundary(by):
    def mask(ids, positions):
        moved = own(torch.roll(ids, by, 1), positions)
        return moved | torch.eye(ids.shape[1], dtype=torch.bool) if int(ids.max()) > 1 else own(ids, positions)

    return mask


def previous_segment(ids, positions):
    return own(ids, positions) | (ids[:, :, None] - ids[:, None, :] == 1)


def future_segment(ids, positions):
    return own(ids, positions) | (ids[:, None, :] - ids[:, :, None] == 1)


def added_bool(ids, positions):
    return own(ids, positions).float()


def soft(ids, positions):
    return (~own(ids, positions)).float() * -6.0


def ids_as_mask(ids, positions):
    return plain_causal(ids, positions) & (ids != 0)[:, None, :]


def one_head(ids, positions):
    return torch.stack([own(ids, positions), plain_causal(ids, positions)], 1)


def sorted_lengths(ids, positions):
    """Boundaries from lengths in the wrong order, as when cu_seqlens are built from a sorted list."""
    _, counts = ids[0].unique_consecutive(return_counts=True)
    order = counts.sort(descending=True).values
    return own(torch.arange(len(order)).repeat_interleave(order)[None], positions)


def one_missing(ids, positions):
    """cu_seqlens without one of its offsets."""
    return own(torch.where(ids == 4, 3, ids), positions)


def both_ways(ids, positions):
    return ids[:, :, None] == ids[:, None, :]


def transposed(ids, positions):
    return own(ids, positions).transpose(1, 2)


def windowed(ids, positions, window=6):
    index = torch.arange(ids.shape[1])
    return own(ids, positions) & (index[:, None] - index[None] < window)


def chunked(ids, positions, chunk=6, by_row=False):
    index = torch.arange(ids.shape[1]).expand_as(ids) if by_row else positions
    return own(ids, positions) & ((index // chunk)[:, :, None] == (index // chunk)[:, None, :])


# ---------------------------------------------------------------------- positions


def running(blocks):
    batch = flat(blocks)
    return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


def from_one(blocks):
    batch = flat(blocks)
    return batch | {"position_ids": batch["position_ids"] + 1}


def second_doubled(blocks):
    """The positions of every second segment count by two."""
    batch = flat(blocks)
    even = batch["segment_ids"] % 2 == 0
    return batch | {"position_ids": torch.where(even, 2 * batch["position_ids"], batch["position_ids"])}


def late_reset(blocks):
    """Positions restart one token late."""
    batch = flat(blocks)
    return batch | {"position_ids": torch.roll(batch["position_ids"], 1, 1)}


def by_longest(positions):
    return 4.0 if int(positions.max()) >= 16 else 1.0


class Remembering(Attention):
    """Scales by the longest position that it has ever seen."""

    def __init__(self):
        super().__init__()
        self.longest = 0

    def forward(self, x, segment_ids, positions):
        width = x.shape[1]
        self.longest = max(self.longest, width)
        self.scale = lambda _: 4.0 if self.longest > 40 else 1.0
        out = super().forward(x, segment_ids, positions)
        return out


class Cached(Attention):
    """Keeps what it saw in the last call and adds its mean to the next one."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x, segment_ids, positions):
        before, self.last = self.last, x.detach().mean(1, keepdim=True)
        return super().forward(x if before is None else x + before, segment_ids, positions)


# ---------------------------------------------------------------------- other mixers


def late(segment_ids):
    """Reset the state one token after the boundary."""
    return torch.roll(starts_of(segment_ids), 1, 1)


def every_second(segment_ids):
    return starts_of(segment_ids) & (segment_ids % 2 == 1)


def never(segment_ids):
    return torch.zeros_like(segment_ids, dtype=torch.bool)


def all_same(ids, past):
    return torch.ones_like(ids, dtype=torch.bool)


def next_too(ids, past):
    return (ids == past) | (ids == past + 1)


class BatchMixer(torch.nn.Module):
    """Adds to each row the mean over the rows of the batch."""

    def __init__(self, mixes=True):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 16))
        self.mixes = mixes

    def forward(self, x, segment_ids):
        return (x.mean(0, keepdim=True).expand_as(x) if self.mixes else x) * self.weight


class PaddingSeen(torch.nn.Module):
    """Adds the mean of the padding's vectors to every token of its row."""

    def __init__(self, sees=True):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 16))
        self.sees = sees

    def forward(self, x, segment_ids):
        padding = (segment_ids == 0)[..., None].to(x.dtype)
        mean = (x * padding).sum(1, keepdim=True) / padding.sum(1, keepdim=True).clamp_min(1)
        return mean * self.weight * float(self.sees) + 0 * x


def from_ends(blocks):
    """Boundaries guessed from an end-of-text id that the samples do not have."""
    batch = flat(blocks)
    return batch | {"segment_ids": 1 + (batch["input_ids"] == 2).long().cumsum(1)}


def real(
    model_type: str, case: str, use_cache: Any = "off", attn: str = "eager", change=None, **changes
) -> Callable[[], Built]:
    def build() -> Built:
        model, _ = tiny_model(model_type, attn=attn, **changes)
        made = signal(case, use_cache)
        return model, (lambda blocks: change(made(blocks), blocks)) if change is not None else made

    return build


def segment_ids_as_mask(batch, blocks):
    return batch | {"attention_mask": torch.from_numpy(flat_segments(blocks).segment_ids().astype("int64"))}


def flat_positions(batch, blocks):
    return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


def one_later(batch, blocks):
    return batch | {"position_ids": batch["position_ids"] + 1}


def three_planes(batch, blocks):
    return batch | {"position_ids": torch.stack([batch["position_ids"]] * 3)}


def with_windows(batch, blocks):
    from cloison.forms.hf import mask4d

    return batch | {"attention_mask": mask4d(flat_segments(blocks), window=4)}


def by_layer(model_type: str) -> Callable[[], Built]:
    def build() -> Built:
        from cloison.forms.hf import masks_by_layer_type

        model, config = tiny_model(model_type)
        made = signal("positions")
        return model, lambda blocks: made(blocks) | {"attention_mask": masks_by_layer_type(flat_segments(blocks), config)}

    return build


def attention(**parts):
    return partial(Attention, **parts)


RIGHT = toy()
LEAK_IN_ATTENTION = {"nature": "attention", "module": "attentions.0"}
LONG_ROPE = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    "max_position_embeddings": 16,
}


def leaky(name: str, mask, right=own) -> Mutant:
    return Mutant(name, toy(attention=attention(mask=mask)), "leak", LEAK_IN_ATTENTION, toy(attention=attention(mask=right)))


def mixed(name: str, part, nature: str, right, kind: str = "leak", module: str = "extra") -> Mutant:
    named = {"nature": nature, "module": module} if kind == "leak" else {}
    return Mutant(name, toy(extra=part), kind, named, toy(extra=right))


MUTANTS: tuple[Mutant, ...] = (
    leaky("plain causal mask", plain_causal),
    leaky("one wrong mask edge", one_edge),
    leaky("boundaries one token late", shifted_boundary(1)),
    leaky("boundaries one token early", shifted_boundary(-1)),
    leaky("the neighbour before is seen", previous_segment),
    leaky("the neighbour after is seen", future_segment),
    leaky("boolean mask added as 0 and 1", added_bool),
    leaky("mask of -6 instead of the lowest number", soft),
    leaky("segment ids taken for a padding mask", ids_as_mask),
    leaky("one head without the mask", one_head),
    leaky("offsets from sorted lengths", sorted_lengths),
    leaky("one offset is missing", one_missing),
    Mutant(
        "the second layer has no mask",
        toy(second=attention(mask=plain_causal)),
        "leak",
        {"nature": "attention", "module": "attentions.1"},
        toy(second=attention(mask=own)),
    ),
    Mutant("no mask between samples, both ways inside", toy(attention=attention(mask=both_ways)), "look_ahead", {}, RIGHT),
    Mutant("transposed mask", toy(attention=attention(mask=transposed)), "look_ahead", {}, RIGHT),
    Mutant(
        "chunks counted from the start of the row",
        toy(attention=attention(mask=partial(chunked, by_row=True))),
        "mismatch",
        {"cause": "position_offset"},
        toy(attention=attention(mask=chunked)),
    ),
    Mutant("boundaries guessed from an end-of-text id", toy(collate=from_ends), "leak", LEAK_IN_ATTENTION, RIGHT),
    # positions
    Mutant("learned positions run on", toy(running, table=True), "mismatch", {"cause": "position_offset"}, toy(table=True)),
    Mutant("positions start at 1", toy(from_one, table=True), "mismatch", {"cause": "wrong_start"}, toy(table=True)),
    Mutant(
        "positions start at 0 where the model starts at 2",
        toy(table=True, first_position=2),
        "mismatch",
        {"cause": "wrong_start"},
        toy(lambda blocks: flat(blocks) | {"position_ids": flat(blocks)["position_ids"] + 2}, table=True, first_position=2),
    ),
    Mutant("positions of every second sample count by two", toy(second_doubled), "mismatch", {}, RIGHT),
    Mutant("positions restart one token late", toy(late_reset), "mismatch", {}, RIGHT),
    Mutant(
        "rotary scaled by the longest position",
        toy(attention=attention(scale=by_longest)),
        "mismatch",
        {"cause": "longest_position"},
        toy(attention=attention(scale=lambda positions: 4.0)),
    ),
    Mutant(
        "temperature by the index in the row",
        toy(running, attention=attention(kind="temperature")),
        "mismatch",
        {"cause": "position_offset"},
        toy(attention=attention(kind="temperature")),
    ),
    Mutant("scaling remembers earlier calls", toy(attention=Remembering), "mismatch", {"cause": "stale_state"}, RIGHT),
    Mutant("a cache from the call before", toy(attention=Cached), "mismatch", {"cause": "stale_state"}, RIGHT),
    # convolutions, recurrences, statistics
    mixed("convolution over the edge", partial(CausalConv, same=all_same), "convolution", CausalConv),
    mixed("convolution reads the neighbour before", partial(CausalConv, same=next_too), "convolution", CausalConv),
    mixed("centred convolution", partial(CausalConv, centred=True), "", CausalConv, "look_ahead"),
    mixed("state carried over the edge", partial(Recurrence, reset=never), "recurrence", Recurrence),
    mixed("state reset one token late", partial(Recurrence, reset=late), "recurrence", Recurrence),
    mixed("state reset at every second edge", partial(Recurrence, reset=every_second), "recurrence", Recurrence),
    mixed("recurrence from the end", partial(Recurrence, backwards=True), "", Recurrence, "look_ahead"),
    mixed("token shift over the edge", partial(TokenShift, cross=True), "convolution", TokenShift),
    mixed("group norm over time", partial(GroupNormOverTime, whole_row=True), "statistics over the row", GroupNormOverTime),
    mixed(
        "cumulative norm over the edge",
        partial(GroupNormOverTime, by_segment=False),
        "statistics over the row",
        GroupNormOverTime,
    ),
    mixed(
        "hard selection among all tokens",
        partial(TopKSelector, allowed=plain_causal),
        "selection",
        partial(TopKSelector, allowed=own),
    ),
    Mutant(
        "pair embedding over the edge",
        toy(embed=partial(NGramEmbedding, cross=True)),
        "leak",
        {"module": "embed", "nature": "embedding"},
        toy(embed=NGramEmbedding),
    ),
    Mutant(
        "rows of a batch mixed",
        toy(rows, extra=BatchMixer),
        "leak",
        {"module": "extra"},
        toy(rows, extra=partial(BatchMixer, mixes=False)),
    ),
    Mutant(
        "padding is seen",
        toy(rows, extra=PaddingSeen),
        "mismatch",
        {"cause": "padding"},
        toy(rows, extra=partial(PaddingSeen, sees=False)),
    ),
    # experts: what only regroups tokens is coupled; what moves content is a leak
    mixed("experts give back to the next token", partial(Experts, fault="scattered to the next token"), "experts", Experts),
    mixed(
        "router weights normalised over tokens",
        partial(Experts, fault="softmax over tokens"),
        "experts",
        partial(Experts, capacity=24),
    ),
    # backwards
    mixed("backward over the edge", partial(Kernel, function=LeakyBackward), "", Kernel, "gradient_leak"),
    mixed("backward wrong for long rows", partial(Kernel, function=ScaledBackward), "", Kernel, "gradient_mismatch"),
    # real models under real signals
    Mutant("llama, nothing said", real("llama", "none"), "leak", {"module": "layers.0.self_attn"}, real("llama", "positions")),
    Mutant(
        "llama, an all-ones mask",
        real("llama", "positions-ones", attn="sdpa"),
        "leak",
        {"module": "layers.0.self_attn"},
        real("llama", "positions", attn="sdpa"),
    ),
    Mutant(
        "llama, cache left on",
        real("llama", "positions", "default"),
        "leak",
        {"nature": "attention"},
        real("llama", "flattening"),
    ),
    Mutant(
        "llama, bool mask on eager",
        real("llama", "mask4d-bool"),
        "leak",
        {"nature": "attention"},
        real("llama", "mask4d-bool", attn="sdpa"),
    ),
    Mutant(
        "llama, segment ids as 2-D mask",
        real("llama", "positions", change=segment_ids_as_mask),
        "leak",
        {"nature": "attention"},
        real("llama", "mask4d"),
    ),
    Mutant("gpt_oss, positions", real("gpt_oss", "positions"), "leak", {"module": "layers.0.self_attn"}, by_layer("gpt_oss")),
    Mutant("gpt_oss, mask without window", real("gpt_oss", "mask4d"), "mismatch", {"cause": "window"}, by_layer("gpt_oss")),
    Mutant(
        "mistral, mask without window",
        real("mistral", "mask4d"),
        "mismatch",
        {"cause": "window"},
        real("mistral", "mask4d", change=with_windows),
    ),
    Mutant(
        "jamba, positions",
        real("jamba", "positions"),
        "leak",
        {"module": "layers.0.mamba", "nature": "recurrence"},
        real("mixtral", "positions"),
    ),
    Mutant("rwkv, positions", real("rwkv", "positions"), "leak", {}, real("qwen3_moe", "positions", attn="sdpa")),
    Mutant("lfm3, positions", real("lfm3", "positions"), "leak", {"nature": "convolution"}, real("olmoe", "positions")),
    Mutant(
        "bloom, positions that it does not read",
        real("bloom", "positions"),
        "leak",
        {"nature": "attention"},
        real("falcon", "positions"),
    ),
    Mutant(
        "opt, mask and positions that run on",
        real("opt", "mask4d", change=flat_positions),
        "mismatch",
        {"cause": "position_offset"},
        real("opt", "mask4d"),
    ),
    Mutant(
        "gpt2, positions from 1",
        real("gpt2", "positions", change=one_later),
        "mismatch",
        {"cause": "wrong_start"},
        real("gpt2", "positions"),
    ),
    Mutant(
        "roberta, mask and positions from 0",
        real("roberta", "mask4d"),
        "mismatch",
        {"cause": "wrong_start"},
        real("roberta", "mask4d", change=one_later),
    ),
    Mutant(
        "dynamic rotary beside a long sample",
        real("llama", "positions", **LONG_ROPE),
        "mismatch",
        {"cause": "longest_position"},
        real("llama", "positions"),
    ),
)

COUPLED: dict[str, Callable[[], Built]] = {
    "experts with a capacity": toy(extra=partial(Experts, capacity=24)),
    "batch statistics while training": lambda: (make(extra=BatchNormMixer).train(), flat),
    "one dynamic scale for all tokens": toy(extra=ScaledLinear),
}
"""What depends on the other samples in the batch and is no leak: reported as coupled, and no finding."""


def score() -> list[tuple[str, bool, bool]]:
    """Return (name, found and named rightly, right version accused) of every mutant."""
    return [(mutant.name, mutant.found()[0], mutant.accused()[0]) for mutant in MUTANTS]


if __name__ == "__main__":
    done = score()
    for name, found, accused in done:
        if not found or accused:
            print(f"{name}: {'found' if found else 'MISSED'}{', right version ACCUSED' if accused else ''}")
    print(
        f"model side: {sum(found for _, found, _ in done)} of {len(done)} found and named, "
        f"{sum(accused for *_, accused in done)} right accused"
    )
    sys.exit(any(not found or accused for _, found, accused in done))
